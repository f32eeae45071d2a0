"""DistOpt on models of PyTorch: other dtypes and orders of memory, sparse gradients."""

import pytest

import launching
import tutti
from torch_models import STEPS, assert_same, batch, mlp, torch
from tutti import opt

# --- Dtypes ------------------------------------------------------------------------------------------


def in_another_dtype(place, dtype):
    comm = place.communicator()
    for registers in (True, False) if dtype == torch.bfloat16 else (True,):
        model = mlp(place.rank if registers else 0, dtype)
        dist = opt.DistOpt(opt.Adam(lr=0.01), communicator=comm, float64_as_float32=True)
        if registers:
            dist.register_parameters(model)
        reference = mlp(0, dtype)
        assert_same(model, reference)  # those of rank 0
        copies = [one.detach().float().requires_grad_() for one in reference.parameters()]
        adam = torch.optim.Adam(copies, lr=0.01)
        for step in range(STEPS):
            dist(model(batch(place.rank, step, dtype)).square().mean())
            for copy in copies:
                copy.grad = torch.zeros_like(copy)
            for rank in range(place.ranks):
                reference.zero_grad()
                reference(batch(rank, step, dtype)).square().mean().backward()
                for copy, one in zip(copies, reference.parameters()):
                    copy.grad += one.grad.float() / place.ranks
            adam.step()
            with torch.no_grad():
                for copy, one in zip(copies, reference.parameters()):
                    one.copy_(copy)
        for one, copy in zip(model.parameters(), copies):
            assert one.dtype == dtype
            torch.testing.assert_close(one.float(), copy, rtol=2e-2, atol=1e-3)
    return [one.double().sum().item() for one in model.parameters()]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_parameters_of_another_dtype(dtype):
    results = launching.run(in_another_dtype, 2, "fork", dtype)
    assert results[0] == results[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_updates_of_16_bits_add_up(comm, dtype):
    weight = torch.ones(8, dtype=dtype, requires_grad=True)
    dist = opt.DistOpt(opt.SGD(lr=2 ** -12), communicator=comm)
    for _ in range(256):  # of which each would be lost in 16 bits
        dist(weight.sum())
    assert weight.tolist() == [1 - 2 ** -4] * 8


def test_what_a_parameter_is_set_to_counts(comm):
    weight = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    dist = opt.DistOpt(opt.SGD(lr=2 ** -12), communicator=comm)
    dist(weight.sum())
    with torch.no_grad():
        weight[1] = 5
    for _ in range(127):
        dist(weight.sum())
    assert weight.tolist() == [1 - 2 ** -5, 5 - 2 ** -5, 1 - 2 ** -5]


def test_float64_is_refused_unless_it_is_wanted(comm):
    model = mlp(dtype=torch.float64)
    dist = opt.DistOpt(communicator=comm)
    with pytest.raises(tutti.InvalidArgument, match=r"^parameter '0\.weight' is float64.*float64_as_f"):
        dist.register_parameters(model)
    dist = opt.DistOpt(communicator=comm)
    with pytest.raises(tutti.InvalidArgument, match=r"^a parameter of shape \(3,\) .*_float32=True"):
        dist(model(torch.ones(1, 6).double()).sum())


def test_what_is_refused_leaves_no_copies(comm):
    sixteen = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    dist = opt.DistOpt(opt.SGD(lr=1.0), communicator=comm)

    def fails():
        yield torch.ones(4, dtype=torch.bfloat16), torch.ones(4)
        raise ValueError("not now")

    with pytest.raises(ValueError, match="not now"):
        dist(fails())
    for bad in ([torch.ones(5, dtype=torch.bfloat16), torch.ones(2, dtype=torch.float64)],
                [torch.ones(5, dtype=torch.bfloat16), torch.ones(2, dtype=torch.int32)]):
        with pytest.raises(tutti.InvalidArgument, match="parameter #1.*(float64|i32)"):
            dist.register_parameters(bad)
    dist.register_parameters([sixteen])
    with pytest.raises(tutti.InvalidArgument, match="already registered"):
        dist.register_parameters([torch.ones(7, dtype=torch.bfloat16)])
    assert dist.state()["arrays"]["dist.master"].tolist() == [1] * 3
    dist(sixteen.sum())
    assert sixteen.tolist() == [0] * 3 and dist.state()["arrays"]["dist.master"].tolist() == [0] * 3


def test_a_state_has_the_copies(comm):
    states, models = [], []
    for resumes in (False, True):
        model = mlp(dtype=torch.bfloat16)
        dist = opt.DistOpt(opt.SGD(lr=2 ** -10, momentum=0.5), communicator=comm)
        dist.register_parameters(model)
        for step in range(10):
            if resumes and step == 5:
                state, parameters = dist.state(), model.state_dict()
                model = mlp(1, torch.bfloat16)
                model.load_state_dict(parameters)
                dist = opt.DistOpt(opt.SGD(lr=2 ** -10, momentum=0.5), communicator=comm)
                dist.register_parameters(model)
                with pytest.raises(tutti.InvalidArgument, match=r"'dist\.master' has 0 elements"):
                    dist.load_state({**state, "arrays": {"momentum": state["arrays"]["momentum"]}})
                for bad in (5, None, [1.0], torch.zeros(3), state["arrays"]["dist.master"][1:],
                            state["arrays"]["dist.master"].astype(float)):
                    with pytest.raises(tutti.InvalidArgument, match=r"'dist\.master'"):
                        dist.load_state({**state, "arrays": {**state["arrays"], "dist.master": bad}})
                dist.load_state(state)
            dist(model(batch(0, step, torch.bfloat16)).square().mean())
        states.append(dist.state()["arrays"])
        models.append(model)
    assert_same(*models)
    for name in ("momentum", "dist.master"):
        assert states[0][name].tobytes() == states[1][name].tobytes()


# --- Memory ------------------------------------------------------------------------------------------


def conv(memory_format):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 2),
                               torch.nn.Flatten(), torch.nn.Linear(8, 2)).to(memory_format=memory_format)


def in_another_order(place):
    comm = place.communicator()
    models = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        for registers in (True, False):
            model = conv(memory_format)
            dist = opt.DistOpt(opt.SGD(lr=0.1, momentum=0.5), communicator=comm, buffSize=50)
            if registers:
                shapes = [array.shape for array in dist.register_parameters(model)]
                assert shapes == [tuple(one.shape) for one in model.parameters()]
            for step in range(STEPS):
                generator = torch.Generator().manual_seed(10 * step + place.rank)
                x = torch.randn(2, 3, 5, 5, generator=generator).to(memory_format=memory_format)
                dist(model(x).square().mean())
            assert model[0].weight.is_contiguous(memory_format=memory_format)
            models.append(model)
    for model in models[1:]:
        for one, two in zip(models[0].parameters(), model.parameters()):
            torch.testing.assert_close(one, two)
    return [one.detach().double().sum().item() for one in models[-1].parameters()]


def test_channels_last():
    results = launching.run(in_another_order, 2, "fork")
    assert results[0] == results[1]


def in_different_orders(place):
    comm = place.communicator()
    for dtype in (torch.float32, torch.bfloat16):
        model = conv(torch.channels_last if place.rank == 1 else torch.contiguous_format).to(dtype)
        before = [one.detach().clone() for one in model.parameters()]
        dist = opt.DistOpt(opt.SGD(lr=0.1), communicator=comm)
        with pytest.raises(tutti.MismatchError,
                           match=r"'0.weight' is \(4, 3, 3, 3\) on rank 0, but \(4, 3, 3, 3\) with the axes in "
                                 r"the order 0, 2, 3, 1 on rank 1"):
            dist.register_parameters(model)
        assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before))
        dist.register_parameters(model.to(memory_format=torch.channels_last))
    # Where an axis is of length 1 the strides may differ, and the order of the elements does not.
    weight = torch.arange(6.0).view(2, 3, 1, 1)
    weight = weight.to(memory_format=torch.channels_last) if place.rank == 1 else weight
    opt.DistOpt(opt.SGD(), communicator=comm).register_parameters([weight])


def test_orders_that_differ_between_ranks_are_refused():
    launching.run(in_different_orders, 2, "fork")


def in_every_mode(place):
    comm = place.communicator()
    results = []
    for name in opt.MODES:
        model = conv(torch.channels_last).to(torch.bfloat16)
        dist = opt.DistOpt(opt.SGD(lr=0.05), communicator=comm, dist_option=name, buffSize=50,
                           spars=0.5 if name == "sparseTopK" else 1e-4)
        dist.register_parameters(model)
        generator = torch.Generator().manual_seed(place.rank)
        x = torch.randn(8, 3, 5, 5, generator=generator).to(torch.bfloat16)
        losses = []
        for _ in range(6):
            loss = model(x).square().mean()
            losses.append(loss.item())
            dist(loss)
        dist.synchronize()
        assert losses[-1] < losses[0], (name, losses)
        # What a parameter has is its copy, rounded, also after synchronize().
        masters = torch.from_numpy(dist.state()["arrays"]["dist.master"])
        flat = [one.detach().permute(0, 2, 3, 1) if one.dim() == 4 else one.detach()
                for one in model.parameters()]
        assert torch.equal(torch.cat([one.reshape(-1) for one in flat]), masters.bfloat16())
        results.append(masters.numpy().tobytes())
    return results


def test_all_modes_take_copies_in_another_order():
    results = launching.run(in_every_mode, 2, "fork")
    assert results[0] == results[1]


def test_gradients_may_be_written_where_they_travel(comm):
    weight = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    sixteen = torch.zeros(4, dtype=torch.bfloat16)
    dist = opt.DistOpt(opt.SGD(lr=1.0), communicator=comm)
    gradients = dist.register_parameters([weight, sixteen])
    gradients[0][...] = torch.arange(120).view(2, 3, 4, 5).numpy()
    gradients[1][...] = 3
    dist(zip((sixteen, weight), gradients[::-1]))
    assert torch.equal(weight, -torch.arange(120.0).view(2, 3, 4, 5))
    assert sixteen.tolist() == [-3] * 4
    with pytest.raises(tutti.InvalidArgument, match=r"\(2, 4, 5, 3\), but parameter #0 has"):
        dist([(sixteen, gradients[1]), (weight, torch.zeros(2, 4, 5, 3))])


def embedding(place):
    comm = place.communicator()
    models = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.EmbeddingBag(9, 4, sparse=sparse, mode="sum"),
                                    torch.nn.Linear(4, 1))
        dist = opt.DistOpt(opt.Adagrad(lr=0.1), communicator=comm)
        for step in range(STEPS):
            ids = torch.tensor([[step, step + place.rank], [step, 8]])
            if step == 2:
                dist.accumulate(model(ids + 0 * step).sum())
            dist(model(ids).sum())
        models.append(model)
    assert_same(*models)


def test_sparse_gradients():
    launching.run(embedding, 2, "fork")


# --- What is not trained -----------------------------------------------------------------------------


class Partly(torch.nn.Module):
    """Of whose parts a rank has values of its own."""

    def __init__(self, rank):
        super().__init__()
        self.trained = torch.nn.Linear(3, 2)
        self.norm = torch.nn.BatchNorm1d(2)
        self.frozen = torch.nn.Conv2d(2, 3, 2).to(torch.float64, memory_format=torch.channels_last)
        self.frozen.requires_grad_(False)
        buffers = {"flags": torch.tensor([rank > 0, True]), "short": torch.ones(2).bfloat16() + rank,
                   "complex": torch.full((2,), 1j + rank), "one": torch.tensor(rank), "none": torch.ones(0),
                   "turned": torch.ones(6).view(2, 3).T + rank, "conjugate": torch.full((2,), 1j + rank).conj(),
                   "expanded": torch.full((1, 2), 1.0 + rank).expand(3, 2), "hidden": torch.ones(2) + rank}
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer, persistent=name != "hidden")
        self.register_buffer("sparse", torch.eye(2).to_sparse() * (rank + 1))
        for one in (*self.parameters(), self.norm.running_mean, self.norm.num_batches_tracked):
            one.data.fill_(rank + 1)


def equal_starts(place):
    comm = place.communicator()
    model, wanted = Partly(place.rank), Partly(0)
    opt.DistOpt(communicator=comm).register_parameters(model)
    for (name, one), other in zip([*model.named_parameters(), *model.named_buffers()],
                                  [*wanted.parameters(), *wanted.buffers()]):
        if name == "sparse":  # is each rank's own
            assert one.to_dense().trace() == 2 * (place.rank + 1)
        else:
            assert torch.equal(one, other), name
            assert one.stride() == other.stride() and one.requires_grad == other.requires_grad
    longer = Partly(place.rank)
    if place.rank == 1:
        longer.hidden = torch.ones(3)
    weight = longer.trained.weight.detach().clone()
    with pytest.raises(tutti.MismatchError, match="buffer #.* is 'hidden' .2. float32 on rank 0, but "
                                                  "'hidden' .3. float32 on rank 1"):
        opt.DistOpt(communicator=comm).register_parameters(longer)
    assert torch.equal(longer.trained.weight, weight)
    opt.DistOpt(communicator=comm).register_parameters(torch.nn.Linear(3, 2))  # comm is as it was


def test_frozen_parameters_and_buffers_start_equal():
    launching.run(equal_starts, 2, "fork")
