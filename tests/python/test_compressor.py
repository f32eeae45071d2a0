"""Compressors that are written in Python, the one of docs/python.md among them."""

import gc
import pathlib
import sys
import weakref

import numpy
import pytest

import launching
import tutti
from tutti import opt

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples" / "compressor"))

from eight_bits import EightBits  # noqa: E402

SHAPES = [(40, 10), (100,), (7,)]
STEPS = 30


def gradient(rank, step, i):
    rng = numpy.random.default_rng((rank, step, i))
    return rng.standard_normal(SHAPES[i], numpy.float32)


def parameters():
    return [numpy.zeros(shape, numpy.float32) for shape in SHAPES]


def pairs(params, rank, step):
    return ((params[i], gradient(rank, step, i)) for i in reversed(range(len(params))))


def eight_bits(place):
    comm = place.communicator()
    dist = opt.DistOpt(opt.SGD(lr=1.0), communicator=comm, compressor=EightBits)
    params = parameters()
    dist.register_parameters(params)
    for step in range(STEPS):
        dist(pairs(params, place.rank, step), threshold=(1, 100, 10_000)[step % 3])
        assert dist.statistics()["density"] == 1
        assert 507 + 4 <= dist.bytes_per_step <= 507 + 3 * (4 + 15)
    for i, p in enumerate(params):
        exact = -sum(gradient(rank, step, i).astype(numpy.float64)
                     for rank in range(place.ranks) for step in range(STEPS)) / place.ranks
        numpy.testing.assert_allclose(p, exact, atol=0.06)  # less than a unit, however many steps
    state = dist.state()
    assert state["arrays"]["dist.custom.lost"].shape == (507,)
    resumed = opt.DistOpt(opt.SGD(lr=1.0), communicator=comm, compressor=EightBits)
    copies = [p.copy() for p in params]
    resumed.register_parameters(copies)  # of rank 0, which are those of all
    resumed.load_state(state)
    for step in range(STEPS, STEPS + 3):
        dist(pairs(params, place.rank, step), threshold=100)
        resumed(pairs(copies, place.rank, step), threshold=100)
        for p, copy in zip(params, copies):
            numpy.testing.assert_array_equal(p, copy)
    return [p.tobytes() for p in params]


def test_the_one_of_the_documents(on_ranks):
    results = on_ranks(eight_bits)
    assert all(result == results[0] for result in results)


class Plain(opt.Compressor):
    """Averages as fp32 does."""

    def __init__(self, site):
        self.site = site
        self.calls = []

    def begin(self):
        self.calls.clear()

    def encode(self, bucket):
        self.calls.append("e")
        return bucket.elements, bucket.gradients.nbytes

    def exchange(self, bucket, stream):
        self.calls.append("x")
        return self.site.communicator.all_reduce(bucket.gradients, op="average", stream=stream)

    def decode(self, bucket):
        self.calls.append("d")


def calls(place):
    made = []

    def make(site):
        made.append(Plain(site))
        return made[-1]

    comm = place.communicator()
    dist = opt.DistOpt(opt.SGD(lr=1.0), communicator=comm, compressor=make, dist_option="fp16")
    full = opt.DistOpt(opt.SGD(lr=1.0), communicator=comm)
    params, copies = parameters(), parameters()
    for step, (bucket, expected) in enumerate([(1, "exexexddd"), (10_000, "exd")]):
        dist.backward_and_custom_update(pairs(params, place.rank, step), threshold=bucket)
        full(pairs(copies, place.rank, step), threshold=bucket)
        assert "".join(made[0].calls) == expected
        for p, copy in zip(params, copies):
            numpy.testing.assert_array_equal(p, copy)
    assert len(made) == 1
    assert "dist.rank" not in dist.state()["numbers"]  # it keeps nothing
    with pytest.raises(tutti.InvalidArgument, match="keeps something, and test_compressor.Plain"):
        dist.load_state({"arrays": {}, "numbers": {
            **dist.state()["numbers"], "dist.custom.x": 1, "dist.rank": place.rank,
            "dist.world_size": place.ranks}})
    kept = weakref.ref(made[0])
    made.clear()
    del dist
    gc.collect()
    assert kept() is None


def test_calls_come_in_order():
    for launch in ("fork", "mpi"):
        launching.run(calls, 2, launch)
    launching.run(calls, 1, "fork")


class Failing(Plain):
    def encode(self, bucket):
        if len(self.calls) == 2 and self.site.communicator.global_rank == 0:
            raise ValueError("no code for that")
        return super().encode(bucket)


class NoEvent(Plain):
    def exchange(self, bucket, stream):
        super().exchange(bucket, stream)


class NoPair(Plain):
    def encode(self, bucket):
        return 3


def failures(place, make, error, text):
    comm = place.communicator()
    dist = opt.DistOpt(opt.SGD(lr=1.0), communicator=comm, compressor=make)
    if make is Failing and place.rank == 1:
        error, text = tutti.PeerLost, "ValueError: no code for that"
    with pytest.raises(error, match=text):
        dist(pairs(parameters(), place.rank, 0), threshold=1)
    with pytest.raises(tutti.CommunicationError):
        dist(pairs(parameters(), place.rank, 0), threshold=1)


@pytest.mark.parametrize("make, error, text", [
    (Failing, ValueError, "no code for that"),
    (NoEvent, TypeError, r"exchange\(\) is a NoneType, but must be a tutti.Event"),
    (NoPair, TypeError, r"encode\(\) is a int, but must be a pair"),
])
def test_what_it_raises_ends_the_step(make, error, text):
    launching.run(failures, 2, "fork", make, error, text)


def late(place):
    """The first pass has registered its parameters when the compressor fails: they stay."""
    failing = ["__init__", "begin"]

    def fail(method):
        if failing[:1] == [method]:
            raise ValueError(failing.pop(0))

    class Late(Plain):
        def __init__(self, site):
            fail("__init__")
            super().__init__(site)

        def begin(self):
            fail("begin")
            super().begin()

    comm = place.communicator()
    dist = opt.DistOpt(opt.SGD(lr=1.0), communicator=comm, compressor=Late)
    params = parameters()
    addresses = [weakref.ref(p) for p in params]
    for method in tuple(failing):
        with pytest.raises(ValueError, match=method):
            dist(pairs(params, place.rank, 0))
    del params
    gc.collect()
    assert all(address() is not None for address in addresses)
    addresses[0]()[...] = place.rank
    dist.synchronize()
    params = [address() for address in addresses]
    assert (params[0] == (place.ranks - 1) / 2).all()
    params[0][...] = 0
    dist(pairs(params, place.rank, 0))
    for i, p in enumerate(params):
        average = sum(gradient(rank, 0, i) for rank in range(place.ranks)) / numpy.float32(place.ranks)
        numpy.testing.assert_allclose(p, -average, rtol=1e-6, atol=1e-6)


def test_parameters_stay_where_the_first_step_fails():
    launching.run(late, 2, "fork")


def left(place):
    """What a failed exchange works on lives as long as the communicator."""
    packets = []

    class Copying(Plain):
        def exchange(self, bucket, stream):
            packet = bucket.gradients.copy()
            packets.append(weakref.ref(packet))
            return self.site.communicator.all_reduce(packet, stream=stream)

    comm = place.communicator()
    dist = opt.DistOpt(opt.SGD(lr=1.0), communicator=comm, compressor=Copying)
    dist(pairs(parameters(), place.rank, 0), threshold=1)
    gc.collect()
    assert len(packets) == 3 and not any(packet() is not None for packet in packets)
    packets.clear()
    dist = opt.DistOpt(opt.SGD(lr=1.0), communicator=comm, compressor=Copying)
    params = parameters()
    dist.register_parameters(params)
    if place.rank == 1:
        return
    with pytest.raises(tutti.PeerLost):
        dist(pairs(params, place.rank, 0), threshold=1)
    del dist
    gc.collect()
    assert packets[0]() is not None
    del comm
    gc.collect()
    assert packets[0]() is None


def test_what_a_failed_exchange_works_on_stays():
    launching.run(left, 2, "fork")


def raising(place):
    """The error of an exchange, and whose frames its traceback has, end with the DistOpt."""
    packets = []

    class Raising(Plain):
        def exchange(self, bucket, stream):
            packet = bucket.gradients.copy()
            packets.append(weakref.ref(packet))
            if len(packets) == 2:
                self.site.communicator.abort("no more today")
            return self.site.communicator.all_reduce(packet, stream=stream)

    comm = place.communicator()
    dist = opt.DistOpt(opt.SGD(lr=1.0), communicator=comm, compressor=Raising)
    params = parameters()
    dist.register_parameters(params)
    with pytest.raises(tutti.CommunicationError, match="no more today"):
        dist(pairs(params, place.rank, 0), threshold=1)
    del dist, comm
    gc.collect()
    assert [packet() for packet in packets] == [None, None]


def test_an_exchange_that_raises_keeps_nothing():
    launching.run(raising, 2, "fork")


def borrowed(place):
    """A stream that was lent is closed, gradients that were kept stay."""
    kept = {}

    class Keeping(Plain):
        def exchange(self, bucket, stream):
            kept["stream"], kept["gradients"] = stream, bucket.gradients
            return super().exchange(bucket, stream)

    comm = place.communicator()
    dist = opt.DistOpt(opt.SGD(lr=1.0), communicator=comm, compressor=Keeping)
    dist(pairs(parameters(), place.rank, 0), threshold=1)
    with pytest.raises(tutti.CommunicationError, match="the stream is closed"):
        comm.barrier(stream=kept["stream"])
    del dist
    gc.collect()
    kept["gradients"][:] = 1


def test_what_is_lent_is_good_only_then():
    launching.run(borrowed, 2, "fork")


def wrong(place):
    comm = place.communicator()
    with pytest.raises(TypeError, match="compressor is a int, but must be a class"):
        opt.DistOpt(opt.SGD(), communicator=comm, compressor=3)
    with pytest.raises(tutti.InvalidArgument, match="compressor is empty"):
        opt.DistOpt(opt.SGD(), communicator=comm, dist_option="custom")
    dist = opt.DistOpt(opt.SGD(), communicator=comm)
    with pytest.raises(tutti.InvalidArgument, match="compressor is empty"):
        dist.backward_and_custom_update(pairs(parameters(), 0, 0))
    dist = opt.DistOpt(opt.SGD(), communicator=comm, compressor=lambda: None)
    with pytest.raises(TypeError, match="positional argument"):
        dist(pairs(parameters(), 0, 0))


def test_what_is_no_compressor():
    launching.run(wrong, 1, "fork")


def test_the_table_names_methods_and_their_options():
    import inspect

    assert list(opt.MODES) == ["fp32", "fp16", "bf16", "partialUpdate", "sparseTopK",
                               "sparseThreshold"]
    arguments = inspect.signature(opt.DistOpt).parameters
    for mode in opt.MODES.values():
        assert callable(getattr(opt.DistOpt, mode.method))
        assert set(mode.options) <= set(arguments)


@pytest.mark.parametrize("document, example", [
    ("compressors.md", "eight_bits.hpp"), ("compressors.md", "eight_bits.py")])
def test_the_documents_show_the_examples(document, example):
    shown = (ROOT / "docs" / document).read_text()
    assert f"\n{(ROOT / 'examples' / 'compressor' / example).read_text()}```\n" in shown
