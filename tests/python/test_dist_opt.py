"""DistOpt in full precision against NumPy, on whole numbers, where every order is exact."""

import gc

import numpy
import pytest

import launching
import tutti
from tutti import opt

SHAPES = [(3, 5), (), (64,), (0,), (17, 2), (1000,)]


def parameters():
    return [numpy.full(shape, 8.0 * i, numpy.float32) for i, shape in enumerate(SHAPES)]


def gradient(rank, ranks, step, i):
    """Its average over the ranks is a whole number."""
    base = numpy.arange(numpy.prod(SHAPES[i], dtype=int)).reshape(SHAPES[i]) % 5
    return numpy.array(base + rank * ranks + step + i, numpy.float32)


class Reference:
    """torch.optim.SGD in NumPy, on averages."""

    def __init__(self, lr, momentum=0.0, nesterov=False):
        self.lr, self.momentum, self.nesterov = lr, momentum, nesterov
        self.params = parameters()
        self.velocity = [numpy.zeros_like(p) for p in self.params]

    def step(self, ranks, step):
        for i, (p, m) in enumerate(zip(self.params, self.velocity)):
            d = sum(gradient(rank, ranks, step, i) for rank in range(ranks)) / ranks
            m[...] = self.momentum * m + d
            p[...] -= self.lr * (d + self.momentum * m if self.nesterov else m)


def assert_equal(params, expected):
    for ours, theirs in zip(params, expected):
        numpy.testing.assert_array_equal(ours, theirs)


def pairs(params, place, step):
    for i in reversed(range(len(params))):
        yield params[i], gradient(place.rank, place.ranks, step, i)


def steps(place):
    train(place, place.dist_opt(opt.SGD(lr=0.5)), 0.0, False)  # in one bucket


def steps_in_several_buckets(place):
    comm = place.communicator()
    for buff_size, nesterov in ((64, False), (1, True)):
        sgd = opt.SGD(lr=0.5, momentum=0.5, nesterov=nesterov)
        train(place, opt.DistOpt(sgd, communicator=comm, buffSize=buff_size), 0.5, nesterov)


def train(place, dist, momentum, nesterov):
    reference = Reference(0.5, momentum, nesterov)
    params = parameters()
    for step in range(4):
        if step % 2:
            dist(pairs(params, place, step))
        else:
            dist.backward_and_update(list(pairs(params, place, step)))
        reference.step(place.ranks, step)
        assert_equal(params, reference.params)
    assert (dist.world_size, dist.global_rank, dist.local_rank) == (place.ranks, place.rank, place.rank)
    assert dist.bytes_per_step >= 4 * sum(p.size for p in params)


def test_steps_in_one_bucket(on_ranks):
    on_ranks(steps)


def test_steps_in_several_buckets(on_ranks):
    on_ranks(steps_in_several_buckets)


def decaying(place):
    """dampening, weight_decay and missing_as_zero: each step another parameter is left out."""
    lr, momentum, dampening, decay = 0.5, 0.5, 0.25, 0.125
    dist = place.dist_opt(opt.SGD(lr, momentum, dampening, decay), missing_as_zero=True)
    params = parameters()
    expected = [p.copy() for p in params]
    velocity = [None] * len(params)
    for step in range(4):
        missing = None if step == 0 else step - 1
        dist((p, g) for i, (p, g) in zip(reversed(range(len(params))), pairs(params, place, step))
             if i != missing)
        for i, p in enumerate(expected):
            d = decay * p
            if i != missing:
                d += sum(gradient(rank, place.ranks, step, i) for rank in range(place.ranks)
                         ) / numpy.float32(place.ranks)
            velocity[i] = d if step == 0 else momentum * velocity[i] + (1 - dampening) * d
            p[...] -= lr * velocity[i]
    for ours, theirs in zip(params, expected):
        numpy.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_weight_decay_dampening_and_missing_gradients():
    launching.run(decaying, 2, "fork")


def reading(place):
    dist = place.dist_opt(opt.SGD(lr=1.0), buffSize=10)
    params = parameters()
    scratch = numpy.empty(1000, numpy.float32)

    def backward(step):
        before = [p.copy() for p in params]
        for i in reversed(range(len(params))):
            view = scratch[: params[i].size].reshape(SHAPES[i])
            view[...] = gradient(place.rank, place.ranks, step, i)
            yield params[i], view
            scratch[:] = numpy.nan  # a gradient was taken when the next one is asked for
            assert_equal(params, before)

    reference = Reference(1.0)
    for step in range(3):
        dist(backward(step))
        reference.step(place.ranks, step)
        assert_equal(params, reference.params)


def test_no_parameter_is_written_before_the_pass_has_ended(on_ranks):
    on_ranks(reading)


def registered(place):
    dist = place.dist_opt(opt.SGD(lr=1.0), buffSize=50)
    params = parameters()
    if place.rank > 0:
        for p in params:
            p[...] = -1
    gradients = dist.register_parameters([(f"p{i}", p) for i, p in enumerate(params)])
    assert_equal(params, parameters())  # those of rank 0
    with pytest.raises(tutti.InvalidArgument, match="already registered"):
        dist.register_parameters(params)
    assert [g.shape for g in gradients] == SHAPES and not any(g.any() for g in gradients)
    reference = Reference(1.0)
    for step in range(2):
        for i, g in enumerate(gradients):
            g[...] = gradient(place.rank, place.ranks, step, i)
        dist(zip(reversed(params), reversed(gradients)))
        reference.step(place.ranks, step)
        assert_equal(params, reference.params)
    del dist
    gc.collect()
    gradients[0][...] = 1  # they keep their memory


def test_registered_parameters(on_ranks):
    on_ranks(registered)


def sums(place):
    dist = place.dist_opt(opt.SGD(lr=1.0))
    ranks = place.ranks
    total = ranks * (ranks + 1) // 2
    tensors = [numpy.full(n, place.rank + 1, dtype) for n, dtype in
               [(5, "float32"), (0, "int64"), (100_000, "float16"), (3, "uint8")]]
    for tensor in tensors:
        dist.all_reduce(tensor)
    dist.all_reduce(numpy.ones(1 << 20, numpy.float32))  # a temporary lives until it is summed
    dist.wait()
    assert all((tensor == total).all() for tensor in tensors)

    first, second = numpy.full(7, place.rank + 1.0), numpy.full((2, 3), place.rank + 2.0)
    dist.fused_all_reduce([first], send=False)
    dist.fused_all_reduce([second], send=False)
    dist.fused_all_reduce([first, second])
    dist.wait()
    assert (first == total).all() and (second == total + ranks).all()
    with pytest.raises(tutti.InvalidArgument, match="nothing was filled"):
        dist.fused_all_reduce([first])

    param = numpy.zeros(4, numpy.float32)
    dist.register_parameters([param])
    grad = numpy.full(4, place.rank * ranks, numpy.float32)
    dist.all_reduce(grad)
    with pytest.raises(tutti.InvalidArgument, match="sums are still under way"):
        dist.update(param, grad)
    dist.wait()
    dist.update(param, grad)  # divides by world_size
    dist.step()
    assert (param == -sum(range(ranks))).all()
    assert dist.state()["numbers"]["steps"] == 1


def test_sums_wait_and_update(on_ranks):
    on_ranks(sums)


def refusals(place):
    dist = place.dist_opt(opt.SGD(lr=1.0))
    params = parameters()
    reference = Reference(1.0)

    def failing():
        yield from list(pairs(params, place, 0))[:3]
        raise KeyError("in the middle")

    bad = [
        (failing(), KeyError, "in the middle"),
        (5, TypeError, "loss is a int"),
        ([params[0]], TypeError, "loss must yield pairs"),
        ([(params[0], [1.0])], TypeError, "gradient is a list"),
        ([([1.0], params[0])], TypeError, "parameter is a list"),
        ([(params[0].astype("f8"), params[0])], tutti.InvalidArgument, ""),
        ([(params[0], params[2])], tutti.InvalidArgument, ""),
        ([(params[0].T, params[0])], tutti.InvalidArgument, "parameter is not contiguous"),
    ]
    for _ in range(2):  # before there are parameters, and afterwards
        for loss, error, message in bad:
            before = [p.copy() for p in params]
            with pytest.raises(error, match=message):
                dist(loss)
            assert_equal(params, before)
        dist(pairs(params, place, 0))
        reference.step(place.ranks, 0)
        assert_equal(params, reference.params)
        bad[0] = (failing(), KeyError, "in the middle")
    for loss, message in [
        (list(pairs(params, place, 0))[:-1], "was not emitted|missing"),
        (list(pairs(params, place, 0))[::-1], "order"),
        (list(pairs(params, place, 0))[:1] * 2, "twice"),
    ]:
        with pytest.raises(tutti.InvalidArgument):
            dist(loss)
    kept = []
    dist._update(lambda emit: (kept.append(emit), [emit(*pair) for pair in
                                                   pairs(params, place, 1)]), 4096)
    with pytest.raises(tutti.InvalidArgument, match="after its backward pass"):
        kept[0](params[0], params[0])


def test_refusals_change_nothing(on_ranks):
    on_ranks(refusals)


def other_shapes(place):
    dist = place.dist_opt(opt.SGD(lr=1.0))
    first, last = (10, 20), (20, 10)
    own = numpy.full(last if place.rank == 1 else first, place.rank, numpy.float32)
    with pytest.raises(tutti.MismatchError,
                       match=r"'w' is \(10, 20\) on rank 0, but \(20, 10\) on rank 1$"):
        dist.register_parameters([numpy.zeros(3, numpy.float32), ("w", own)])
    assert (own == place.rank).all()
    with pytest.raises(tutti.InvalidArgument, match="rank 1 are not those of rank 0"):
        dist.register_parameters([own[place.rank:]])
    dist.register_parameters([own.reshape(first)])
    assert (own == 0).all()


def test_shapes_that_differ_are_refused_everywhere():
    for launch in ("fork", "mpi"):
        launching.run(other_shapes, 2, launch)


def half_way(place):
    dist = place.dist_opt(opt.SGD(), buffSize=1)
    params = parameters()

    def failing():
        for i, pair in enumerate(pairs(params, place, 0)):
            if i == 3 and place.rank == 1:
                raise KeyError("out of data")
            yield pair

    if place.rank == 1:
        dist(pairs(params, place, 0))
        with pytest.raises(KeyError, match="out of data"):
            dist(failing())
    else:
        with pytest.raises(tutti.PeerLost, match="out of data") as lost:
            dist(pairs(params, place, 0))  # it, too, may fail, where rank 1 has gone on already
            dist(failing())
        assert lost.value.ranks == (1,)
    with pytest.raises(tutti.CommunicationError):
        dist(pairs(params, place, 0))


@pytest.mark.parametrize("launch", ["fork", "mpi"])
def test_a_pass_that_fails_half_way_is_told_to_the_others(launch):
    launching.run(half_way, 3, launch, finalises=launch != "mpi")


def resume(place, folder):
    path = f"{folder}/state{place.rank}.npz"
    params, again = parameters(), parameters()

    def train(dist, arrays, start, end):
        for step in range(start, end):
            dist(pairs(arrays, place, step))

    whole = place.dist_opt(opt.SGD(lr=0.25, momentum=0.5))
    train(whole, params, 0, 3)
    tutti.save(path, whole)
    again = [p.copy() for p in params]
    train(whole, params, 3, 6)

    other = opt.DistOpt(opt.SGD(lr=0.25, momentum=0.5), communicator=whole.communicator)
    other.register_parameters(again[::-1])  # in the order of the first pass
    tutti.load(path, other)
    train(other, again, 3, 6)
    assert_equal(again, params)
    for key, array in whole.state()["arrays"].items():
        numpy.testing.assert_array_equal(other.state()["arrays"][key], array)

    smaller = opt.DistOpt(opt.SGD(momentum=0.5), communicator=whole.communicator)
    smaller.register_parameters([numpy.zeros(3, numpy.float32)])
    with pytest.raises(tutti.InvalidArgument):
        tutti.load(path, smaller)


def test_a_saved_state_goes_on_to_the_bit(on_ranks, tmp_path):
    on_ranks(resume, str(tmp_path))


def test_the_default_learning_rate_is_that_of_singa():
    assert opt.SGD().lr == numpy.float32(0.1)


def test_what_the_constructor_refuses():
    ticket = tutti.NcclIdHolder()
    comm = tutti.Communicator(0, 1, tutti.NcclIdHolder())
    for arguments in [dict(nccl_id=ticket), dict(local_rank=0, world_size=1), dict(buffSize=0),
                      dict(nccl_id=ticket, local_rank=1, world_size=1),
                      dict(communicator=comm, nccl_id=ticket),
                      dict(nccl_id=ticket, local_rank=0, world_size=1, timeout=0)]:
        with pytest.raises(tutti.InvalidArgument):
            opt.DistOpt(opt.SGD(), **arguments)
    with pytest.raises(tutti.InvalidArgument, match="lr"):
        opt.SGD(lr=-1)
    sgd = opt.SGD(lr=0.5)
    sgd.lr = 0.25
    assert (sgd.lr, sgd.momentum, sgd.nesterov) == (0.25, 0, False)
