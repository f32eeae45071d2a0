"""Adam, AdamW and Adagrad under DistOpt, in every mode, against their formulas in double."""

import numpy
import pytest

import launching
import tutti
from tutti import opt

SHAPES = [(3, 5), (), (64,), (0,), (17, 2), (1000,)]
STEPS = 4


def parameters():
    return [numpy.full(shape, 0.5 * (i + 1), numpy.float32) for i, shape in enumerate(SHAPES)]


def gradient(rank, step, i):
    """Multiples of 1/8 that no average of a few ranks makes zero, exact in 16 bits."""
    rng = numpy.random.default_rng((rank, step, i))
    return ((rng.integers(1, 64, SHAPES[i]) - 64 * (step % 2)) / 8).astype(numpy.float32)


def pairs(params, rank, step):
    for i in reversed(range(len(params))):
        yield params[i], gradient(rank, step, i)


@pytest.fixture(params=[("fork", 2), ("spawn", 1), ("mpi", 3)], ids=lambda world: world[0])
def on_ranks(request):
    """Calls a function on ranks; what it returned, by rank."""
    launch, ranks = request.param
    return lambda body: launching.run(body, ranks, launch)


class Adam:
    """torch.optim.Adam and, if decoupled, AdamW, of one array in double."""

    def __init__(self, p, decoupled, lr, betas, eps, weight_decay):
        self.p, self.m, self.v, self.t = p.astype(float), 0.0, 0.0, 0
        self.options = decoupled, lr, betas, eps, weight_decay

    def step(self, g):
        decoupled, lr, (beta1, beta2), eps, weight_decay = self.options
        self.t += 1
        if decoupled:
            self.p = self.p * (1 - lr * weight_decay)
        else:
            g = g + weight_decay * self.p
        self.m = beta1 * self.m + (1 - beta1) * g
        self.v = beta2 * self.v + (1 - beta2) * g * g
        m, v = self.m / (1 - beta1 ** self.t), self.v / (1 - beta2 ** self.t)
        self.p = self.p - lr * m / (numpy.sqrt(v) + eps)


class Adagrad:
    """torch.optim.Adagrad of one array in double."""

    def __init__(self, p, lr, lr_decay, weight_decay, initial_accumulator_value, eps):
        self.p, self.sum, self.t = p.astype(float), initial_accumulator_value, 0
        self.options = lr, lr_decay, weight_decay, eps

    def step(self, g):
        lr, lr_decay, weight_decay, eps = self.options
        g = g + weight_decay * self.p
        self.sum = self.sum + g * g
        self.p = self.p - lr / (1 + self.t * lr_decay) * g / (numpy.sqrt(self.sum) + eps)
        self.t += 1


ADAM = dict(lr=0.125, betas=(0.75, 0.875), eps=1e-3, weight_decay=0.25)
ADAGRAD = dict(lr=0.125, lr_decay=0.5, weight_decay=0.25, initial_accumulator_value=2.0, eps=1e-3)
OPTIMISERS = {
    "Adam": (lambda: opt.Adam(**ADAM), lambda p: Adam(p, False, **ADAM)),
    "AdamW": (lambda: opt.AdamW(**ADAM), lambda p: Adam(p, True, **ADAM)),
    "Adagrad": (lambda: opt.Adagrad(**ADAGRAD), lambda p: Adagrad(p, **ADAGRAD)),
}
# Where all that is there is sent, the sparse modes are exact as well.
MODES = [("fp32", {}), ("fp16", {}), ("bf16", {}), ("sparseTopK", dict(spars=1.0)),
         ("sparseThreshold", dict(spars=0.0))]


def dist_of(place, comm, name, mode):
    dist = opt.DistOpt(OPTIMISERS[name][0](), communicator=comm, dist_option=mode[0], buffSize=100,
                       **mode[1])
    assert dist.world_size == place.ranks
    return dist


def modes(place):
    comm = place.communicator()
    for name, (_, reference) in OPTIMISERS.items():
        for mode in MODES:
            dist = dist_of(place, comm, name, mode)
            params = parameters()
            expected = [reference(p) for p in params]
            for step in range(STEPS):
                dist(pairs(params, place.rank, step))
                for i, one in enumerate(expected):
                    one.step(sum(gradient(rank, step, i).astype(float)
                                 for rank in range(place.ranks)) / place.ranks)
            atol = 2e-2 if mode[0] in ("fp16", "bf16") else 1e-5
            for p, one in zip(params, expected):
                numpy.testing.assert_allclose(p, one.p, atol=atol, err_msg=f"{name} {mode}")


def test_all_modes_follow_the_formulas(on_ranks):
    on_ranks(modes)


def partial(place):
    comm = place.communicator()
    digest = []
    for name, (_, reference) in OPTIMISERS.items():
        dist = dist_of(place, comm, name, ("partialUpdate", {}))
        params = parameters()
        one = reference(params[5])
        dist(pairs(params, place.rank, 0))  # averages the last partition, the first parameters
        one.step(gradient(place.rank, 0, 5).astype(float))
        dist.communicator.all_reduce(params[5], op="average")
        total = one.p.astype(numpy.float32)
        dist.communicator.all_reduce(total, op="average")
        numpy.testing.assert_allclose(params[5], total, atol=1e-5)
        dist.synchronize()
        digest.append([p.tobytes() for p in params])
    return digest


def test_partial_updates_are_local(on_ranks):
    results = on_ranks(partial)
    assert all(result == results[0] for result in results)


def resumes(place):
    comm = place.communicator()
    for name in OPTIMISERS:
        for mode in (("fp32", {}), ("bf16", {}), ("partialUpdate", {}),
                     ("sparseTopK", dict(spars=0.25)), ("sparseThreshold", dict(spars=4.0))):
            first = dist_of(place, comm, name, mode)
            params = parameters()
            first.register_parameters(params)
            for step in range(2):
                first(pairs(params, place.rank, step))
            copies = [p.copy() for p in params]
            second = dist_of(place, comm, name, mode)
            # What registration gives to all is rank 0's; partial updates have left others.
            second.register_parameters(copies)
            for copy, p in zip(copies, params):
                copy[...] = p
            second.load_state(first.state())
            for step in range(2, STEPS):
                first(pairs(params, place.rank, step))
                second(pairs(copies, place.rank, step))
            for copy, p in zip(copies, params):
                assert copy.tobytes() == p.tobytes(), (name, mode)


def test_a_state_resumes_to_the_bit(on_ranks):
    on_ranks(resumes)


def test_a_state_of_another_rule_is_refused():
    comm = tutti.Communicator(0, 1, tutti.NcclIdHolder())
    states = {}
    for name, (make, _) in dict(OPTIMISERS, SGD=(lambda: opt.SGD(momentum=0.5), None)).items():
        dist = opt.DistOpt(make(), communicator=comm)
        param = numpy.ones(3, numpy.float32)
        dist.register_parameters([param])
        dist([(param, param)])
        states[name] = dist, dist.state()
    assert set(states["Adam"][1]["arrays"]) == {"exp_avg", "exp_avg_sq"}
    assert set(states["Adagrad"][1]["arrays"]) == {"sum"}
    for name, (dist, own) in states.items():
        for other, (_, state) in states.items():
            if {name, other} == {"Adam", "AdamW"} or name == other:
                dist.load_state(state)
                continue
            with pytest.raises(tutti.InvalidArgument, match="the state has an array"):
                dist.load_state(state)
        assert dist.state()["numbers"] == own["numbers"]


def test_a_schedule_of_learning_rates():
    comm = tutti.Communicator(0, 1, tutti.NcclIdHolder())
    for make, _ in OPTIMISERS.values():
        lengths = []
        for lr in (0.5, 0.25, 0.0):
            dist = opt.DistOpt(make(), communicator=comm)
            param = numpy.zeros(3, numpy.float32)
            dist.opt.lr = lr
            assert dist.opt.lr == lr
            dist([(param, numpy.ones(3, numpy.float32))])
            lengths.append(param[0])
        assert lengths[0] < 0 and lengths[2] == 0
        assert lengths[1] == pytest.approx(lengths[0] / 2, rel=1e-6)


@pytest.mark.parametrize("make, message", [
    (lambda: opt.Adam(lr=-1), "AdamOptions::lr is -1,"),
    (lambda: opt.Adam(betas=(1.0, 0.9)), "AdamOptions::beta1 is 1,"),
    (lambda: opt.Adam(betas=(0.9, -0.5)), r"AdamOptions::beta2 is -0\.5,"),
    (lambda: opt.Adam(eps=float("nan")), "AdamOptions::eps is nan,"),
    (lambda: opt.AdamW(weight_decay=-2), "AdamWOptions::weight_decay is -2,"),
    (lambda: opt.Adagrad(lr_decay=-1), "AdagradOptions::lr_decay is -1,"),
    (lambda: opt.Adagrad(initial_accumulator_value=float("inf")),
     "AdagradOptions::initial_accumulator_value is inf,"),
    (lambda: setattr(opt.Adagrad(), "lr", -1), "lr is -1,"),
])
def test_bad_options_are_refused(make, message):
    with pytest.raises(tutti.InvalidArgument, match=message):
        make()


def test_the_options_can_be_read():
    adam = opt.AdamW(lr=0.5, betas=(0.25, 0.75), eps=0.125, weight_decay=0.5)
    assert (adam.lr, adam.betas, adam.eps, adam.weight_decay) == (0.5, (0.25, 0.75), 0.125, 0.5)
    adagrad = opt.Adagrad(**ADAGRAD)
    for option, value in ADAGRAD.items():
        assert getattr(adagrad, option) == pytest.approx(value), option
    assert opt.Adam().lr == pytest.approx(0.001) and opt.AdamW().weight_decay == pytest.approx(0.01)
    with pytest.raises(TypeError, match="No constructor defined"):
        opt.Optimizer()
