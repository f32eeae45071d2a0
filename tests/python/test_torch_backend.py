"""The backend "tutti" of torch.distributed: its operations, what wraps models with it, and how it
ends."""

import datetime
import os
import signal

import pytest

import launching
import tutti

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
import tutti.torch  # noqa: E402,F401 - registers the backend

torch.set_num_threads(1)  # threads would not come along in a fork
DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
          torch.bfloat16, torch.float32, torch.float64]
OP = dist.ReduceOp
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))


def begin(place, path, seconds=60):
    dist.init_process_group("tutti", store=dist.FileStore(path, place.ranks), rank=place.rank,
                            world_size=place.ranks, timeout=datetime.timedelta(seconds=seconds))


def in_group(place, path, body, *arguments):
    begin(place, path)
    result = body(place.rank, place.ranks, *arguments)
    dist.destroy_process_group()
    return result


@pytest.fixture
def ranks(tmp_path):
    """Calls body(rank, ranks, ...) in the default group of forked ranks; what it returned, by
    rank."""
    import torch._dynamo  # noqa: F401 - DistributedDataParallel's first use would, on each rank

    def call(body, count, *arguments):
        return launching.run(in_group, count, "fork", str(tmp_path / "store"), body, *arguments)

    return call


# ------------------------------------------------------------------------------------- operations


def sums(rank, ranks):
    for dtype in DTYPES:
        given = torch.tensor([0, 1, 1] if dtype == torch.bool else [1, 2, 3]).to(dtype)
        everybody = [(given ^ bool(r)) if dtype == torch.bool else given + r for r in range(ranks)]
        stacked = torch.stack([one.to(torch.float64) for one in everybody])
        for op, expected in ((OP.SUM, stacked.sum(0)), (OP.MAX, stacked.amax(0)),
                             (OP.MIN, stacked.amin(0)), (OP.PRODUCT, stacked.prod(0))):
            tensor = everybody[rank].clone()
            dist.all_reduce(tensor, op)
            assert torch.equal(tensor, expected.to(dtype)), (dtype, op, tensor)
        if not dtype.is_floating_point:
            for op, combine in ((OP.BAND, torch.bitwise_and), (OP.BOR, torch.bitwise_or),
                                (OP.BXOR, torch.bitwise_xor)):
                tensor, expected = everybody[rank].clone(), everybody[0]
                for other in everybody[1:]:
                    expected = combine(expected, other)
                dist.all_reduce(tensor, op)
                assert torch.equal(tensor, expected), (dtype, op)
        else:
            tensor = everybody[rank].clone()
            dist.all_reduce(tensor, OP.AVG)
            assert torch.equal(tensor, stacked.mean(0).to(dtype))
    for tensor in (torch.tensor(2.0), torch.ones(0), torch.nn.Parameter(torch.ones(2))):
        before = tensor.detach().clone()
        dist.all_reduce(tensor)
        assert torch.equal(tensor.detach(), before * ranks)
    with pytest.raises((tutti.InvalidArgument, RuntimeError), match="band"):
        dist.all_reduce(torch.ones(2), OP.BAND)


def test_all_reduce_takes_every_type_and_operation(ranks):
    ranks(sums, 2)


def moves(rank, ranks):
    for dtype in (*DTYPES, torch.complex64):
        mine = torch.arange(4).reshape(2, 2).to(dtype) if dtype != torch.bool else torch.eye(2) > 0
        theirs = [mine if dtype == torch.bool else mine + r for r in range(ranks)]
        mine = theirs[rank]
        parts = [torch.empty_like(mine) for _ in range(ranks)]
        dist.all_gather(parts, mine)
        assert all(map(torch.equal, parts, theirs))
        whole = torch.empty((2 * ranks, 2), dtype=dtype)
        dist.all_gather_into_tensor(whole, mine)
        assert torch.equal(whole, torch.cat(theirs))
        got = [torch.empty_like(mine) for _ in range(ranks)] if rank == 0 else None
        dist.gather(mine, got)
        assert rank != 0 or all(map(torch.equal, got, theirs))
        part = torch.empty_like(mine)
        dist.scatter(part, theirs if rank == ranks - 1 else None, src=ranks - 1)
        assert torch.equal(part, mine)
        dist.broadcast(part, 0)
        assert torch.equal(part, theirs[0])
    total = torch.empty(2)
    dist.reduce_scatter_tensor(total, torch.arange(2.0 * ranks))
    assert torch.equal(total, ranks * torch.arange(2.0 * rank, 2.0 * rank + 2))
    dist.reduce_scatter(total, [torch.full((2,), float(r)) for r in range(ranks)], OP.MAX)
    assert torch.equal(total, torch.full((2,), float(rank)))
    one = torch.full((3,), 1.0 + rank)
    dist.reduce(one, ranks - 1)
    assert rank != ranks - 1 or torch.equal(one, torch.full((3,), ranks * (ranks + 1) / 2))
    # Rank r sends s + 1 rows to rank s.
    out = torch.full((ranks * (rank + 1), 2), -1)
    dist.all_to_all_single(out, torch.full((ranks * (ranks + 1) // 2, 2), rank),
                           [rank + 1] * ranks, [s + 1 for s in range(ranks)])
    assert out[:, 0].tolist() == [r for r in range(ranks) for _ in range(rank + 1)]
    many = [torch.empty(rank + 1) for _ in range(ranks)]
    dist.all_to_all(many, [torch.full((s + 1,), float(rank)) for s in range(ranks)])
    assert [part[-1].item() for part in many] == list(range(ranks))
    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(ranks)]


def test_tensors_of_every_type_go_where_they_are_to(ranks):
    ranks(moves, 3)


def strided(rank, ranks):
    whole = torch.arange(24.0).reshape(4, 6) * (rank + 1)
    column = whole[:, 1]
    dist.all_reduce(column)
    assert torch.equal(column, torch.arange(24.0).reshape(4, 6)[:, 1] * sum(range(1, ranks + 1)))
    assert torch.equal(whole[:, 0], torch.arange(24.0).reshape(4, 6)[:, 0] * (rank + 1))
    transposed = torch.arange(6.0).reshape(2, 3).t() + rank
    dist.broadcast(transposed, 1)
    assert torch.equal(transposed, torch.arange(6.0).reshape(2, 3).t() + 1)
    channels_last = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    got = [torch.zeros(2, 3, 4, 4) for _ in range(ranks)]
    dist.all_gather(got, channels_last)
    assert all(torch.equal(one, torch.ones(2, 3, 4, 4)) for one in got)
    sparse = torch.sparse_coo_tensor([[rank, 3]], [1.0, 2.0], (5,))
    dist.all_reduce(sparse)
    expected = torch.zeros(5)
    expected[:ranks] = 1
    expected[3] = 2 * ranks
    assert torch.equal(sparse.to_dense(), expected)


def test_tensors_need_not_be_in_one_piece(ranks):
    ranks(strided, 2)


def asynchronous(rank, ranks):
    tensors = [torch.full((1000,), float(i)) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    last = torch.zeros(1)
    dist.all_reduce(last)  # comes after them
    assert all(work.is_completed() for work in works)
    for i, work in reversed(list(enumerate(works))):
        assert work.wait() is not False
        assert torch.equal(tensors[i], torch.full((1000,), float(i * ranks)))
    future = dist.all_reduce(tensors[1], async_op=True).get_future().then(
        lambda done: done.value()[0].sum())
    assert future.wait() == 1000 * ranks * ranks
    if rank == 0:  # the other one asks for it only when it has been told that this one went on
        work = dist.broadcast(last.fill_(5), 0, async_op=True)
        dist.send(torch.ones(1), 1)
        work.wait()
    else:
        dist.recv(torch.empty(1), 0)
        dist.broadcast(last, 0)
        assert last.item() == 5


def test_an_asynchronous_operation_lets_its_caller_go_on(ranks):
    ranks(asynchronous, 2)


def messages(rank, ranks):
    # In this order each rank's first send would wait for another rank's second recv, in a circle.
    others = [(rank + step) % ranks for step in range(1, ranks)]
    got = {other: torch.empty(1000) for other in others}
    works = []
    for other in others:
        works.append(dist.isend(torch.full((1000,), float(rank)), other))
        works.append(dist.irecv(got[other], other))
    for work in works:
        work.wait()
    assert all(got[other][999] == other for other in others)
    if rank == 0:
        for tag in (1, 2, 3):
            dist.send(torch.full((2,), tag), 1, tag=tag)
    elif rank == 1:
        for tag in (3, 1, 2):
            into = torch.zeros(4, dtype=torch.int64)[::2]
            dist.recv(into, 0, tag=tag)
            assert into.tolist() == [tag, tag]
    dist.barrier()
    if rank == 0:
        sources = set()
        for _ in range(ranks - 1):
            one = torch.empty(1)
            source = dist.recv(one)
            assert one.item() == source
            sources.add(source)
        assert sources == set(range(1, ranks))
    else:
        dist.send(torch.tensor([float(rank)]), 0)
    dist.barrier()  # what follows is for a source, too
    into = torch.empty(3, dtype=torch.bfloat16)
    for work in dist.batch_isend_irecv([
            dist.P2POp(dist.irecv, into, (rank - 1) % ranks),
            dist.P2POp(dist.isend, torch.full((3,), rank).bfloat16(), (rank + 1) % ranks)]):
        work.wait()
    assert into.tolist() == [float((rank - 1) % ranks)] * 3


def test_messages_come_in_any_order(ranks):
    ranks(messages, 3)


def groups(rank, ranks):
    pair, alone = dist.new_group([0, 2]), dist.new_group([1])
    if rank != 1:
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=pair)
        assert tensor.tolist() == [2, 2]
        assert dist.get_rank(pair) == rank // 2
        dist.broadcast(tensor.fill_(rank), 2, group=pair)
        assert tensor.tolist() == [2, 2]
    else:
        dist.barrier(group=alone)
    dist.destroy_process_group(alone if rank == 1 else pair)
    dist.barrier()


def test_groups_of_a_part_of_the_ranks(ranks):
    ranks(groups, 3)


def monitored(rank, ranks):
    group = dist.distributed_c10d._get_default_group()
    group.monitored_barrier(datetime.timedelta(seconds=30))
    if rank == 1:
        dist.recv(torch.empty(1), 0)
        return
    with pytest.raises(tutti.CommunicationError, match="Rank 1 failed to pass monitoredBarrier"):
        group.monitored_barrier(datetime.timedelta(seconds=0.3), wait_all_ranks=True)
    if rank == 0:
        dist.send(torch.ones(1), 1)


def test_a_monitored_barrier_names_who_does_not_come(ranks):
    ranks(monitored, 3)


# ------------------------------------------------------------------------------------- models


class Net(torch.nn.Module):
    """Of its two heads, one batch may use one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh())
        self.heads = torch.nn.ModuleList([torch.nn.Linear(32, 1), torch.nn.Linear(32, 1)])

    def forward(self, x, heads=(0, 1)):
        y = self.body(x)
        return sum(self.heads[head](y) for head in heads)


def batch(step, rank):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + rank))


def trained_alone(ranks, heads_of):
    """The parameters after steps of one process that has all batches."""
    net = Net()
    sgd = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for step in range(4):
        sgd.zero_grad()
        losses = [net(batch(step, r), heads_of(step, r)).square().mean() for r in range(ranks)]
        (sum(losses) / ranks).backward()
        sgd.step()
    return list(net.parameters())


def both_heads(step, rank):
    return (0, 1)


def one_head(step, rank):
    return ((step + rank) % 2,) if step else (0,)


def train_ddp(rank, ranks, heads_of):
    net = torch.nn.parallel.DistributedDataParallel(Net(), find_unused_parameters=True,
                                                    bucket_cap_mb=0.001)
    sgd = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for step in range(4):
        sgd.zero_grad()
        net(batch(step, rank), heads_of(step, rank)).square().mean().backward()
        sgd.step()
    for ours, theirs in zip(net.parameters(), trained_alone(ranks, heads_of)):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("heads_of", [both_heads, one_head])
def test_ddp_trains_as_one_process_does(ranks, heads_of):
    ranks(train_ddp, 2, heads_of)


def train_uneven(rank, ranks):
    net = torch.nn.parallel.DistributedDataParallel(Net())
    with net.join():
        for step in range(2 + rank):
            net(batch(step, rank)).square().mean().backward()
    embedding = torch.nn.parallel.DistributedDataParallel(torch.nn.Embedding(10, 3, sparse=True))
    embedding(torch.tensor([rank, 5])).sum().backward()
    dense = embedding.module.weight.grad.to_dense()
    assert dense[:, 0].tolist() == [0.5, 0.5, 0, 0, 0, 1, 0, 0, 0, 0]


def test_ddp_with_uneven_data_and_with_sparse_gradients(ranks):
    ranks(train_uneven, 2)


def train_sharded(rank, ranks):
    from torch.distributed.fsdp import FullyShardedDataParallel

    net = FullyShardedDataParallel(Net(), device_id=torch.device("cpu"))
    sgd = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for step in range(4):
        sgd.zero_grad()
        net(batch(step, rank)).square().mean().backward()
        sgd.step()
    with FullyShardedDataParallel.summon_full_params(net):
        for ours, theirs in zip(net.parameters(), trained_alone(ranks, both_heads)):
            torch.testing.assert_close(ours.reshape(theirs.shape), theirs)


def train_zero(rank, ranks):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = torch.nn.parallel.DistributedDataParallel(Net())
    sgd = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    for step in range(4):
        sgd.zero_grad()
        net(batch(step, rank)).square().mean().backward()
        sgd.step()
    for ours, theirs in zip(net.parameters(), trained_alone(ranks, both_heads)):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("train", [
    pytest.param(train_sharded, marks=pytest.mark.skipif(
        VERSION < (2, 2), reason="FSDP on CPUs needs PyTorch 2.2")), train_zero])
def test_sharded_training_is_that_of_one_process(ranks, train):
    ranks(train, 2)


# ------------------------------------------------------------------------------------- endings


def lose_a_rank(place, path, how):
    begin(place, path)
    net = torch.nn.parallel.DistributedDataParallel(Net())
    dist.barrier()
    if place.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError, match="rank 1") as caught:
        if how == "ddp":
            net(batch(0, 0)).square().mean().backward()
        elif how == "message":
            dist.recv(torch.empty(1), 1)
        else:
            dist.all_reduce(torch.ones(3))
    return str(caught.value)


@pytest.mark.parametrize("how", ["all_reduce", "message", "ddp"])
def test_a_killed_rank_is_named(tmp_path, how):
    outcomes, _ = launching.outcomes_of(lose_a_rank, 3, "fork", str(tmp_path / "store"), how)
    assert outcomes[1] is None
    for rank in (0, 2):
        assert outcomes[rank][0] == "value", outcomes[rank]
        assert "rank 1" in outcomes[rank][1]


def disagree(place, path):
    begin(place, path)
    with pytest.raises(RuntimeError, match="all_reduce"):
        dist.all_reduce(torch.ones(3 + place.rank))


def test_ranks_that_disagree_are_told(tmp_path):
    launching.run(disagree, 2, "fork", str(tmp_path / "store"))


def begin_twice(place, path):
    for _ in range(2):
        begin(place, path)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == place.ranks
        dist.destroy_process_group()
    begin(place, path)
    dist.all_reduce(torch.ones(10**6), async_op=True)  # the interpreter ends without destroying it


def test_a_group_can_be_made_again_and_left(tmp_path):
    launching.run(begin_twice, 2, "spawn", str(tmp_path / "store"))


def on_hosts(place, path):
    os.environ["TUTTI_HOST_ID"] = f"host{place.rank}"
    with pytest.raises(tutti.BackendUnavailable, match="several hosts.*mpiexec"):
        begin(place, path)


def test_ranks_on_several_hosts_need_mpi(tmp_path):
    launching.run(on_hosts, 2, "fork", str(tmp_path / "store"))


def by_mpi(place, path):
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    os.environ["TUTTI_HOST_ID"] = f"host{rank % 2}"
    place.rank, place.ranks = 2 - rank, 3  # in another order than MPI's
    begin(place, path)
    group = dist.new_group([0, 2])
    tensor = torch.tensor([float(place.rank)])
    if place.rank != 1:
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == 2
    got = torch.empty(3)
    dist.all_gather_into_tensor(got, torch.tensor([float(place.rank)]))
    assert got.tolist() == [0, 1, 2]
    dist.send(got, (place.rank + 1) % 3)
    dist.recv(got, (place.rank + 2) % 3)
    dist.barrier()
    dist.destroy_process_group()


def test_ranks_on_several_hosts_meet_by_mpi(tmp_path):
    launching.run(by_mpi, 3, "mpi", str(tmp_path / "store"))
