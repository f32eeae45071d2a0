"""DistOpt's 16-bit, partial and sparse modes, and their sums, against NumPy."""

import numpy
import pytest

import launching
import tutti
from tutti import opt

SHAPES = [(40, 10), (100,), (7,)]


def gradient(rank, step, i):
    """Multiples of 1/8 below 16: exact in 16 bits, and in every sum of a few ranks."""
    rng = numpy.random.default_rng((rank, step, i))
    return (rng.integers(-127, 128, SHAPES[i]) / 8).astype(numpy.float32)


def parameters():
    return [numpy.zeros(shape, numpy.float32) for shape in SHAPES]


def pairs(params, rank, step):
    return ((params[i], gradient(rank, step, i)) for i in reversed(range(len(params))))


def average(ranks, step, i):
    return sum(gradient(rank, step, i).astype(numpy.float64) for rank in range(ranks)) / ranks


def halves(place):
    comm = place.communicator()
    for half in ("float16", "bfloat16"):
        train_in_halves(place, opt.DistOpt(opt.SGD(lr=1.0), communicator=comm, half=half), half)


def train_in_halves(place, dist, half):
    params = parameters()
    expected = [p.astype(numpy.float64) for p in params]
    for step in range(3):
        dist.backward_and_update_half(pairs(params, place.rank, step), clipping=step == 2,
                                      clip_Value=2.0)
        for i, p in enumerate(expected):
            if step == 2:
                p -= sum(numpy.clip(gradient(rank, step, i), -2, 2).astype(numpy.float64)
                         for rank in range(place.ranks)) / place.ranks
            else:
                p -= average(place.ranks, step, i)
    # 16 / ranks is rounded to 8 or 11 bits, three times.
    for p, e in zip(params, expected):
        numpy.testing.assert_allclose(p, e, atol=3 * 16 * 2.0 ** (-8 if half == "bfloat16" else -11))
    assert dist.bytes_per_step < 3 * sum(p.size for p in params)
    tensor = gradient(place.rank, 9, 0)
    dist.all_reduce_half(tensor)
    fused = [gradient(place.rank, 9, 1), gradient(place.rank, 9, 2)]
    dist.fused_all_reduce_half(fused, send=False)
    dist.fused_all_reduce_half(fused)
    dist.wait()
    for i, got in enumerate([tensor, *fused]):
        numpy.testing.assert_allclose(got, place.ranks * average(place.ranks, 9, i),
                                      atol=place.ranks * 16 * 2.0 ** -8)


def test_half(on_ranks):
    on_ranks(halves)


def partial(place):
    dist = place.dist_opt(opt.SGD(lr=0.5))
    params = parameters()
    local = [[p.copy() for p in params] for _ in range(place.ranks)]
    for step in range(7):
        # Buckets of 100 elements: each parameter is a partition, the last one first.
        dist.backward_and_partial_update(pairs(params, place.rank, step), threshold=100)
        for rank in range(place.ranks):
            for i, p in enumerate(local[rank]):
                p -= 0.5 * gradient(rank, step, i)
        i = (2, 1, 0)[step % 3]
        mean = sum(local[rank][i] for rank in range(place.ranks)) / numpy.float32(place.ranks)
        for rank in range(place.ranks):
            local[rank][i][...] = mean
    for p, e in zip(params, local[place.rank]):
        numpy.testing.assert_allclose(p, e, rtol=1e-5, atol=1e-5)
    dist.synchronize()
    return [p.tobytes() for p in params]


def test_partial(on_ranks):
    results = on_ranks(partial)
    assert all(result == results[0] for result in results)


def sparse(place):
    comm = place.communicator()
    for top_k in (True, False):
        train_sparsely(place, opt.DistOpt(opt.SGD(lr=1.0), communicator=comm), top_k)


def train_sparsely(place, dist, top_k):
    spars = 0.1 if top_k else 12.0
    count = sum(gradient(0, 0, i).size for i in range(3))
    params = parameters()
    residual = numpy.zeros((place.ranks, count))
    expected = numpy.zeros(count)
    for step in range(3):
        dist.backward_and_sparse_update(pairs(params, place.rank, step), spars=spars, topK=top_k)
        for rank in range(place.ranks):
            # One bucket, the last parameter first.
            residual[rank] += numpy.concatenate(
                [gradient(rank, step, i).ravel() for i in (2, 1, 0)])
            magnitude = abs(residual[rank])
            chosen = magnitude >= spars
            if top_k:  # of equal magnitudes the first go
                order = numpy.argsort(-magnitude, kind="stable")[: int(numpy.ceil(spars * count))]
                chosen = numpy.isin(numpy.arange(count), order)
            expected -= numpy.where(chosen, residual[rank], 0) / place.ranks
            residual[rank][chosen] = 0
    got = numpy.concatenate([params[i].ravel() for i in (2, 1, 0)])
    numpy.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert 0 < dist.statistics()["density"] < 1

    tensor, kept = numpy.array([1, -5, 3, 0], numpy.float32), numpy.zeros(4, numpy.float32)
    dist.sparsification(tensor, kept, 0.5, True)
    dist.wait()
    numpy.testing.assert_array_equal(tensor, numpy.array([0, -5, 3, 0]) * place.ranks)
    numpy.testing.assert_array_equal(kept, [1, 0, 0, 0])
    first, second = numpy.array([4, 0], numpy.float32), numpy.array([-1, 9, 2], numpy.float32)
    dist.fused_sparsification([first, second], None, 3.0, False)
    dist.wait()
    numpy.testing.assert_array_equal(first, numpy.array([4, 0]) * place.ranks)
    numpy.testing.assert_array_equal(second, numpy.array([0, 9, 0]) * place.ranks)


def test_sparse(on_ranks):
    on_ranks(sparse)


def forgetful(place):
    """Without corr what is not sent is lost."""
    dist = place.dist_opt(opt.SGD(lr=1.0))
    params = parameters()
    expected = [p.copy() for p in params]
    for step in range(2):
        dist.backward_and_sparse_update(pairs(params, place.rank, step), spars=12.0, corr=False)
        for i, p in enumerate(expected):
            gradients = [gradient(rank, step, i) for rank in range(place.ranks)]
            p -= sum(numpy.where(abs(g) >= 12, g, 0) for g in gradients) / place.ranks
    for p, e in zip(params, expected):
        assert e.any()
        numpy.testing.assert_array_equal(p, e)


def test_sparse_without_corr():
    launching.run(forgetful, 2, "fork")


def chosen(place):
    comm = place.communicator()
    ways = {
        "fp32": ({}, lambda dist, loss: dist.backward_and_update(loss)),
        "fp16": (dict(clipping=True, clip_Value=3.0),
                 lambda dist, loss: dist.backward_and_update_half(loss, clipping=True,
                                                                  clip_Value=3.0)),
        "bf16": ({}, lambda dist, loss: dist.backward_and_update_half(loss)),
        "partialUpdate": ({}, lambda dist, loss: dist.backward_and_partial_update(loss)),
        "sparseTopK": (dict(spars=0.1, corr=False),
                       lambda dist, loss: dist.backward_and_sparse_update(loss, spars=0.1, topK=True,
                                                                          corr=False)),
        "sparseThreshold": (dict(spars=5.0),
                            lambda dist, loss: dist.backward_and_sparse_update(loss, spars=5.0)),
    }
    for option, (arguments, step) in ways.items():
        by_option = opt.DistOpt(opt.SGD(lr=1.0), communicator=comm, dist_option=option, **arguments)
        by_method = opt.DistOpt(opt.SGD(lr=1.0), communicator=comm,
                                half="bfloat16" if option == "bf16" else "float16")
        a, b = parameters(), parameters()
        for i in range(2):
            by_option(pairs(a, place.rank, i))
            step(by_method, pairs(b, place.rank, i))
            for p, q in zip(a, b):
                numpy.testing.assert_array_equal(p, q, err_msg=option)
        assert by_option.bytes_per_step == by_method.bytes_per_step
    with pytest.raises(tutti.InvalidArgument, match="dist_option is 'fp8'"):
        opt.DistOpt(opt.SGD(), communicator=comm, dist_option="fp8")
    with pytest.raises(tutti.InvalidArgument, match="spars is 0"):
        opt.DistOpt(opt.SGD(), communicator=comm, dist_option="sparseTopK", spars=0)


def test_a_mode_that_is_an_option_is_its_method():
    launching.run(chosen, 2, "fork")


def mixed(place, folder):
    dist = place.dist_opt(opt.SGD(lr=0.1, momentum=0.5))
    params = parameters()
    modes = [dist, dist.backward_and_update_half, dist.backward_and_sparse_update,
             dist.backward_and_partial_update]
    for step, mode in enumerate(modes * 2):
        mode(pairs(params, place.rank, step))
    tutti.save(f"{folder}/{place.rank}.npz", dist)
    again = [p.copy() for p in params]
    dist.backward_and_sparse_update(pairs(params, place.rank, 8))
    other = opt.DistOpt(opt.SGD(lr=0.1, momentum=0.5), communicator=dist.communicator)
    own = [p.copy() for p in again]
    other.register_parameters(again[::-1])  # gives all ranks those of rank 0
    for p, o in zip(again, own):
        p[...] = o
    tutti.load(f"{folder}/{place.rank}.npz", other)
    other.backward_and_sparse_update(pairs(again, place.rank, 8))
    for p, a in zip(params, again):
        numpy.testing.assert_array_equal(p, a)


@pytest.mark.parametrize("launch", ["fork", "mpi"])
def test_modes_follow_each_other_and_resume(launch, tmp_path):
    launching.run(mixed, 2, launch, str(tmp_path))


def test_what_the_modes_refuse():
    comm = tutti.Communicator(0, 1, tutti.NcclIdHolder())
    with pytest.raises(tutti.InvalidArgument, match="half"):
        opt.DistOpt(communicator=comm, half="float8")
    dist = opt.DistOpt(communicator=comm)
    params = parameters()
    for arguments in [dict(spars=0.0, topK=True), dict(spars=1.5, topK=True), dict(spars=-1.0)]:
        with pytest.raises(tutti.InvalidArgument, match="spars"):
            dist.backward_and_sparse_update(pairs(params, 0, 0), **arguments)
    with pytest.raises(tutti.InvalidArgument, match="threshold"):
        dist.backward_and_update(pairs(params, 0, 0), threshold=0)
    with pytest.raises(tutti.InvalidArgument, match="clip"):
        dist.backward_and_update_half(pairs(params, 0, 0), clipping=True, clip_Value=-1)
    assert not any(p.any() for p in params)
