"""The backend "tutti" of torch.distributed on tensors of a GPU. Skips itself where there is none."""

import datetime
import traceback

import pytest

import launching
import tutti

torch = pytest.importorskip("torch", minversion="2.1")
dist = pytest.importorskip("torch.distributed")
import tutti.torch  # noqa: E402 - registers the backend

OP = dist.ReduceOp


def sums(rank, ranks, device):
    for dtype in (torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
                  torch.float64):
        given = torch.tensor([1, 2, 3], device=device).to(dtype)
        everybody = torch.stack([given + r for r in range(ranks)]).double()
        for op, expected in ((OP.SUM, everybody.sum(0)), (OP.MAX, everybody.amax(0)),
                             (OP.MIN, everybody.amin(0)), (OP.PRODUCT, everybody.prod(0))):
            tensor = given + rank
            dist.all_reduce(tensor, op)
            assert torch.equal(tensor, expected.to(dtype)), (dtype, op)
    average = torch.full((5,), float(rank), device=device)
    dist.all_reduce(average, OP.AVG)
    assert average.tolist() == [(ranks - 1) / 2] * 5
    flags = torch.tensor([rank == 0, False], device=device)
    dist.all_reduce(flags)
    assert flags.tolist() == [True, False]
    column = torch.ones(4, 3, device=device)[:, 1]
    dist.all_reduce(column)
    assert column.tolist() == [ranks] * 4


def moves(rank, ranks, device):
    mine = torch.arange(4, device=device).reshape(2, 2) + rank
    everybody = [torch.arange(4, device=device).reshape(2, 2) + r for r in range(ranks)]
    parts = [torch.empty_like(mine) for _ in range(ranks)]
    dist.all_gather(parts, mine)
    assert all(map(torch.equal, parts, everybody))
    whole = torch.empty((2 * ranks, 2), dtype=mine.dtype, device=device)
    dist.all_gather_into_tensor(whole, mine)
    assert torch.equal(whole, torch.cat(everybody))
    part = mine.clone()
    dist.broadcast(part, ranks - 1)
    assert torch.equal(part, everybody[-1])
    dist.reduce(part, 0)
    assert rank != 0 or torch.equal(part, ranks * everybody[-1])
    total = torch.empty(2, device=device)
    dist.reduce_scatter_tensor(total, torch.arange(2.0 * ranks, device=device))
    assert total.tolist() == [ranks * 2.0 * rank, ranks * (2.0 * rank + 1)]
    out = torch.empty(ranks, device=device)
    dist.all_to_all_single(out, torch.arange(float(ranks), device=device) + 10 * rank)
    assert out.tolist() == [10.0 * r + rank for r in range(ranks)]
    dist.barrier()
    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(ranks)]


def messages(rank, ranks, device):
    for length in (1, 1 << 16):  # copied, and waiting for its recv
        sent = torch.arange(float(length), device=device) + rank
        got = torch.zeros(2 * length, device=device)[::2]
        work = dist.isend(sent, (rank + 1) % ranks)
        dist.recv(got, (rank - 1) % ranks)
        work.wait()
        assert torch.equal(got, torch.arange(float(length), device=device) + (rank - 1) % ranks)


def streams(rank, ranks, device):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        late = torch.full((1 << 20,), float(rank), device=device)
        dist.all_reduce(late, async_op=True).wait()
    assert (late == sum(range(ranks))).all()
    tensor = torch.ones(1000, device=device)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    assert future.then(lambda done: done.value()[0].sum()).wait().item() == 1000 * ranks


def threads_of_their_own(rank, ranks, device):
    """What messages and sparse sums do on threads comes after their caller's stream, and before what
    waits for them."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for length in (1, 1 << 20):
            got = torch.zeros(length, device=device)
            torch.cuda._sleep(50_000_000)
            late = torch.full((length,), rank + 1.0, device=device)
            works = [dist.isend(late, (rank + 1) % ranks), dist.irecv(got, (rank - 1) % ranks)]
            for work in works:
                work.wait()
            assert (got == (rank - 1) % ranks + 1.0).all()
        torch.cuda._sleep(50_000_000)
        late = torch.sparse_coo_tensor(torch.tensor([[rank]], device=device),
                                       torch.full((1,), 2.0, device=device), (ranks,))
        work = dist.all_reduce(late, async_op=True)
        work.wait()
        assert late.to_dense().tolist() == [2.0] * ranks
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.cuda.current_device() == device.index


def sparse(rank, ranks, device):
    tensor = torch.sparse_coo_tensor([[rank, 3]], [1.0, 2.0], (5,), device=device)
    dist.all_reduce(tensor)
    expected = [1.0 if i < ranks else 0.0 for i in range(5)]
    expected[3] = 2.0 * ranks
    assert tensor.to_dense().tolist() == expected


def _net(device):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1)).to(device)


def _batch(step, rank, device):
    return torch.randn(8, 20, generator=torch.Generator().manual_seed(100 * step + rank)).to(device)


def _alone(ranks, device):
    net = _net(device)
    sgd = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for step in range(4):
        sgd.zero_grad()
        (sum(net(_batch(step, r, device)).square().mean() for r in range(ranks)) / ranks).backward()
        sgd.step()
    return list(net.parameters())


def _check(net, ranks, device, tolerance):
    for mine, expected in zip(net.parameters(), _alone(ranks, device)):
        torch.testing.assert_close(mine, expected, rtol=tolerance, atol=tolerance)
        root = mine.detach().clone()
        dist.broadcast(root, 0)
        assert torch.equal(mine, root)  # to the bit


def data_parallel(rank, ranks, device):
    for mode in (None, "fp32", "fp16", "sparseTopK"):
        ddp = torch.nn.parallel.DistributedDataParallel(_net(device), device_ids=[device.index])
        if mode:
            options = {"spars": 1.0} if mode == "sparseTopK" else {}
            ddp.register_comm_hook(tutti.torch.hooks.State(ddp, mode, **options), tutti.torch.hooks.hook)
        sgd = torch.optim.SGD(ddp.parameters(), 0.1, momentum=0.9)
        for step in range(4):
            sgd.zero_grad()
            ddp(_batch(step, rank, device)).square().mean().backward()
            sgd.step()
        _check(ddp.module, ranks, device, 1e-2 if mode == "fp16" else 1e-5)


def optimizer(rank, ranks, device):
    for mode in ("fp32", "bf16", "sparseTopK"):
        net = _net(device)
        options = {"spars": 1.0} if mode == "sparseTopK" else {}
        sgd = tutti.torch.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), 0.1, momentum=0.9), net.named_parameters(), mode=mode,
            **options)
        for step in range(4):
            sgd.zero_grad()
            net(_batch(step, rank, device)).square().mean().backward()
            sgd.step()
        _check(net, ranks, device, 2e-2 if mode == "bf16" else 1e-5)
    table = torch.nn.Embedding(10, 3, sparse=True).to(device)
    tutti.torch.broadcast_parameters(table)
    before = table.weight.detach().clone()
    sgd = tutti.torch.DistributedOptimizer(torch.optim.SGD(table.parameters(), 1.0),
                                           table.named_parameters())
    table(torch.tensor([rank], device=device)).sum().backward()
    sgd.step()
    before[:ranks] -= 1 / ranks
    torch.testing.assert_close(table.weight.detach(), before)
    assert tutti.torch.average(torch.full((2,), float(rank), device=device)).tolist() == [
        (ranks - 1) / 2] * 2


WHAT = (sums, moves, messages, streams, threads_of_their_own, sparse, data_parallel, optimizer)


def _outcome(call, *arguments):
    try:
        call(*arguments)
    except Exception:
        return traceback.format_exc()
    return ""


def everything(place, path):
    """The number of ranks; what each test raised, or ""."""
    device = torch.device("cuda", place.rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("tutti", store=dist.FileStore(path, place.ranks), rank=place.rank,
                            world_size=place.ranks, timeout=datetime.timedelta(seconds=30))
    outcomes = {test.__name__: _outcome(test, place.rank, place.ranks, device) for test in WHAT}
    dist.destroy_process_group()
    return place.ranks, outcomes


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Of each rank. One launch: PyTorch starts slowly."""
    if tutti._core.gpu_count() == 0:
        pytest.skip("no GPU")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no GPU")
    return launching.run(everything, 2, "spawn", str(tmp_path_factory.mktemp("group") / "store"))


@pytest.mark.parametrize("test", [test.__name__ for test in WHAT])
def test_on_two_ranks(outcomes, test, record_property):
    record_property("world_size", outcomes[0][0])
    for rank, (ranks, errors) in enumerate(outcomes):
        assert ranks == 2
        assert errors[test] == "", f"rank {rank}: {errors[test]}"
