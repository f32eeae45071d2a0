"""The modes as communication hooks of DistributedDataParallel."""

import io

import pytest

import launching
import tutti
from torch_group import begin, dist, ranks, torch  # noqa: F401 - ranks is a fixture
from torch_modes import MODES, Alone, Given, gradients
from tutti.torch import hooks

DDP = torch.nn.parallel.DistributedDataParallel
SHAPES = [(7, 5), (30,), (4, 3, 2)]


def flat_of(net):
    return torch.cat([part.grad.flatten() for part in net.parts])


def close(ours, expected, options):
    """To the bit, but for the norms, which are summed in another order."""
    if options.get("clip_norm"):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)
    else:
        assert torch.equal(ours, expected)


def average_with_ddp(rank, ranks):
    for seed, (mode, options) in enumerate(MODES):
        net = Given(SHAPES)
        ddp = DDP(net)
        ddp.register_comm_hook(hooks.State(ddp, mode, **options), hooks.hook)
        alone = Alone(ranks, mode, **options)
        for step in range(6):
            net.zero_grad()
            ddp(gradients(step, rank, SHAPES, seed)).backward()
            # DistributedDataParallel's bucket begins with the last parameter.
            everybody = [gradients(step, r, SHAPES, seed) for r in range(ranks)]
            close(flat_of(net), alone.average(everybody), options)


@pytest.mark.parametrize("count", [2, 3])
def test_a_hook_averages_as_its_mode_does(ranks, count):
    ranks(average_with_ddp, count)


def average_in_buckets(rank, ranks):
    """A threshold does not know buckets, which change after the first step."""
    options = {"spars": 1.5, "momentum_correction": 0.5}
    net, alone = Given(SHAPES), Alone(ranks, "sparseThreshold", **options)
    ddp = DDP(net, bucket_cap_mb=0.0001)
    state = hooks.State(ddp, "sparseThreshold", **options)
    ddp.register_comm_hook(state, hooks.hook)
    for step in range(6):
        net.zero_grad()
        ddp(gradients(step, rank, SHAPES)).backward()
        expected = alone.average([gradients(step, r, SHAPES) for r in range(ranks)])
        assert torch.equal(flat_of(net), expected), step
    kept = state.state_dict()
    assert kept["steps"] == 6
    for what, theirs in (("residual", alone.residual), ("velocity", alone.velocity)):
        ours = torch.cat([kept[what][f"parts.{i}"] for i in range(len(SHAPES))])
        assert torch.equal(ours, theirs[rank])


def test_what_a_mode_keeps_is_a_parameters_whatever_its_bucket(ranks):
    ranks(average_in_buckets, 2)


def resume(rank, ranks):
    options = {"spars": 0.1, "momentum_correction": 0.9, "warm_up_epochs": 2, "epoch_steps": 2}

    def begin_with(state):
        net = Given(SHAPES)
        ddp = DDP(net)
        own = hooks.State(ddp, "sparseTopK", **options)
        if state:
            own.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))
        ddp.register_comm_hook(own, hooks.hook)
        return net, ddp, own

    net, ddp, own = begin_with(None)
    alone = Alone(ranks, "sparseTopK", **options)
    for step in range(8):
        if step == 3:
            file = io.BytesIO()
            torch.save(own.state_dict(), file)
            net, ddp, own = begin_with(file.getvalue())
        net.zero_grad()
        ddp(gradients(step, rank, SHAPES)).backward()
        assert torch.equal(flat_of(net),
                           alone.average([gradients(step, r, SHAPES) for r in range(ranks)])), step
    state = own.state_dict()
    state["rank"] = ranks - 1 - rank
    with pytest.raises(tutti.InvalidArgument, match=f"rank {ranks - 1 - rank} of {ranks}"):
        own.load_state_dict(state)
    state = own.state_dict()
    state["residual"]["parts.1"] = torch.zeros(3)
    with pytest.raises(tutti.InvalidArgument, match="'parts.1' has 3 elements.*30"):
        own.load_state_dict(state)
    state["residual"] = {"nobody": torch.zeros(3)}
    with pytest.raises(tutti.InvalidArgument, match="'nobody'"):
        own.load_state_dict(state)


def test_a_state_goes_on_where_it_was_saved(ranks):
    ranks(resume, 2)


def average_other_gradients(rank, ranks):
    """bf16 parameters travel as float32 in sparse modes; sparse gradients whole."""
    net = Given(SHAPES, torch.bfloat16)
    ddp = DDP(net)
    ddp.register_comm_hook(hooks.State(ddp, "sparseTopK", spars=1.0), hooks.hook)
    mine = [gradient.bfloat16() for gradient in gradients(0, rank, SHAPES)]
    ddp(mine).backward()
    everybody = [[gradient.bfloat16().float() for gradient in gradients(0, r, SHAPES)]
                 for r in range(ranks)]
    assert torch.equal(flat_of(net), Alone(ranks, "fp32").average(everybody).bfloat16())
    embedding = DDP(torch.nn.Embedding(10, 3, sparse=True))
    embedding.register_comm_hook(hooks.State(embedding, "fp16"), hooks.hook)
    embedding(torch.tensor([rank, 5])).sum().backward()
    dense = embedding.module.weight.grad.to_dense()
    assert dense[:, 0].tolist() == [0.5, 0.5, 0, 0, 0, 1, 0, 0, 0, 0]
    unused = Given(SHAPES)
    ddp = DDP(unused, find_unused_parameters=True, bucket_cap_mb=0.0001)
    ddp.register_comm_hook(hooks.State(ddp, "fp16"), hooks.hook)
    for step in range(2):
        unused.zero_grad()
        ddp([torch.ones(SHAPES[i]) if i == rank else None for i in range(2)]).backward()
        assert unused.parts[rank].grad.flatten()[0] == 0.5
        assert unused.parts[1 - rank].grad.flatten()[0] == 0.5
        assert unused.parts[2].grad is None


def refuse_unused_and_differing(rank, ranks):
    ddp = DDP(Given(SHAPES), find_unused_parameters=True)
    for mode in ("sparseTopK", "sparseThreshold"):
        with pytest.raises(tutti.InvalidArgument, match=f"{mode}.*find_unused_parameters=True"):
            hooks.State(ddp, mode, spars=0.5)
    ddp = DDP(Given(SHAPES))
    with pytest.raises(tutti.MismatchError, match="setting #1 is spars 0.5 on rank 0, but spars 1.0 on"):
        hooks.State(ddp, "sparseTopK", spars=1 if rank else 0.5)
    state = hooks.State(ddp, "fp16")
    kept = {**state.state_dict(), "residual": {"parts.1": torch.zeros(30)}, "steps": 3}
    with pytest.raises(tutti.InvalidArgument, match="residual.*mode 'fp16' does not keep"):
        state.load_state_dict(kept)
    assert state.state_dict()["steps"] == 0


def test_what_would_be_lost_is_refused(ranks):
    ranks(refuse_unused_and_differing, 2)


def test_other_gradients(ranks):
    ranks(average_other_gradients, 2)


def refuse(rank, ranks):
    ddp = DDP(Given(SHAPES))
    for mode, options, message in (
            ("fp8", {}, "mode is 'fp8', but must be fp32, fp16, bf16, sparseTopK or"),
            ("partialUpdate", {}, "mode is 'partialUpdate'"),
            ("fp16", {"spars": 0.1}, "spars is given.*'fp16' are: clipping, clip_Value"),
            ("fp32", {"corr": True}, "options of mode 'fp32' are: none"),
            ("sparseTopK", {"spars": 2.0}, "spars is 2"),
            ("sparseTopK", {"momentum_correction": 1.0}, "momentum is 1"),
            ("sparseTopK", {"warm_up_epochs": 1}, "epoch_steps is 0")):
        with pytest.raises(tutti.InvalidArgument, match=message):
            hooks.State(ddp, mode, **options)
    with pytest.raises(TypeError, match="ddp is a Given"):
        hooks.State(ddp.module, "fp16")
    other = DDP(Given(SHAPES))
    other.register_comm_hook(hooks.State(ddp, "fp16"), hooks.hook)
    with pytest.raises(RuntimeError, match="a parameter that the model of this State has not"):
        other(gradients(0, rank, SHAPES)).backward()


def test_what_is_refused(ranks):
    ranks(refuse, 1)


def over_gloo(place, path):
    dist.init_process_group("gloo", store=dist.FileStore(path, 1), rank=0, world_size=1)
    with pytest.raises(TypeError, match="backend gloo, but must be of tutti"):
        hooks.State(DDP(Given(SHAPES)), "fp16")
    dist.destroy_process_group()


def test_another_backend_is_refused(tmp_path):
    launching.run(over_gloo, 1, "fork", str(tmp_path / "store"))


def lose_a_rank(place, path):
    begin(place, path)
    ddp = DDP(Given(SHAPES))
    ddp.register_comm_hook(hooks.State(ddp, "sparseTopK", spars=0.1), hooks.hook)
    ddp(gradients(0, place.rank, SHAPES)).backward()
    if place.rank == 1:
        raise ValueError("out of data")
    with pytest.raises(RuntimeError, match="rank 1"):
        for step in range(2):
            ddp(gradients(step, place.rank, SHAPES)).backward()


def test_a_rank_that_fails_is_named(tmp_path):
    outcomes, _ = launching.outcomes_of(lose_a_rank, 3, "fork", str(tmp_path / "store"))
    assert outcomes[0][0] == outcomes[2][0] == "value", outcomes
