"""DistributedOptimizer over many steps, and what is as it was after something was refused."""

import contextlib

import pytest

import tutti
from torch_group import VERSION, Net, batch, dist, ranks, torch  # noqa: F401 - ranks is a fixture
from torch_modes import Given, gradients
from tutti.torch import DistributedOptimizer

SHAPES = [(7, 5), (30,), (4, 3, 2)]


def distributed(net, optimizer=None, **options):
    optimizer = optimizer or torch.optim.SGD(net.parameters(), 1.0)
    return DistributedOptimizer(optimizer, net.named_parameters(), **options)


def same_on_all(net):
    """Whether all ranks have the same parameters, to the bit."""
    mine = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
    everybody = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, mine)
    return all(torch.equal(one, mine) for one in everybody)


def gather_sparse(rank, ranks, mode):
    """torch.gather's sparse gradients have an index for each axis, and travel as dense ones."""
    net = Given([(4, 3), (2,)])
    part = net.parts[0]
    optimizer = distributed(net, mode=mode)
    for step in range(4):
        optimizer.zero_grad()
        chosen = torch.gather(part, 1, torch.tensor([[0], [1], [2], [0]]), sparse_grad=True)
        loss = chosen.sum() * (1 + rank)
        if step != 2:  # else the bucket is not complete
            loss = loss + net([None, torch.ones(2)])
        loss.backward()
        if step == 2:
            with torch.no_grad():
                part.grad.mul_(2)  # is not under way
        optimizer.step()
        assert not part.grad.is_sparse
        expected = 1.5 * (2 if step == 2 else 1)
        assert part.grad.sum(1).tolist() == [expected] * 4, step
        assert part.grad[1].tolist() == [0, expected, 0]


@pytest.mark.parametrize("mode", ["fp32", "fp16"])
def test_sparse_gradients_of_more_axes(ranks, mode):
    ranks(gather_sparse, 2, mode)


def minimise(rank, ranks, search, steps_of):
    """Each rank's own loss would have LBFGS end its iterations elsewhere than on others."""
    def problem(r):
        random = torch.Generator().manual_seed(r + 1)
        return (torch.randn(40, 3, generator=random),
                torch.randn(40, 1, generator=random) * (1 if r else 0.1))

    def loss_of(net, r):
        x, y = problem(r)
        return (net(x) - y).square().mean()

    def train(net, optimizer, loss, steps):
        losses = []

        def closure():
            optimizer.zero_grad()
            value = loss()
            value.backward()
            return value

        for _ in range(steps):
            losses.append(optimizer.step(closure))
        return losses

    def lbfgs(net):
        return torch.optim.LBFGS(net.parameters(), 1.0 if search else 0.5, max_iter=20,
                                 tolerance_change=1e-4, line_search_fn=search)

    def line():
        torch.manual_seed(0)
        return torch.nn.Linear(3, 1)

    alone, net = line(), line()
    expected = train(alone, lbfgs(alone), lambda: sum(loss_of(alone, r) for r in range(ranks)) / ranks,
                     5)
    optimizer = distributed(net, lbfgs(net))
    differ = steps_of(rank) != steps_of(0) or steps_of(ranks - 1) != steps_of(0)
    with optimizer.join() if differ else contextlib.nullcontext():
        losses = train(net, optimizer, lambda: loss_of(net, rank), steps_of(rank))
    assert same_on_all(net)
    if not differ:
        assert torch.tensor(losses).tolist() == pytest.approx(torch.tensor(expected).tolist())
        torch.testing.assert_close(net.weight, alone.weight)


def even(rank):
    return 5


def uneven(rank):
    return 1 + 2 * rank


@pytest.mark.parametrize("steps_of", [even, uneven])
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_goes_the_same_way_on_all_ranks(ranks, search, steps_of):
    ranks(minimise, 2, search, steps_of)


def scaled_by_clipping(net):
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-3)


def written(net):
    with torch.no_grad():
        net.parts[2].grad[0] = 7


def replaced(net):
    net.parts[1].grad = net.parts[1].grad * 2


def taken_away(net):
    net.zero_grad()


def write_under_way(rank, ranks, mode, write):
    """One rank does, all are told, and the next step is as any other."""
    net = Given(SHAPES)
    optimizer = distributed(net, mode=mode, **({"spars": 1.0} if mode == "sparseTopK" else {}))
    for step in range(5):
        optimizer.zero_grad()
        net([torch.full(shape, 1.0 + rank) for shape in SHAPES]).backward()
        if step in (0, 3):  # also before there are buckets
            if rank == 1:
                write(net)
            with pytest.raises(tutti.InvalidArgument, match="changed while they were under way: on rank "
                                                            "1, among those of 'parts.[0-2]'.*Use "
                                                            "clip_grad_norm.., or call synchronize") as told:
                optimizer.step()
            assert ("'sparseTopK' has sent of this step is lost" in str(told.value)) == (
                mode == "sparseTopK" and step > 0)
            continue
        optimizer.step()
        assert all((part.grad == 1.5).all() for part in net.parts)
    optimizer.zero_grad()
    net([torch.full(shape, 1.0 + rank) for shape in SHAPES]).backward()
    optimizer.synchronize()
    write(net)  # it may, now
    optimizer.step()


@pytest.mark.parametrize("mode", ["fp32", "bf16", "sparseTopK"])
@pytest.mark.parametrize("write", [scaled_by_clipping, written, replaced, taken_away])
def test_gradients_under_way_are_left_alone(ranks, mode, write):
    ranks(write_under_way, 2, mode, write)


def write_a_copy(rank, ranks):
    """A half parameter's gradient is a copy of what is under way, and a change of it would be lost."""
    net = Given(SHAPES, torch.float16)
    optimizer = distributed(net, mode="fp16")
    for _ in range(2):
        optimizer.zero_grad()
        net([torch.ones(shape) for shape in SHAPES]).backward()
        if optimizer._gradients.averages.steps:
            written(net)
            with pytest.raises(tutti.InvalidArgument, match="on rank 0.*; on rank 1"):
                optimizer.step()
        else:
            optimizer.step()


def test_copies_of_gradients_under_way_are_left_alone(ranks):
    ranks(write_a_copy, 2)


def scale_too_early(rank, ranks):
    net = Given([(3,)])
    optimizer = distributed(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(2):
        optimizer.zero_grad()
        scaler.scale(net([torch.full((3,), 1.0 + rank)])).backward()
        with pytest.raises(tutti.InvalidArgument, match="GradScaler.step.. was called before synchro"):
            scaler.step(optimizer)
        optimizer.synchronize()
        assert net.parts[0].grad.tolist() == [6.0] * 3  # nothing was written meanwhile
        scaler.step(optimizer)
        scaler.update()
    assert net.parts[0].tolist() == [-3.0] * 3


@pytest.mark.skipif(VERSION < (2, 3), reason="GradScaler for CPUs needs PyTorch 2.3")
def test_a_scaler_waits_for_the_averages(ranks):
    ranks(scale_too_early, 2)


def kept_in(optimizer):
    state = optimizer.state_dict()["tutti"]
    return state["steps"], {what: {name: part.tolist() for name, part in state[what].items()}
                            for what in ("residual", "velocity")}


def refuse_states(rank, ranks):
    """Neither half of the state changes where one is refused."""
    net = Given(SHAPES)
    optimizer = distributed(net, torch.optim.SGD(net.parameters(), 1.0, momentum=0.5),
                            mode="sparseTopK", spars=0.1, momentum_correction=0.9)
    for step in range(2):
        optimizer.zero_grad()
        net(gradients(step, rank, SHAPES)).backward()
        optimizer.step()
    good, before = optimizer.state_dict(), kept_in(optimizer)
    momentum = [optimizer.state[part]["momentum_buffer"].clone() for part in net.parts]
    kept = good["tutti"]
    ones = {"parts.0": torch.ones(35)}
    bad_ones = (
        ({"param_groups": [], "tutti": {**kept, "residual": ones, "steps": 9}}, "parameter groups"),
        ({"tutti": {**kept, "residual": ones, "steps": "two"}}, "steps are 'two'"),
        ({"tutti": {**kept, "residual": ones, "steps": -1}}, "steps are -1"),
        ({"tutti": {**kept, "residual": ones, "velocity": {"parts.1": torch.ones(3)}}}, "3 elements"),
        ({"tutti": {**kept, "residual": {"parts.0": [1.0]}}}, "residual of parameter 'parts.0' is a list"),
        ({"tutti": {**kept, "rank": 5}}, "of rank 5 of 2"),
        ({"tutti": {"steps": 3}}, "has no 'rank'"),
        ({"tutti": 3}, "is a int"))
    other = {**good, "state": {key: {"momentum_buffer": torch.zeros_like(value["momentum_buffer"])}
                               for key, value in good["state"].items()}}
    for bad, message in bad_ones:
        with pytest.raises(ValueError, match=message):
            optimizer.load_state_dict({**other, **bad})
        assert kept_in(optimizer) == before, message
        assert all(torch.equal(optimizer.state[part]["momentum_buffer"], ours)
                   for part, ours in zip(net.parts, momentum)), message
    dense = distributed(net)
    with pytest.raises(tutti.InvalidArgument, match="residual.*mode 'fp32' does not keep"):
        dense.load_state_dict(good)
    dense.load_state_dict({**good, "tutti": {**kept, "residual": {}, "velocity": {}}})
    assert kept_in(dense)[0] == 2
    plain = torch.optim.SGD(net.parameters(), 1.0, momentum=0.5)
    optimizer.load_state_dict(plain.state_dict())  # begins anew
    assert kept_in(optimizer) == (0, {"residual": {}, "velocity": {}})


def test_a_state_that_is_refused_changes_nothing(ranks):
    ranks(refuse_states, 2)


def refuse_parameters(rank, ranks):
    """A group of parameters that differs, and then one that does not."""
    net = Given([(2,), (3,)])
    optimizer = distributed(net, torch.optim.SGD([net.parts[0]], 1.0))
    odd = torch.nn.Parameter(torch.zeros(1 + rank))
    with pytest.raises(tutti.MismatchError, match="'odd' .1. float32 on rank 0, but 'odd' .2."):
        optimizer.add_param_group({"params": [odd]}, {"odd": odd})
    complex_one = torch.nn.Parameter(torch.zeros(1, dtype=torch.complex64))
    with pytest.raises(TypeError, match="'odd' has dtype torch.complex64"):
        optimizer.add_param_group({"params": [complex_one]}, [("odd", complex_one)])
    late = torch.nn.Parameter(torch.zeros(4))
    with pytest.raises(tutti.InvalidArgument, match="lacks parameters"):
        optimizer.add_param_group({"params": [late]})
    with pytest.raises(tutti.InvalidArgument, match="two parameters of the name 'parts.0'"):
        optimizer.add_param_group({"params": [late]}, {"parts.0": late})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [late]}, {"late": late, **dict(net.named_parameters())})
    optimizer.add_param_group({"params": [net.parts[1]]})
    for _ in range(2):
        optimizer.zero_grad()
        odd.sum().backward()  # is none of its parameters
        (net([torch.full((2,), 1.0 + rank), torch.ones(3)]) + late.sum() * (1 + rank)).backward()
        optimizer.step()
        assert late.grad.tolist() == [1.5] * 4 and net.parts[0].grad.tolist() == [1.5] * 2
    assert [name for name, _ in optimizer._gradients.managed] == ["parts.0", "late", "parts.1"]
    assert net.parts[1].tolist() == [-2.0] * 3


def test_parameters_that_are_refused_are_forgotten(ranks):
    ranks(refuse_parameters, 2)


def refuse_settings(rank, ranks):
    net = Given([(2,)])
    for options, message in (
            ([{"mode": "fp16"}, {"mode": "bf16"}], "mode 'fp16' on rank 0, but mode 'bf16' on rank 1"),
            ([{"mode": "sparseTopK", "spars": 0.5}, {"mode": "sparseTopK", "spars": 0.1}],
             "spars 0.5 on rank 0, but spars 0.1 on rank 1"),
            ([{"mode": "fp16", "clipping": True}, {"mode": "fp16"}], "clipping 1.0 on rank 0, but"),
            ([{"bucket_cap_mb": 1}, {}], "bucket size 1.04858e.06 bytes on rank 0, but")):
        with pytest.raises(tutti.MismatchError, match=message):
            distributed(net, **options[rank])
    named = dict(net.named_parameters())
    optimizer = DistributedOptimizer(torch.optim.SGD(net.parameters(), 1.0), named)
    assert optimizer._gradients.managed[0].name == "parts.0"
    for named in (net.parameters(), [("a", 1)], "ab", {1: net.parts[0]}):
        with pytest.raises(TypeError, match="named_parameters has a .*must be a mapping, or pairs"):
            DistributedOptimizer(torch.optim.SGD(net.parameters(), 1.0), named)


def test_settings_that_differ_are_refused(ranks):
    ranks(refuse_settings, 2)


def leave_nothing_behind(rank, ranks):
    """Neither of gradients that never get a bucket, nor of join()."""
    embedding = torch.nn.Embedding(6, 3, sparse=True)
    optimizer = distributed(embedding)
    asked = []
    optimizer._gradients._notify_others = lambda notify=optimizer._gradients._notify_others: (
        asked.append(notify()))
    with optimizer.join():
        for _ in range(1 + rank):
            optimizer.zero_grad()
            embedding(torch.tensor([rank, 5])).sum().backward()
            optimizer.step()
    assert asked[0] is not None
    for _ in range(3):
        optimizer.zero_grad()
        embedding(torch.tensor([rank, 5])).sum().backward()
        optimizer.step()
        assert asked[-1] is None  # no rank waits for those that have left
        assert optimizer._gradients._order == []
    with optimizer.join():
        embedding(torch.tensor([rank])).sum().backward()
        optimizer.step()


def test_nothing_is_left_behind(ranks):
    ranks(leave_nothing_behind, 2)


def use_a_closure(rank, ranks):
    """LBFGS asks for gradients several times a step."""
    def run(net, optimizer, losses):
        def closure():
            optimizer.zero_grad()
            loss = losses(net)
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)
        return list(net.parameters())

    def lbfgs(net):
        return torch.optim.LBFGS(net.parameters(), 0.1, max_iter=3)

    alone, net = Net(), Net()
    expected = run(alone, lbfgs(alone), lambda model: sum(
        model(batch(0, r)).square().mean() for r in range(ranks)) / ranks)
    ours = run(net, distributed(net, lbfgs(net)), lambda model: model(batch(0, rank)).square().mean())
    for mine, theirs in zip(ours, expected):
        torch.testing.assert_close(mine, theirs)


def test_an_optimiser_may_ask_for_gradients_again(ranks):
    ranks(use_a_closure, 2)


def step_as_usual(rank, ranks):
    """A closure without gradients of its own, after synchronize(); and one that every step has."""
    net = Net()
    optimizer = distributed(net)
    for step in range(2):
        optimizer.zero_grad()
        loss = net(batch(step, rank)).square().mean()
        loss.backward()
        optimizer.synchronize()
        assert optimizer.step(lambda: loss) is loss

        def closure():
            optimizer.zero_grad()
            value = net(batch(step, rank)).square().mean()
            value.backward()
            return value.item()

        value = optimizer.step(closure)
        values = [torch.zeros(1, dtype=torch.float64) for _ in range(ranks)]
        dist.all_gather(values, torch.tensor([value], dtype=torch.float64))
        assert values[0] == values[1]
    assert same_on_all(net)
    optimizer.zero_grad()
    assert optimizer.step(lambda: "no number") == "no number"
    with pytest.raises(tutti.MismatchError, match="one number on some ranks, but not on others"):
        optimizer.step(lambda: 1.0 if rank else None)
    assert optimizer.step(lambda: 1 + rank) == 1.5


def test_a_closure_may_be_given_to_any_optimiser(ranks):
    ranks(step_as_usual, 2)
