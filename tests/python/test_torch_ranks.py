"""What ranks of PyTorch do together beside a step: broadcasts, metrics, and loops of different
length."""

import pytest

import tutti
from torch_group import Net, batch, dist, ranks, sgd_of, torch  # noqa: F401 - ranks is a fixture
from torch_modes import Given
from tutti.torch import (
    DistributedOptimizer,
    average,
    broadcast_optimizer_state,
    broadcast_parameters,
)


def broadcast(rank, ranks):
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).double()
    with torch.no_grad():
        for tensor in net.state_dict().values():
            tensor.fill_(rank)
    broadcast_parameters(net, root=1)
    assert all((tensor == 1).all() for tensor in net.state_dict().values())
    with torch.no_grad():
        net[0].weight.fill_(rank)
    broadcast_parameters(net.state_dict())
    assert (net[0].weight == 0).all()
    broadcast_parameters(net.named_parameters(), root=ranks - 1)
    odd = torch.full((4, 4), float(rank))
    broadcast_parameters([("odd", odd[:, ::2])], root=1)
    assert odd[0].tolist() == [1.0, rank, 1.0, rank]
    with pytest.raises(tutti.MismatchError, match="parameter #0 is 'a' .2. float32 on rank 0, but "
                                                  "'b' .2. float32 on rank 1"):
        broadcast_parameters([("a" if rank == 0 else "b", torch.zeros(2))])
    with pytest.raises(tutti.MismatchError, match="parameter #1 is nothing on rank 0, but 'b'"):
        broadcast_parameters([("a", torch.zeros(2)), ("b", torch.zeros(2))][:rank + 1])
    with pytest.raises(tutti.MismatchError, match="parameter #0 is 'a' .2. float32 on rank 0, but "
                                                  "nothing on rank 1"):
        broadcast_parameters({} if rank else {"a": torch.zeros(2)})
    with pytest.raises(tutti.MismatchError, match="parameter #0 is nothing on rank 0, but 'a'"):
        broadcast_parameters({"a": torch.zeros(2)} if rank else {})
    broadcast_parameters({})


def test_parameters_are_broadcast(ranks):
    ranks(broadcast, 3)


def broadcast_state(rank, ranks):
    """Rank 0 has loaded a checkpoint, say; the others have made no step yet."""
    for kind in (torch.optim.Adam, torch.optim.Adagrad):
        net = Net()
        optimizer = kind(net.parameters(), lr=0.1 + rank)
        if rank == 0:
            net(batch(0, 0)).sum().backward()
            optimizer.step()
        broadcast_optimizer_state(optimizer)
        assert optimizer.param_groups[0]["lr"] == 0.1
        state = optimizer.state[net.body[0].weight]
        assert float(state["step"]) == 1
        sums = [torch.zeros_like(value) for _ in range(ranks) for value in [
            next(value for key, value in state.items() if key != "step")]]
        dist.all_gather(sums, next(value for key, value in state.items() if key != "step"))
        assert all(torch.equal(one, sums[0]) for one in sums)
        optimizer.zero_grad()
        net(batch(1, 0)).sum().backward()
        optimizer.step()  # goes on from there


def test_an_optimisers_state_is_broadcast(ranks):
    ranks(broadcast_state, 2)


def broadcast_what_cannot_be_saved(rank, ranks):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], 1.0 + rank)
    optimizer.param_groups[0]["odd"] = (lambda: 0) if rank == 1 else 0
    expected = (Exception, "pickle") if rank == 1 else (
        tutti.InvalidArgument, "rank 1, the root, could not save the optimiser's state: .*pickle")
    with pytest.raises(expected[0], match=expected[1]):
        broadcast_optimizer_state(optimizer, root=1)
    assert optimizer.param_groups[0]["lr"] == 1.0 + rank
    broadcast_optimizer_state(optimizer, root=0)
    assert optimizer.param_groups[0]["lr"] == 1.0


def test_a_state_that_cannot_be_saved_is_refused_on_all_ranks(ranks):
    ranks(broadcast_what_cannot_be_saved, 3)


class Counting(torch.optim.SGD):
    """Another library's wrapper, whose state is more than that of what it wraps."""

    def __init__(self, optimizer, count):
        super().__init__(optimizer.param_groups[0]["params"], 1.0)
        self.optimizer, self.count = optimizer, count

    def state_dict(self):
        return {**super().state_dict(), "count": self.count}

    def load_state_dict(self, state):
        state = dict(state)
        self.count = state.pop("count")
        super().load_state_dict(state)


def broadcast_wrapped(rank, ranks):
    part = torch.nn.Parameter(torch.zeros(2))
    optimizer = Counting(torch.optim.SGD([part], 1.0 + rank), 5 + rank)
    broadcast_optimizer_state(optimizer)
    assert optimizer.count == 5 and optimizer.optimizer.param_groups[0]["lr"] == 1.0 + rank
    ours = DistributedOptimizer(optimizer.optimizer, mode="sparseTopK")
    broadcast_optimizer_state(ours)
    assert ours.param_groups[0]["lr"] == 1.0


def test_wrapped_optimisers_keep_their_own_state(ranks):
    ranks(broadcast_wrapped, 2)


def metrics(rank, ranks):
    assert average(rank + 0.5, "loss") == (ranks - 1) / 2 + 0.5
    assert average(torch.tensor([rank, 1]), "right").tolist() == [(ranks - 1) / 2, 1.0]
    assert average(torch.tensor([1j * rank])).tolist() == [1j * (ranks - 1) / 2]
    half = average(torch.tensor([1.0 + rank]).bfloat16())
    assert half.dtype == torch.bfloat16 and half.item() == 2.0
    work = dist.all_reduce(torch.ones(10**6), async_op=True)
    assert average(1) == 1.0  # comes after it
    assert work.is_completed()
    with pytest.raises(tutti.MismatchError, match="the metric is 'loss' on rank 0, but 'accuracy' on "
                                                  "rank 2"):
        average(1.0, "accuracy" if rank == 2 else "loss")
    with pytest.raises(tutti.MismatchError, match="metric #0 is 'loss' .3. float32 on rank 0"):
        average(torch.ones(3 + rank), "loss")
    assert average(2.0) == 2.0  # a name that differs breaks nothing
    assert dist.group.WORLD.communicator.local_rank == rank  # hvd.local_rank(), under any launcher


def test_metrics_are_averaged(ranks):
    ranks(metrics, 3)


def with_another_default_device(rank, ranks):
    net, data = Net(), [batch(step, rank) for step in range(2)]
    sparse = torch.sparse_coo_tensor([[rank]], [1.0], (ranks,))
    mine = torch.full((2,), float(rank))
    table, row = torch.nn.Embedding(2, 1, sparse=True, _weight=torch.ones(2, 1)), torch.tensor([1])
    torch.set_default_device("meta")  # as a GPU may be, beside which tensors of a CPU travel
    assert average(float(rank)) == (ranks - 1) / 2
    assert average(mine).tolist() == [(ranks - 1) / 2] * 2
    broadcast_parameters(net)
    for mode in ("fp32", "fp16", "sparseTopK"):
        options = {"spars": 0.5} if mode == "sparseTopK" else {}
        sgd = DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1), net.named_parameters(),
                                   mode=mode, **options)
        for x in data:
            sgd.zero_grad()
            net(x).square().mean().backward()
            sgd.step()
        broadcast_optimizer_state(sgd)
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [1.0] * ranks
    sgd = DistributedOptimizer(torch.optim.SGD(table.parameters(), 1.0), table.named_parameters())
    for _ in range(2):
        sgd.zero_grad()
        if rank == 0:  # the other one has no gradient
            table(row).sum().backward()
        sgd.step()
    assert table.weight.tolist() == [[1.0], [1.0 - 2 / ranks]]


def test_the_default_device_may_be_another(ranks):
    ranks(with_another_default_device, 2)


def train_uneven(rank, ranks, mode):
    """Rank r has r + 1 batches; the others' count with zero gradients."""
    net = Net()
    options = {"spars": 1.0} if mode == "sparseTopK" else {}
    optimizer = DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1, momentum=0.9),
                                     net.named_parameters(), mode=mode, bucket_cap_mb=0.0001,
                                     **options)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    with optimizer.join():
        for step in range(rank + 1):
            optimizer.zero_grad()
            net(batch(step, rank)).square().mean().backward()
            optimizer.step()
            scheduler.step()
    alone = Net()
    sgd = sgd_of(alone)
    for step in range(ranks):
        sgd.zero_grad()
        (sum(alone(batch(step, r)).square().mean() for r in range(step, ranks)) / ranks).backward()
        sgd.step()
        sgd.param_groups[0]["lr"] *= 0.9
    for ours, theirs in zip(net.parameters(), alone.parameters()):
        torch.testing.assert_close(ours, theirs)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(sgd.param_groups[0]["lr"])
    for ours, theirs in zip(net.parameters(), alone.parameters()):
        torch.testing.assert_close(optimizer.state[ours]["momentum_buffer"],
                                   sgd.state[theirs]["momentum_buffer"])


@pytest.mark.parametrize("mode", ["fp32", "sparseTopK"])
def test_loops_may_differ_in_length(ranks, mode):
    ranks(train_uneven, 3, mode)


def join_without_a_step(rank, ranks):
    """Rank 1 has no data at all, and so never a bucket of its own making."""
    net = Given([(3,)])
    optimizer = DistributedOptimizer(torch.optim.SGD(net.parameters(), 1.0))
    with optimizer.join():
        for _ in range(2 * (1 - rank)):
            optimizer.zero_grad()
            net([torch.ones(3)]).backward()
            optimizer.step()
    assert net.parts[0].tolist() == [-1.0] * 3


def test_a_rank_may_have_no_data(ranks):
    ranks(join_without_a_step, 2)
