"""DistOpt on models of PyTorch: several passes a step, checkpointing, schedulers and state_dict."""

import copy
import gc
import io
import warnings

import pytest

import launching
import tutti
from torch_models import STEPS, VERSION, assert_same, batch, mlp, torch
from tutti import opt

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


@pytest.mark.parametrize("sparse", [False, True])
def test_gradients_of_passes_by_hand_are_not_lost_silently(comm, sparse):
    table = torch.nn.Embedding(5, 2, sparse=sparse)
    weight = torch.nn.init.zeros_(table.weight)
    before = torch.zeros(5, 2)
    dist = opt.DistOpt(opt.SGD(lr=1.0), communicator=comm)
    dist.register_parameters(table)

    def loss():
        return table(torch.tensor([1, 3])).sum()

    def refused(call):
        gradient = weight.grad
        with pytest.raises(tutti.InvalidArgument, match=r"^parameter 'weight' has a gradient.*accumulate\(loss"):
            call(loss())
        assert weight.grad is gradient

    loss().backward()
    refused(dist)
    refused(dist.accumulate)
    assert torch.equal(weight, before)
    dist.zero_grad()
    dist(loss())
    dist(loss())  # what a step leaves is of no more use
    loss().backward()  # adds to it
    refused(dist)
    dist.zero_grad(set_to_none=False)
    dist.accumulate(loss())
    dist(loss())
    before[[1, 3]] -= 4
    assert torch.equal(weight, before)
    with pytest.raises(tutti.InvalidArgument, match=r"^a parameter of shape \(3,\) has a gradient"):
        other = torch.ones(3, requires_grad=True)
        other.sum().backward()
        dist(other.sum() + loss())



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
    "OneCycleLR": lambda one: torch.optim.lr_scheduler.OneCycleLR(one, 0.5, total_steps=9),
    "CyclicLR": lambda one: torch.optim.lr_scheduler.CyclicLR(
        one, 0.01, 0.1, step_size_up=3, cycle_momentum="momentum" in one.defaults),
}
OPTIMISERS = {
    "SGD": (lambda: opt.SGD(lr=0.1, momentum=0.5), lambda of: torch.optim.SGD(of, 0.1, momentum=0.5)),
    "Adam": (lambda: opt.Adam(lr=0.1), lambda of: torch.optim.Adam(of, 0.1)),
    "AdamW": (lambda: opt.AdamW(lr=0.1), lambda of: torch.optim.AdamW(of, 0.1)),
}


@pytest.mark.parametrize("rule", OPTIMISERS)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(comm, name, rule):
    model, reference = mlp(), mlp()
    make, make_theirs = OPTIMISERS[rule]
    dist = opt.DistOpt(make(), communicator=comm)
    with pytest.raises(tutti.InvalidArgument, match="register_parameters"):
        dist.torch_optimizer()
    dist.register_parameters(model)
    other = make_theirs(reference.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours, theirs = (SCHEDULERS[name](one) for one in (dist.torch_optimizer(), other))
        for step in range(8):
            dist(model(batch(0, step)).square().mean())
            other.zero_grad()
            reference(batch(0, step)).square().mean().backward()
            other.step()
            ours.step()
            theirs.step()
            for option in ("lr", "momentum" if rule == "SGD" else "betas"):
                expected = other.param_groups[0][option]
                assert getattr(dist.opt, option) == pytest.approx(expected, rel=1e-6)
                assert dist.param_groups[0][option] == pytest.approx(expected)
            assert ours.get_last_lr() == pytest.approx(theirs.get_last_lr())
    for one, two in zip(model.parameters(), reference.parameters()):
        torch.testing.assert_close(one, two)
    with pytest.raises(tutti.InvalidArgument, match="called with the loss"):
        dist.torch_optimizer().step()
    with pytest.raises(tutti.InvalidArgument, match="add_param_group: a DistOpt has one group"):
        dist.torch_optimizer().add_param_group({"params": [torch.zeros(2, requires_grad=True)]})
    assert len(dist.torch_optimizer().param_groups) == 1


def test_an_optimiser_goes_with_its_dist_opt(comm):
    """By its last reference, whatever stood for it, and whoever holds its gradients; then another
    DistOpt may have it."""
    adam = opt.Adam(lr=0.5)
    gc.disable()
    try:
        for _ in range(2):
            dist = opt.DistOpt(adam, communicator=comm)
            gradients = dist.register_parameters(mlp())
            facade = dist.torch_optimizer()
            scheduler = torch.optim.lr_scheduler.ExponentialLR(facade, 0.5)
            with pytest.raises(tutti.InvalidArgument, match="belongs to another DistOpt"):
                opt.DistOpt(adam, communicator=comm).register_parameters(mlp())
        del dist
        opt.DistOpt(adam, communicator=comm).register_parameters(mlp())
        assert gradients
        scheduler.step()
        assert facade.param_groups[0]["lr"] == 0.25
        with pytest.raises(tutti.InvalidArgument, match="is gone"):
            facade.zero_grad()
    finally:
        gc.enable()


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
    with pytest.raises(tutti.InvalidArgument, match=r"\['eps'\] .* cannot become 1: .* only lr and betas"):
        group["eps"] = 1
    group["betas"] = [0.25, 0.75]
    assert dist.opt.betas == (0.25, 0.75)
    dist.opt.betas = (0.5, 0.5)
    assert group["betas"] == (0.5, 0.5)
    with pytest.raises(tutti.InvalidArgument, match="beta2 is 1,"):
        group.update(lr=0.125, betas=(0.25, 1))
    assert (dist.opt.lr, group["lr"], dist.opt.betas, group["betas"]) == (0.5, 0.5, (0.5, 0.5), (0.5, 0.5))
    for bad in (0.5, (0.5,), (0.5, 0.5, 0.5), (0.5, "fast")):
        with pytest.raises(tutti.InvalidArgument, match=r"\['betas'\] is .* of another kind"):
            group["betas"] = bad
    with pytest.raises(tutti.InvalidArgument, match="lr is -1"):
        group["lr"] = -1
    group["betas"] = (0.5, 0.75)
    assert group["lr"] == 0.5
    group.update({"betas": (0.5, 0.75)}, lr=0.25)
    assert dist.opt.lr == 0.25 and group["lr"] == 0.25
    group |= {"lr": 0.125, "initial_lr": 1}
    assert dist.opt.lr == 0.125 and group["initial_lr"] == 1
    for bad, message in (({"lr": 0.5, "betas": 2}, r"\['betas'\] is .* become 2,"),
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
