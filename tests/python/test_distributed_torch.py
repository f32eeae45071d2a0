"""tutti.distributed with PyTorch: gradients of collectives against those of one process, and
pipelines."""

import numpy
import pytest

import tutti
import tutti.distributed as dist
from tutti.distributed import functional as F

torch = pytest.importorskip("torch")
# What PyTorch imports at its first use, forked ranks need not import each.
torch.testing.assert_close(torch.ones(1), torch.ones(1))
torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0).step()

RANKS = 2
SHAPE = (4, 2, 6)


def inputs(requires_grad=True):
    """Those of all ranks, which each rank knows."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(SHAPE, generator=generator, dtype=torch.float64).requires_grad_(requires_grad)
            for _ in range(RANKS)]


def weights(shape):
    """For each rank, what the loss weighs its result with."""
    return [torch.arange(1.0, 1 + numpy.prod(shape), dtype=torch.float64).reshape(shape).cos() + rank
            for rank in range(RANKS)]


def results_by_one(name, xs, axis):
    """What the ranks get, None for no result, computed by one process."""
    total = sum(xs)
    if name == "all_reduce_sum":
        return [total] * RANKS
    if name == "reduce_sum":
        return [total, None]
    if name == "broadcast":
        return [xs[0] * 1] * RANKS
    if name == "all_gather":
        return [torch.cat(xs, axis)] * RANKS
    if name == "gather":
        return [torch.cat(xs, axis), None]
    if name == "reduce_scatter_sum":
        return list(total.chunk(RANKS, axis))
    if name == "scatter":
        return list(xs[0].chunk(RANKS, axis))
    if name == "all_to_all":
        return [torch.cat([x.chunk(RANKS, axis)[rank] for x in xs], 1) for rank in range(RANKS)]
    most = torch.stack(xs).amax(0) if name == "all_reduce_max" else torch.stack(xs).amin(0)
    return [most] * RANKS


def gradients(name, axis):
    rank = dist.get_rank()
    theirs = inputs()
    results = results_by_one(name, theirs, axis)
    loss = sum((result * weight).sum() for result, weight in zip(
        results, weights(results[0].shape)) if result is not None)
    loss.backward()

    mine = inputs()[rank]
    axes = {} if "reduce_" in name and "scatter" not in name or name == "broadcast" else {"axis": axis}
    if name == "all_to_all":
        axes = {"split_axis": axis, "concat_axis": 1}
    given = None if rank > 0 and name in ("broadcast", "scatter") else mine
    with dist.GradManager() as gm:
        result = getattr(F, name)(given, **axes)
        if results[rank] is None:
            assert result is None
            gm.backward()
        else:
            torch.testing.assert_close(result, results[rank])
            gm.backward((result * weights(result.shape)[rank]).sum())
    if given is not None:
        torch.testing.assert_close(mine.grad, theirs[rank].grad)
    with torch.no_grad():
        result = getattr(F, name)(given, **axes)
        assert result is None or not result.requires_grad


@pytest.mark.parametrize("name", [name for name in F.__all__ if not name.startswith("remote")])
def test_gradients(name):
    with_axis = name in ("all_gather", "gather", "reduce_scatter_sum", "scatter", "all_to_all")
    for axis in (0, 1, 2) if with_axis else (0,):
        dist.launcher(gradients, n_gpus=RANKS)(name, axis)


def dtypes():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.bool):
        x = torch.ones(3, 2).to(dtype)
        assert F.all_reduce_max(x).dtype == dtype
        assert F.broadcast(x if dist.get_rank() == 0 else None).dtype == dtype
        if dist.get_rank() == 0:
            F.remote_send(x.t(), 1)
        else:
            assert torch.equal(F.remote_recv(0, shape=(2, 3), dtype=dtype), x.t())
    if dist.get_rank() == 0:
        F.remote_send(numpy.arange(3), 1)
        F.remote_send(numpy.arange(3), 1)
    else:
        assert isinstance(F.remote_recv(0), numpy.ndarray)
        assert torch.equal(F.remote_recv(0, inp=torch.zeros(1)), torch.arange(3))
    assert F.all_gather(torch.tensor(dist.get_rank()), device="cpu").tolist() == [0, 1]
    x = torch.ones(2, requires_grad=True)
    if dist.get_rank() == 1:
        with pytest.raises(tutti.InvalidArgument, match="reduce_sum gives this rank nothing"):
            F.reduce_sum(x)


def test_dtypes_and_devices():
    dist.launcher(dtypes, n_gpus=2)()


def many_numbers():
    x = torch.ones(1 << 22)
    return (x + x).sum().item()


def test_a_forked_rank_does_not_wait_for_the_threads_of_its_parent():
    torch.set_num_threads(2)
    assert many_numbers() == 2 << 22  # on OpenMP's threads
    assert dist.launcher(many_numbers, n_gpus=2)() == [2 << 22] * 2


# --- Pipelines ------------------------------------------------------------------------------------


def stages():
    torch.manual_seed(0)
    return torch.nn.Linear(5, 4), torch.nn.Linear(4, 3)


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 5, generator=generator), torch.randn(8, 3, generator=generator)


def train_by_one():
    model = torch.nn.Sequential(*stages())
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = batch()
    losses = []
    for _ in range(5):
        sgd.zero_grad()
        losses.append((model(x) - y).square().mean())
        losses[-1].backward()
        sgd.step()
    return [loss.item() for loss in losses], [p.detach().numpy() for p in model.parameters()]


def pipeline(parts):
    """Rank 0 has the first layer, rank 1 the second; `parts` of a batch are under way at once."""
    rank = dist.get_rank()
    layer = stages()[rank]
    sgd = torch.optim.SGD(layer.parameters(), lr=0.1)
    x, y = batch()
    losses = []
    for _ in range(5):
        sgd.zero_grad()
        with dist.GradManager().attach(layer.parameters()) as gm:
            if rank == 0:
                for part in x.chunk(parts):
                    F.remote_send(layer(part), 1)
                gm.backward([])
            else:
                loss = 0
                for part in y.chunk(parts):
                    loss = loss + (layer(F.remote_recv(0)) - part).square().mean() / parts
                gm.backward(loss)
                losses.append(loss.item())
        sgd.step()
    return losses, [p.detach().numpy() for p in layer.parameters()]


@pytest.mark.skipif(not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"),
                    reason="PyTorch 2.1 brought hooks of gradients")
@pytest.mark.parametrize("parts", [1, 4])
def test_a_pipeline_trains_as_one_process_does(parts):
    losses, expected = train_by_one()
    (_, first), (found, second) = dist.launcher(pipeline, n_gpus=2)(parts)
    numpy.testing.assert_allclose(found, losses, rtol=1e-5)
    assert found[-1] < found[0]
    for parameter, wanted in zip(first + second, expected):
        numpy.testing.assert_allclose(parameter, wanted, rtol=1e-5, atol=1e-7)


def one_by_one():
    """Without a GradManager; the backward passes in another order than the forward ones."""
    rank = dist.get_rank()
    x = [torch.full((3,), float(i), requires_grad=True) for i in range(3)]
    if rank == 0:
        zeros = [F.remote_send(2 * one, 1) for one in x]
        for i in (1, 0, 2):
            zeros[i].backward()
        assert [one.grad.tolist() for one in x] == [[2.0 * i] * 3 for i in range(3)]
        assert F.remote_send(x[0].detach(), 1) is None
        with torch.no_grad():
            assert F.remote_send(x[0], 1) is None
    else:
        got = [F.remote_recv(0) for _ in range(3)]
        for i in (2, 0, 1):
            (i * got[i]).sum().backward()
        assert not F.remote_recv(0).requires_grad and not F.remote_recv(0).requires_grad


def test_messages_one_by_one():
    dist.launcher(one_by_one, n_gpus=2)()


def unused():
    """What has no part in the receiver's loss has no gradient, and nobody waits for one."""
    rank = dist.get_rank()
    x = torch.ones(3, requires_grad=True)
    y = torch.ones(2, requires_grad=True)
    with dist.GradManager() as gm:
        if rank == 0:
            F.remote_send(2 * x, 1)
            F.remote_send(3 * y, 1)
            gm.backward()
            assert x.grad.tolist() == [0, 0, 0] and y.grad.tolist() == [3, 3]
        else:
            F.remote_recv(0)
            gm.backward(F.remote_recv(0).sum())
    with dist.GradManager() as gm:
        if rank == 0:
            F.remote_send(x * 1, 1)
            gm.backward()
        else:
            F.remote_recv(0)  # and no backward pass at all
    if rank == 0:
        F.remote_send(x * 1, 1).backward()
    else:
        with torch.no_grad():
            F.remote_recv(0)


def test_values_that_are_not_used():
    dist.launcher(unused, n_gpus=2)()


def two_losses(at_once):
    with dist.GradManager() as gm:
        if dist.get_rank() == 0:
            x = [torch.ones(2, requires_grad=True) for _ in range(2)]
            for one in x:
                F.remote_send(1 * one, 1)
            gm.backward([])
            return [one.grad.tolist() for one in x]
        first, second = F.remote_recv(0), F.remote_recv(0)
        if at_once:
            gm.backward([first.sum(), 3 * second.sum()])
        else:
            gm.backward(first.sum())
            gm.backward(3 * second.sum())
        return None


def test_two_losses_are_one_pass():
    assert dist.launcher(two_losses, n_gpus=2)(True)[0] == [[1.0] * 2, [3.0] * 2]
    with pytest.raises(dist.RankFailed, match="^rank 1 failed: .*InvalidArgument: .* list of all"):
        dist.launcher(two_losses, n_gpus=2)(False)
