"""DistOpt on models of PyTorch: other dtypes and orders of memory, sparse gradients, several passes a
step, checkpointing, schedulers and state_dict."""

import copy
import importlib.util
import io
import warnings

import pytest

import launching
import tutti
from tutti import opt

torch = pytest.importorskip("torch")
if importlib.util.find_spec("torch._dynamo"):  # or the first use of torch.optim reads it, on each rank
    importlib.import_module("torch._dynamo")
torch.set_num_threads(1)  # threads would not come along in a fork
STEPS = 4
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))


@pytest.fixture
def comm():
    return tutti.Communicator(0, 1, tutti.NcclIdHolder())


def mlp(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(),
                               torch.nn.Linear(5, 3)).to(dtype)


def batch(rank, step, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, 6, generator=generator).to(dtype)


def values(model):
    return [one.detach().clone() for one in model.parameters()]


def assert_same(model, other):
    for one, two in zip(model.parameters(), other.parameters()):
        assert torch.equal(one, two)


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


# --- Several passes a step, and checkpoints ----------------------------------------------------------


def accumulated(place):
    comm = place.communicator()
    model, reference = mlp(), mlp()
    dist = opt.DistOpt(opt.SGD(lr=0.1, momentum=0.5), communicator=comm)
    sgd = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.5)
    for step in range(STEPS):
        parts = [batch(place.rank, 10 * step + part) for part in range(3)]
        for x in parts[:-1]:
            dist.accumulate(model(x).square().mean() / 3)
        dist(model(parts[-1]).square().mean() / 3)
        sgd.zero_grad()
        everybody = [batch(rank, 10 * step + part) for rank in range(place.ranks) for part in range(3)]
        reference(torch.cat(everybody)).square().mean().backward()
        sgd.step()
    for one, two in zip(model.parameters(), reference.parameters()):
        torch.testing.assert_close(one, two)


def test_gradients_of_several_passes():
    launching.run(accumulated, 2, "fork")


def test_what_is_accumulated_survives_a_pass_that_fails(comm):
    weight = torch.zeros(2, requires_grad=True)
    other = torch.zeros(2, requires_grad=True)
    dist = opt.DistOpt(opt.SGD(lr=1.0), communicator=comm)

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("not now")

    dist.accumulate((2 * weight + 16 * other).sum())
    dist.accumulate((4 * weight).sum())
    assert weight.grad.tolist() == [6, 6]
    with pytest.raises(ValueError, match="not now"):
        dist((other + Fails.apply(weight)).sum())  # after the gradient of other
    with pytest.raises(ValueError, match="not now"):
        dist.accumulate((other + Fails.apply(weight)).sum())
    dist((8 * weight).sum())
    assert weight.tolist() == [-14, -14] and other.tolist() == [-16, -16]
    dist.accumulate(weight.sum())
    dist.zero_grad()
    dist((weight + other).sum())
    assert weight.tolist() == [-15, -15]
    with pytest.raises(TypeError, match="^loss is a list, but"):
        dist.accumulate([])


class GivesNothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None


def in_another_order_of_passes(place):
    comm = place.communicator()

    def loss_of(letters, parameters):
        terms = [GivesNothing.apply(parameters[one.lower()]) if one.isupper() else parameters[one]
                 for one in letters]
        return sum(term.sum() for term in terms)

    steps = ["ab", "ba", "a|b", "b|a", "a|Ab", "a|bA", "ab|a", "ab|b", "b|ab", "ba|ba"]
    for registers, missing, first in (
            *[(registers, False, first) for registers in (False, True) for first in steps],
            *[(True, True, first) for first in ("a", "b", "a|a", "b|a")]):
        parameters = {one: torch.zeros(2, requires_grad=True) for one in "ab"}
        dist = opt.DistOpt(opt.SGD(lr=1.0), communicator=comm, missing_as_zero=missing)
        if registers:
            dist.register_parameters(parameters.values())
        more = [*steps, "Ab", "bA"] if missing else steps
        turned = [[first, *more[rank:], *more[:rank]] for rank in range(place.ranks)]
        for passes in turned[place.rank]:
            *earlier, last = passes.split("|")
            for letters in earlier:
                dist.accumulate(loss_of(letters, parameters))
            dist(loss_of(last, parameters))
        for name, parameter in parameters.items():
            reached = sum(passes.count(name) for ofrank in turned for passes in ofrank)
            assert parameter.tolist() == [-reached / place.ranks] * 2, (registers, missing, first)


def test_the_last_pass_of_a_step_may_reach_other_parameters():
    launching.run(in_another_order_of_passes, 2, "fork")


def test_reentrant_checkpoints(comm):
    from torch.utils.checkpoint import checkpoint

    plain, wrapped = mlp(), mlp()
    dists = []
    for model in (plain, wrapped):
        dists.append(opt.DistOpt(opt.SGD(lr=0.1, momentum=0.5), communicator=comm))
        dists[-1].register_parameters(model)
    for step in range(STEPS):
        x = batch(0, step)
        dists[0].accumulate(plain(x).mean())
        dists[0](plain(x).square().mean())
        x.requires_grad_()
        dists[1].accumulate(checkpoint(wrapped, x, use_reentrant=True).mean())
        dists[1](checkpoint(wrapped, x, use_reentrant=True).square().mean())
    assert_same(plain, wrapped)


# --- Registering, options and state ------------------------------------------------------------------


def test_a_model_is_registered_by_its_names(comm):
    model = mlp()
    model[0].bias.requires_grad_(False)
    dist = opt.DistOpt(communicator=comm)
    assert [array.shape for array in dist.register_parameters(model)] == [(5, 6), (3, 5), (3,)]
    dist(model(batch(0, 0)).mean())
    with pytest.raises(tutti.InvalidArgument, match=r"did not emit parameter '0\.weight'"):
        dist(model[2](torch.ones(1, 5)).mean())


SCHEDULERS = {
    "StepLR": lambda one: torch.optim.lr_scheduler.StepLR(one, 2, gamma=0.3),
    "CosineAnnealingLR": lambda one: torch.optim.lr_scheduler.CosineAnnealingLR(one, T_max=5),
    "LambdaLR": lambda one: torch.optim.lr_scheduler.LambdaLR(one, lambda epoch: 1 / (1 + epoch)),
    "OneCycleLR": lambda one: torch.optim.lr_scheduler.OneCycleLR(one, 0.5, total_steps=9,
                                                                  cycle_momentum=False),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_of_learning_rates(comm, name):
    model, reference = mlp(), mlp()
    dist = opt.DistOpt(opt.SGD(lr=0.1, momentum=0.5), communicator=comm)
    with pytest.raises(tutti.InvalidArgument, match="register_parameters"):
        dist.torch_optimizer()
    dist.register_parameters(model)
    sgd = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours, theirs = (SCHEDULERS[name](one) for one in (dist.torch_optimizer(), sgd))
        for step in range(8):
            dist(model(batch(0, step)).square().mean())
            sgd.zero_grad()
            reference(batch(0, step)).square().mean().backward()
            sgd.step()
            ours.step()
            theirs.step()
            assert dist.opt.lr == pytest.approx(sgd.param_groups[0]["lr"], rel=1e-6)
            assert ours.get_last_lr() == pytest.approx(theirs.get_last_lr())
    for one, two in zip(model.parameters(), reference.parameters()):
        torch.testing.assert_close(one, two)
    with pytest.raises(tutti.InvalidArgument, match="called with the loss"):
        dist.torch_optimizer().step()


def test_the_group_of_parameters(comm):
    model = mlp()
    dist = opt.DistOpt(opt.Adam(lr=0.25, betas=(0.5, 0.75)), communicator=comm)
    dist.register_parameters(model)
    group, = dist.param_groups
    assert [id(one) for one in group["params"]] == [id(one) for one in model.parameters()]
    assert group["betas"] == (0.5, 0.75) and group["eps"] == pytest.approx(1e-8)
    group["lr"] = 0.1
    assert dist.opt.lr == pytest.approx(0.1, rel=1e-7) and group["lr"] == 0.1
    dist.opt.lr = 0.5
    assert group["lr"] == 0.5 and dict(dist.param_groups[0])["lr"] == 0.5
    with pytest.raises(tutti.InvalidArgument, match=r"\['betas'\] is \(0.5, 0.75\) and cannot become"):
        group["betas"] = (0.5, 0.5)
    with pytest.raises(tutti.InvalidArgument, match="lr is -1"):
        group["lr"] = -1
    group["betas"] = (0.5, 0.75)
    assert group["lr"] == 0.5
    group.update({"betas": (0.5, 0.75)}, lr=0.25)
    assert dist.opt.lr == 0.25 and group["lr"] == 0.25
    group |= {"lr": 0.125, "initial_lr": 1}
    assert dist.opt.lr == 0.125 and group["initial_lr"] == 1
    for bad, message in (({"lr": 0.5, "betas": 2}, r"\['betas'\] is .* become 2:"),
                         ({"initial_lr": 2, "lr": -1}, "lr is -1"),
                         ({"initial_lr": 2, "lr": "fast"}, r"\['lr'\] is 0.125 and .* 'fast'"),
                         ({"initial_lr": 2, "eps": None}, r"\['eps'\] is .* become None")):
        with pytest.raises(tutti.InvalidArgument, match=message):
            group.update(bad)
        assert dist.opt.lr == 0.125 and group["lr"] == 0.125 and group["initial_lr"] == 1


def test_a_state_dict_resumes_to_the_bit(comm):
    models = []
    for resumes in (False, True):
        model = mlp()
        dist = opt.DistOpt(opt.AdamW(lr=0.1), communicator=comm)
        dist.register_parameters(model)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(dist.torch_optimizer(), 0.7)
        for step in range(6):
            if resumes and step == 3:
                file = io.BytesIO()
                torch.save([model.state_dict(), dist.state_dict(), scheduler.state_dict()], file)
                file.seek(0)
                saved = torch.load(file, weights_only=VERSION >= (2, 0))
                model = mlp(1)
                model.load_state_dict(saved[0])
                dist = opt.DistOpt(opt.AdamW(lr=0.5), communicator=comm)
                dist.register_parameters(model)
                dist.load_state_dict(saved[1])
                assert dist.opt.lr == pytest.approx(0.1 * 0.7 ** 3)
                scheduler = torch.optim.lr_scheduler.ExponentialLR(dist.torch_optimizer(), 0.7)
                scheduler.load_state_dict(saved[2])
                dist.torch_optimizer().load_state_dict(saved[1])
            dist(model(batch(0, step)).square().mean())
            scheduler.step()
        models.append(model)
    assert_same(*models)


def test_state_dicts_of_others_are_refused_and_change_nothing(comm):
    model = mlp()
    dist = opt.DistOpt(opt.Adam(lr=0.5), communicator=comm)
    dist.register_parameters(model)
    dist(model(batch(0, 0)).mean())
    good = copy.deepcopy(dist.state_dict())
    group = good["param_groups"][0]
    dist(model(batch(0, 1)).mean())
    here = dist.state_dict()
    for bad, message in (
            (dist.state(), "'state' and 'param_groups'"),
            (torch.optim.SGD(model.parameters(), lr=0.1).state_dict(), "state"),
            ({**good, "param_groups": [group, group]}, "one dict"),
            ({**good, "param_groups": [["lr"]]}, "one dict"),
            ({**good, "param_groups": [{**group, "lr": -1}]}, "lr is -1"),
            ({**good, "param_groups": [{**group, "lr": "fast"}]}, r"\['lr'\] is 0.5 .* 'fast'"),
            ({**good, "param_groups": [{**group, "lr": None}]}, r"\['lr'\] is 0.5 .* None"),
            ({**good, "param_groups": [{**group, "eps": "small"}]}, r"\['eps'\] is .* 'small'"),
            ({**good, "param_groups": [{**group, "lr": 0.1, "eps": 0.5}]}, r"\['eps'\] is 9.9.* 0\.5"),
            ({"param_groups": [{**group, "lr": 0.1}], "state": {"arrays": {}, "numbers": {}}},
             "exp_avg")):
        with pytest.raises(tutti.InvalidArgument, match=message):
            dist.load_state_dict(bad)
    assert dist.opt.lr == 0.5
    assert dist.state_dict()["state"]["numbers"] == here["state"]["numbers"]
    for name, array in dist.state_dict()["state"]["arrays"].items():
        assert torch.equal(array, here["state"]["arrays"][name])
        assert not torch.equal(array, good["state"]["arrays"][name])
    dist.load_state_dict({**good, "param_groups": [{**group, "lr": 0.25, "params": [0]}]})
    assert dist.opt.lr == 0.25 and len(dist.param_groups[0]["params"]) == 4
    for name, array in dist.state_dict()["state"]["arrays"].items():
        assert torch.equal(array, good["state"]["arrays"][name])
