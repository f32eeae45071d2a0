"""DistributedOptimizer: what it averages, in which modes, and what it refuses."""

import io

import pytest

import launching
import tutti
from torch_group import (  # noqa: F401 - ranks is a fixture
    VERSION,
    Net,
    batch,
    begin,
    both_heads,
    dist,
    one_head,
    ranks,
    sgd_of,
    torch,
    trained_alone,
)
from torch_modes import MODES, Alone, Given, gradients
from tutti.torch import DistributedOptimizer, _buckets

SHAPES = [(7, 5), (30,), (4, 3, 2)]


def distributed(net, optimizer=None, **options):
    optimizer = optimizer or torch.optim.SGD(net.parameters(), 1.0)
    return DistributedOptimizer(optimizer, net.named_parameters(), **options)


def flat_of(net):
    return torch.cat([part.grad.flatten() for part in net.parts])


def average_in_modes(rank, ranks):
    for seed, (mode, options) in enumerate(MODES):
        net = Given(SHAPES)
        optimizer = distributed(net, mode=mode, **options)
        alone = Alone(ranks, mode, **options)
        for step in range(6):
            optimizer.zero_grad()
            net(gradients(step, rank, SHAPES, seed)).backward()
            optimizer.synchronize()
            expected = alone.average([gradients(step, r, SHAPES, seed) for r in range(ranks)])
            if options.get("clip_norm"):  # norms are summed in another order
                torch.testing.assert_close(flat_of(net), expected, rtol=1e-5, atol=1e-6)
            else:
                assert torch.equal(flat_of(net), expected), (mode, step)


@pytest.mark.parametrize("count", [2, 3])
def test_it_averages_as_its_mode_does(ranks, count):
    ranks(average_in_modes, count)


OPTIMIZERS = {
    "sgd": sgd_of,
    "adamw": lambda net: torch.optim.AdamW(net.parameters(), 0.01, weight_decay=0.1),
    "adagrad": lambda net: torch.optim.Adagrad(net.parameters(), 0.05),
}


def train(rank, ranks, name, heads_of, cap):
    """In buckets of a parameter each, and of all."""
    net = Net()
    if rank:  # what it begins with is rank 0's
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(rank)
    tutti.torch.broadcast_parameters(net)
    optimizer = distributed(net, OPTIMIZERS[name](net), bucket_cap_mb=cap)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    for step in range(4):
        optimizer.zero_grad()
        net(batch(step, rank), heads_of(step, rank)).square().mean().backward()
        optimizer.step()
        scheduler.step()
    for ours, theirs in zip(net.parameters(), trained_alone(ranks, heads_of, OPTIMIZERS[name])):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("heads_of", [both_heads, one_head])
@pytest.mark.parametrize("name,cap", [("sgd", 25), ("adamw", 1e-6), ("adagrad", 0.0005)])
def test_it_trains_as_one_process_does(ranks, name, heads_of, cap):
    ranks(train, 2 if heads_of is one_head else 3, name, heads_of, cap)


def unused(rank, ranks):
    """Rank r has gradients of parts[r] alone, parts[2] has none at first."""
    net = Given([(3,), (3,), (3,)])
    optimizer = distributed(net, bucket_cap_mb=1e-6)
    for step in range(3):
        optimizer.zero_grad()
        used = [i == rank or (i == 2 and step == 2 and rank == 1) for i in range(3)]
        net([torch.full((3,), 2.0) if is_used else None for is_used in used]).backward()
        optimizer.step()
        assert [part.grad is None for part in net.parts] == [False, False, step < 2]
        assert all(part.grad.tolist() == [1.0] * 3 for part in net.parts if part.grad is not None)
    net.parts[0].requires_grad_(False)
    optimizer.zero_grad()
    net([None, torch.ones(3), None]).backward()
    optimizer.step()
    assert net.parts[0].grad is None and net.parts[1].grad.tolist() == [1.0] * 3
    net.parts[0].requires_grad_(True)  # once more a part of the graph
    optimizer.zero_grad()
    net([torch.full((3,), float(rank)), None, None]).backward()
    optimizer.step()
    assert net.parts[0].grad.tolist() == [0.5] * 3 and net.parts[1].grad is None


def test_a_parameter_may_have_no_gradient_on_some_ranks(ranks):
    ranks(unused, 2)


def thaw(rank, ranks):
    """A parameter that was frozen when the optimiser was wrapped is like any other one after."""
    net = Given([(3,), (3,)])
    net.parts[1].requires_grad_(False)
    optimizer = distributed(net)
    for step in range(3):
        optimizer.zero_grad()
        net([torch.full((3,), float(rank))] * 2).backward()
        optimizer.step()
        assert net.parts[0].grad.tolist() == [0.5] * 3
        assert (net.parts[1].grad is None) == (step == 0)
        net.parts[1].requires_grad_(True)
    assert net.parts[1].tolist() == [-1.0] * 3
    with pytest.raises(RuntimeError, match="'parts.1' was computed 2 times"):
        for _ in range(2):
            net([None, torch.ones(3)]).backward()
    optimizer.synchronize()


def test_a_frozen_parameter_may_thaw(ranks):
    ranks(thaw, 2)


def accumulate(rank, ranks):
    net = Given([(3,), (2,)])
    optimizer = distributed(net, backward_passes_per_step=2)
    for step in range(3):
        optimizer.zero_grad(set_to_none=step == 1)
        for _ in range(2):
            net([torch.full((3,), 1.0 + rank), torch.ones(2)]).backward()
        optimizer.step()
        assert net.parts[0].grad.tolist() == [3.0] * 3 and net.parts[1].grad.tolist() == [2.0] * 2
    with pytest.raises(RuntimeError, match="'parts.[01]' was computed 3 times.*is 2"):
        for _ in range(3):
            net([torch.ones(3), torch.ones(2)]).backward()
    with pytest.raises(tutti.InvalidArgument, match="zero_grad.. was called while"):
        optimizer.zero_grad()
    with pytest.raises(tutti.InvalidArgument, match="changed while they were under way"):
        optimizer.synchronize()  # by the third pass
    optimizer.zero_grad()
    optimizer = distributed(net)
    for _ in range(2):
        optimizer.zero_grad()
        with optimizer.no_sync():
            net([torch.full((3,), float(rank)), torch.ones(2)]).backward()
            assert net.parts[0].grad.tolist() == [float(rank)] * 3
            with pytest.raises(tutti.InvalidArgument, match="no_sync"):
                optimizer.step()
        net([torch.ones(3), None]).backward()  # the other part has what it got inside
        optimizer.step()
        assert net.parts[0].grad.tolist() == [1.5] * 3 and net.parts[1].grad.tolist() == [1.0] * 2
    with pytest.raises(RuntimeError, match="inside no_sync"), optimizer.no_sync():
        optimizer.zero_grad()
        optimizer._gradients.is_held = False
        net([torch.ones(3), torch.ones(2)]).backward()
        optimizer._gradients.is_held = True
        net([torch.ones(3), torch.ones(2)]).backward()
    with pytest.raises(tutti.InvalidArgument, match="changed while they were under way"):
        optimizer.synchronize()


def test_gradients_may_be_accumulated(ranks):
    ranks(accumulate, 2)


def clip(rank, ranks):
    net = Given([(3,), (4,)])
    embedding = torch.nn.Embedding(10, 2, sparse=True)
    optimizer = distributed(torch.nn.ModuleDict({"net": net, "embedding": embedding}))
    loss = net([torch.full((3,), 4.0 * rank), torch.full((4,), 1.0)])
    (loss + embedding(torch.tensor([rank])).sum() * 2).backward()
    norm = optimizer.clip_grad_norm(0.5)
    expected = (3 * 2.0**2 + 4 * 1.0 + 2 * ranks * 1.0**2) ** 0.5
    assert norm.item() == pytest.approx(expected)
    before = [part.grad.clone() for part in net.parts]
    assert before[0][0].item() == pytest.approx(2 * 0.5 / expected, rel=1e-5)
    optimizer.step()  # does not average once more
    assert optimizer.state_dict()["tutti"]["steps"] == 1
    assert all(map(torch.equal, before, [part.grad for part in net.parts]))
    assert embedding.weight.grad.to_dense()[rank, 0].item() == pytest.approx(0.5 / expected, rel=1e-5)


def test_the_norm_is_that_of_the_averages(ranks):
    ranks(clip, 2)


def train_embedding(rank, ranks):
    """Its first batch has words on rank 0 alone; in the end a dense gradient meets a sparse one."""
    embedding = torch.nn.Embedding(6, 3, sparse=True)
    with torch.no_grad():
        embedding.weight.zero_()
    optimizer = distributed(embedding, torch.optim.SGD(embedding.parameters(), 1.0), mode="fp16")
    for step in range(3):
        optimizer.zero_grad()
        if step or rank == 0:
            embedding(torch.tensor([rank, 5])).sum().backward()
        optimizer.step()
        assert embedding.weight.grad.is_sparse
    assert embedding.weight[:, 1].tolist() == [-1.5, -1.0, 0, 0, 0, -2.5]
    optimizer.zero_grad()
    if rank:
        embedding.sparse = False
    embedding(torch.tensor([2])).sum().backward()
    optimizer.step()
    assert embedding.weight[2].tolist() == [-1.0] * 3


def test_sparse_gradients_stay_sparse(ranks):
    ranks(train_embedding, 2)


def other_types(rank, ranks):
    parts = torch.nn.ParameterList([
        torch.nn.Parameter(torch.zeros(3, dtype=dtype))
        for dtype in (torch.float64, torch.bfloat16, torch.float32, torch.float16)])
    parts.append(torch.nn.Parameter(torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)))
    parts.append(torch.nn.Parameter(torch.zeros(2, 0)))
    image = torch.arange(96.0).reshape(2, 3, 4, 4)
    for mode in ("fp32", "sparseTopK"):
        optimizer = distributed(parts, mode=mode, **({} if mode == "fp32" else {"spars": 1}))
        for _ in range(2):
            optimizer.zero_grad()
            loss = sum((part * (1.0 + rank)).sum().float() for part in list(parts)[:4])
            (loss + (parts[4] * image * (rank + 1)).sum() + parts[5].sum()).backward()
            optimizer.step()
            for part in list(parts)[:4]:
                assert part.grad.dtype == part.dtype and part.grad.tolist() == [1.5] * 3
            assert torch.equal(parts[4].grad, image * 1.5)
            assert parts[4].grad.stride() == parts[4].stride()


def test_parameters_of_any_type_and_layout(ranks):
    ranks(other_types, 2)


def scale(rank, ranks):
    """Rank 1's gradients are too large once: no rank makes that step."""
    net = Given([(3,)])
    optimizer = distributed(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(3):
        optimizer.zero_grad()
        value = float("inf") if (rank, step) == (1, 1) else 1.0 + rank
        scaler.scale(net([torch.full((3,), value)])).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        assert step == 1 or net.parts[0].grad.tolist() == [1.5] * 3
        scaler.step(optimizer)
        scaler.update()
    assert net.parts[0].tolist() == [-3.0] * 3 and scaler.get_scale() == 2.0


@pytest.mark.skipif(VERSION < (2, 3), reason="GradScaler for CPUs needs PyTorch 2.3")
def test_a_scaler_sees_the_averages(ranks):
    ranks(scale, 2)


def test_buckets_do_without_shared_memory():
    class Full:
        def empty(self, *_, **__):
            raise tutti.SystemError(28, "/dev/shm is full")

    managed = [_buckets.Managed("a", torch.ones(2, 3)), _buckets.Managed("b", torch.ones(4))]
    bucket = _buckets.make(Full(), [1, 0], managed, None)
    assert bucket.flat.numel() == 10 and [view.shape for view in bucket.views] == [(4,), (2, 3)]


def resume(rank, ranks):
    options = {"mode": "sparseTopK", "spars": 0.1, "momentum_correction": 0.9}

    def begin_with(state):
        net = Given(SHAPES)
        optimizer = distributed(net, torch.optim.SGD(net.parameters(), 1.0, momentum=0.5), **options)
        if state:
            optimizer.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))
        return net, optimizer

    net, optimizer = begin_with(None)
    values = []
    for leg in range(2):
        for step in range(3, 6):
            optimizer.zero_grad()
            net(gradients(step, rank, SHAPES)).backward()
            optimizer.step()
        values.append([part.detach().clone() for part in net.parts])
        if leg == 0:
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            net, optimizer = begin_with(file.getvalue())
            with torch.no_grad():
                for part, value in zip(net.parts, values[0]):
                    part.copy_(value)
    alone, expected = Alone(ranks, **options), torch.zeros(89)
    velocity = torch.zeros(89)
    for step in (3, 4, 5, 3, 4, 5):
        average = alone.average([gradients(step, r, SHAPES) for r in range(ranks)])
        velocity = velocity * 0.5 + average
        expected -= velocity
    torch.testing.assert_close(torch.cat([part.detach().flatten() for part in net.parts]), expected)
    plain = torch.optim.SGD(net.parameters(), 1.0, momentum=0.5)
    plain.load_state_dict(optimizer.state_dict())  # either loads what the other has saved
    optimizer.load_state_dict(plain.state_dict())


def test_a_state_goes_on_where_it_was_saved(ranks):
    ranks(resume, 2)


def groups(rank, ranks):
    """Of a part of the ranks, and parameters that come later."""
    pair = dist.new_group([0, 2])
    if rank != 1:
        net = Given([(2,), (2,)])
        optimizer = distributed(net, torch.optim.SGD([net.parts[0]], 1.0), group=pair)
        net([torch.full((2,), float(rank)), None]).backward()
        optimizer.step()
        assert net.parts[0].grad.tolist() == [1.0, 1.0]
        optimizer.add_param_group({"params": [net.parts[1]], "lr": 0.5})
        optimizer.zero_grad()
        net([None, torch.full((2,), float(rank))]).backward()
        optimizer.step()
        assert net.parts[1].tolist() == [-0.5, -0.5]
        with pytest.raises(tutti.InvalidArgument, match="lacks.*param_groups.2..'params'..0."):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
        assert len(optimizer.param_groups) == 2
    dist.barrier()


def test_groups_and_parameters_that_come_later(ranks):
    ranks(groups, 3)


def refuse(rank, ranks):
    net = Given([(2,), (3 + rank,)])
    with pytest.raises(tutti.MismatchError, match="parameter #1 is 'parts.1' .3. float32 on rank 0, "
                                                  "but 'parts.1' .4. float32 on rank 1"):
        distributed(net)
    net = Given([(2,), (3,)], torch.float64 if rank else torch.float32)
    with pytest.raises(tutti.MismatchError, match="parameter #0 is .*float32.*float64 on rank 1"):
        distributed(net)
    net = Given([(2,), (3,)])
    sgd = torch.optim.SGD(net.parameters(), 1.0)
    with pytest.raises(TypeError, match="optimizer is a ParameterList"):
        DistributedOptimizer(net.parts)
    with pytest.raises(tutti.InvalidArgument, match="backward_passes_per_step is 0"):
        DistributedOptimizer(sgd, backward_passes_per_step=0)
    with pytest.raises(tutti.InvalidArgument, match="bucket_cap_mb is 0"):
        DistributedOptimizer(sgd, bucket_cap_mb=0)
    with pytest.raises(tutti.InvalidArgument, match=r"lacks.*param_groups.0..'params'..1."):
        DistributedOptimizer(sgd, [("one", net.parts[0])])
    with pytest.raises(tutti.InvalidArgument, match="two parameters of the name 'one'"):
        DistributedOptimizer(sgd, [("one", net.parts[0]), ("one", net.parts[1])])
    dist.barrier()
    with pytest.raises(TypeError, match="'a' has dtype torch.complex64"):
        part = torch.nn.Parameter(torch.zeros(1, dtype=torch.complex64))
        DistributedOptimizer(torch.optim.SGD([part], 1.0), [("a", part)])


def test_what_is_refused(ranks):
    ranks(refuse, 2)


def lose_a_rank(place, path):
    begin(place, path)
    net = Given(SHAPES)
    optimizer = distributed(net)
    for step in range(3):
        optimizer.zero_grad()
        net(gradients(step, place.rank, SHAPES)).backward()
        if place.rank == 1 and step == 1:
            raise ValueError("out of data")
        try:
            optimizer.step()
        except tutti.PeerLost as lost:
            assert lost.ranks == (1,)
            return step


def test_a_rank_that_fails_is_named(tmp_path):
    outcomes, _ = launching.outcomes_of(lose_a_rank, 3, "fork", str(tmp_path / "store"))
    assert outcomes[1][0] == "error"
    assert outcomes[0][:2] == outcomes[2][:2] == ("value", 1), outcomes
