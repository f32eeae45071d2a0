"""MegEngine's scripts, typed from its document on distributed training: only the imports, the model
and the data are others."""

from math import ceil

import numpy as np

import megengine_on_torch as M
import megengine_on_torch as mge
import megengine_on_torch as optim
import tutti.distributed as ad
import tutti.distributed as dist


class Le_Net(M.Linear):
    """Two classes, of points on the two sides of a line."""

    def __init__(self):
        super().__init__(4, 2)

    def loss(self, data, label):
        logits = self(mge.tensor(data))
        return (logits.logsumexp(1) - logits[range(len(label)), list(label)]).mean()

    def accuracy(self, data, label):
        return float((self(mge.tensor(data)).argmax(1).numpy() == label).mean())


def load_mnist_datasets():
    rng = np.random.default_rng(0)
    data = rng.normal(size=(301, 4)).astype(np.float32)
    return {'train': (data, (data.sum(1) > 0).astype(np.int64))}


# 数据处理流程: 手动切分
def own_part(rank, num_devices):
    mnist_datasets = load_mnist_datasets()
    data_train, label_train = mnist_datasets['train']

    size = ceil(len(data_train) / num_devices)
    l = size * rank
    r = min(size * (rank + 1), len(data_train))
    data_train = data_train[l:r, :]
    label_train = label_train[l:r]
    return data_train, label_train


# 单机多卡, 参数同步, 模型保存与加载
def train(path, epochs):
    rank = dist.get_rank()
    net = Le_Net()

    # 加载模型参数
    if rank == 0:
        try:
            checkpoint = mge.load(path)
            net.load_state_dict(checkpoint['net'])
        except FileNotFoundError:
            pass
    dist.bcast_list_(net.parameters())
    opt = optim.SGD(net.parameters(), lr=0.5, momentum=0.9, weight_decay=5e-4)
    gm = ad.GradManager()
    # sum 表示累加方式是直接相加 ，如果填写 mean 就是相加后求平均
    # dist.WORLD 表示梯度累加的范围，默认是 dist.WORLD 表示所有进程间都进行同步
    gm.attach(net.parameters(), callbacks=[dist.make_allreduce_cb("mean", dist.WORLD)])

    data, label = own_part(rank, dist.get_world_size())
    for _ in range(epochs):
        with gm:
            loss = net.loss(data, label)
            gm.backward(loss)
            opt.step().clear_grad()

    # 保存模型参数
    best_acc = net.accuracy(data, label)
    if rank == 0:
        checkpoint = {
            'net': net.state_dict(),
            'acc': best_acc,
        }
        mge.save(checkpoint, path)
    return best_acc, [p.detach().numpy() for p in net.parameters()]


@dist.launcher(n_gpus=2)
def main(path, epochs):
    return train(path, epochs)


# 多机多卡
def main_on_one_machine(world_size, n_gpus, rank_start, master_ip, port, path):

    @dist.launcher(world_size=world_size,
                   n_gpus=n_gpus,
                   rank_start=rank_start,
                   master_ip=master_ip,
                   port=port)
    def main():
        return train(path, 20)

    return main()


# 模型并行
@dist.launcher(n_gpus=2)
def model_parallel():

    rank = dist.get_rank()
    # client 用于各个 rank 之间互相通信
    client = dist.get_client()
    if rank == 0:
        layer1 = M.Linear(1, 1) # 模型上半部分

        x = mge.tensor(np.random.randn(1))
        gm = ad.GradManager()
        opt = optim.SGD(layer1.parameters(), lr=1e-3)
        gm.attach(layer1.parameters())
        before = [p.detach().clone() for p in layer1.parameters()]

        with gm:
            feat = layer1(x)
            client.user_set("shape", feat.shape)
            # 因为 numpy.dtype 类型不能直接发送，所以转化为 str 类型
            client.user_set("dtype", str(feat.dtype))
            dist.functional.remote_send(feat, dest_rank=1)
            gm.backward([])
            opt.step().clear_grad()
        return [bool((p != old).all()) for p, old in zip(layer1.parameters(), before)]
    else:
        layer2 = M.Linear(1, 1) # 模型下半部分

        gm = ad.GradManager()
        opt = optim.SGD(layer2.parameters(), lr=1e-3)
        gm.attach(layer2.parameters())
        before = [p.detach().clone() for p in layer2.parameters()]

        with gm:
            shape = client.user_get("shape")
            dtype = client.user_get("dtype")
            feat = dist.functional.remote_recv(src_rank=0, shape=shape, dtype=dtype)
            loss = layer2(feat)
            gm.backward(loss)
            opt.step().clear_grad()
        return [bool((p != old).all()) for p, old in zip(layer2.parameters(), before)]


# 自己用 multiprocess 写多机多卡训练
def worker(rank, world_size, port, path, queue):
    dist.init_process_group("localhost", port, world_size, rank, rank)
    accuracy, _ = train(path, 20)
    queue.put((rank, accuracy))
    dist.group_barrier()
