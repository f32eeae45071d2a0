"""SINGA's script, typed from its document: only the imports, the model and the data are others.

    mpiexec -n 2 python seed_mnist.py DIST_OPTION SPARS
    python seed_mnist.py DIST_OPTION SPARS WORLD_SIZE          # by multiprocessing
"""

import pathlib
import sys

import numpy as np

sys.path.append(str(pathlib.Path(__file__).parents[2] / "examples" / "mnist_cnn"))

import cnn

import tutti as singa
from tutti import opt


class CNN(cnn.CNN):

    def set_optimizer(self, optimizer):
        self.optimizer = optimizer

    def __call__(self, x, y, dist_option, spars):
        return self.train_one_batch(x, y, dist_option, spars)

    def train_one_batch(self, x, y, dist_option='fp32', spars=0):
        value, out = self.forward(x, y)
        loss = self.backward()

        # Allow different options for distributed training
        # See the section "Optimizations for Distributed Training"
        if dist_option == 'fp32':
            self.optimizer(loss)
        elif dist_option == 'fp16':
            self.optimizer.backward_and_update_half(loss)
        elif dist_option == 'partialUpdate':
            self.optimizer.backward_and_partial_update(loss)
        elif dist_option == 'sparseTopK':
            self.optimizer.backward_and_sparse_update(loss,
                                                      topK=True,
                                                      spars=spars)
        elif dist_option == 'sparseThreshold':
            self.optimizer.backward_and_sparse_update(loss,
                                                      topK=False,
                                                      spars=spars)
        return out, value


def load_dataset():
    """Digits that are squares of a place of their own."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 1300)
    images = rng.integers(0, 64, (1300, 28, 28)).astype(np.uint8)
    for image, label in zip(images, labels):
        row, column = divmod(label, 5)
        image[4 + 12 * row:12 + 12 * row, 5 * column:5 * column + 5] = 255
    return images[:1024], labels[:1024], images[1024:], labels[1024:]


def data_partition(dataset_x, dataset_y, global_rank, world_size):
    data_per_rank = dataset_x.shape[0] // world_size
    idx_start = global_rank * data_per_rank
    idx_end = (global_rank + 1) * data_per_rank
    return dataset_x[idx_start:idx_end], dataset_y[idx_start:idx_end]


def train_mnist_cnn(nccl_id=None, local_rank=None, world_size=None):
    dist_option, spars = sys.argv[1], float(sys.argv[2])
    max_epoch, batch_size = 3, 32

    # create model
    model = CNN()

    sgd = opt.SGD(lr=0.005, momentum=0.9, weight_decay=1e-5)
    sgd = opt.DistOpt(sgd, nccl_id=nccl_id, local_rank=local_rank, world_size=world_size)
    model.set_optimizer(sgd)

    train_x, train_y, test_x, test_y = load_dataset()
    train_x, train_y = data_partition(train_x, train_y,
                                      sgd.global_rank, sgd.world_size)
    test_x, test_y = data_partition(test_x, test_y,
                                    sgd.global_rank, sgd.world_size)

    # Use the same random seed for different ranks
    seed = 0
    np.random.seed(seed)
    num_train_batch = train_x.shape[0] // batch_size
    idx = np.arange(train_x.shape[0], dtype=np.int32)

    for epoch in range(max_epoch):
        np.random.shuffle(idx)
        for b in range(num_train_batch):
            x = train_x[idx[b * batch_size: (b + 1) * batch_size]]
            y = train_y[idx[b * batch_size: (b + 1) * batch_size]]
            # Train the model
            out, loss = model(x, y, dist_option, spars)

    right = np.array([model.forward(test_x, test_y)[1], len(test_x)], np.float64)
    sgd.all_reduce(right)
    sgd.wait()
    if sgd.global_rank == 0:
        print(f"Evaluation accuracy = {right[0] / right[1]:f}")


if __name__ == '__main__':
    if len(sys.argv) == 3:
        train_mnist_cnn()
        sys.exit()

    # Generate a NCCL ID to be used for collective communication
    nccl_id = singa.NcclIdHolder()

    # Define the number of GPUs to be used in the training process
    world_size = int(sys.argv[3])

    # Define and launch the multi-processing
    import multiprocessing
    process = []
    for local_rank in range(0, world_size):
        process.append(multiprocessing.Process(target=train_mnist_cnn,
                       args=(nccl_id, local_rank, world_size)))

    for p in process:
        p.start()
