"""Communicator: each collective against NumPy, streams, split, symmetric memory."""

import functools
import math

import numpy
import pytest

import tutti

DTYPES = ["float32", "float64", "float16", "int32", "int64", "uint8"]
OTHER_INTEGERS = ["int8", "int16", "uint16", "uint32", "uint64"]
COUNTS = [0, 1, 7, 4096, 100_003]


def data(rank, count, dtype):
    """Whole numbers, so that every order of additions is exact."""
    return ((numpy.arange(count) * 7 + rank * 3) % 11).astype(dtype)


def all_collectives(place):
    comm = place.communicator()
    ranks = range(place.ranks)
    for dtype in DTYPES:
        for count in COUNTS:
            mine = data(place.rank, count, dtype)
            every = [data(rank, count, dtype) for rank in ranks]

            for op, expected in [("sum", sum(every)), ("min", numpy.minimum.reduce(every)),
                                 ("max", numpy.maximum.reduce(every)),
                                 ("product", numpy.multiply.reduce(every))]:
                array = mine.copy()
                comm.all_reduce(array, op=op)
                numpy.testing.assert_array_equal(array, expected.astype(dtype), op)
            out = numpy.empty_like(mine)
            comm.all_reduce(mine, out, factor=2.0)
            numpy.testing.assert_array_equal(out, (2 * sum(every)).astype(dtype))
            numpy.testing.assert_array_equal(mine, every[place.rank])

            for root in ranks:
                array = mine.copy()
                comm.reduce(array, root)
                expected = sum(every) if place.rank == root else mine
                numpy.testing.assert_array_equal(array, expected.astype(dtype))
                array = mine.copy()
                comm.broadcast(array, root)
                numpy.testing.assert_array_equal(array, every[root])

            whole = numpy.concatenate(every)
            out = numpy.empty_like(whole)
            comm.all_gather(mine, out)
            numpy.testing.assert_array_equal(out, whole)
            comm.reduce_scatter(whole, out[:count])
            numpy.testing.assert_array_equal(out[:count], (place.ranks * mine).astype(dtype))
            comm.all_to_all(whole, out)
            numpy.testing.assert_array_equal(out, numpy.tile(mine, place.ranks))

            counts = [count + rank for rank in ranks]
            parts = [data(rank, counts[rank], dtype) for rank in ranks]
            out = numpy.empty(sum(counts), dtype)
            comm.all_gather(parts[place.rank], out, counts)
            numpy.testing.assert_array_equal(out, numpy.concatenate(parts))
    average = numpy.full(3, place.rank, numpy.float64)
    comm.all_reduce(average, op="average")
    assert average[0] == (place.ranks - 1) / 2
    comm.barrier()


def test_every_collective(on_ranks):
    on_ranks(all_collectives)


def integers_and_bools(place):
    comm = place.communicator()
    for dtype in [*OTHER_INTEGERS, "int32", "int64", "uint8", "bool"]:
        every = [data(rank, 1001, dtype) for rank in range(place.ranks)]
        for op, function in [("band", numpy.bitwise_and), ("bor", numpy.bitwise_or),
                             ("bxor", numpy.bitwise_xor), ("land", numpy.logical_and),
                             ("lor", numpy.logical_or), ("lxor", numpy.logical_xor),
                             ("min", numpy.minimum), ("max", numpy.maximum)]:
            array = every[place.rank].copy()
            comm.all_reduce(array, op=op)
            expected = functools.reduce(function, every)
            if op.startswith("l"):
                expected = expected != 0  # of one rank, too
            numpy.testing.assert_array_equal(array, expected.astype(dtype), f"{op} of {dtype}")
        if dtype == "bool":
            with pytest.raises(ValueError, match="^reduce.kind is average, but bool on the CPU has"):
                comm.all_reduce(array, op="average")
        else:
            comm.all_reduce(array, op="sum")
        symmetric = comm.empty(5, dtype)
        assert symmetric.dtype == dtype
        symmetric[:] = place.rank
        comm.broadcast(symmetric, place.ranks - 1)
        assert (symmetric == numpy.array(place.ranks - 1).astype(dtype)).all()
    with pytest.raises(ValueError, match="^reduce.kind is band, but f32 on the CPU has only sum, "):
        comm.all_reduce(numpy.ones(3, numpy.float32), op="band")
    with pytest.raises(ValueError, match="^op is 'xor', but must be sum, .* land, lor or lxor"):
        comm.all_reduce(numpy.ones(3, numpy.int32), op="xor")


def test_integers_and_bools(on_ranks):
    on_ranks(integers_and_bools)


def blocks(place):
    comm = place.communicator()
    rank, ranks = place.rank, place.ranks
    for counts in ([3] * ranks, list(range(ranks))):
        given = None if len(set(counts)) == 1 and ranks > 1 else counts
        parts = [data(r, counts[r], "int32") for r in range(ranks)]
        whole = numpy.concatenate(parts)
        root = ranks - 1
        out = numpy.zeros_like(whole)
        comm.gather(parts[rank], out if rank == root else None, root, given)
        assert rank != root or (out == whole).all()
        mine = numpy.zeros_like(parts[rank])
        comm.scatter(whole if rank == root else None, mine, root, given)
        numpy.testing.assert_array_equal(mine, parts[rank])
        comm.reduce_scatter(whole, mine, counts=given)
        numpy.testing.assert_array_equal(mine, ranks * parts[rank])
        out = numpy.zeros(ranks * counts[rank], "int32")  # everybody's part for this rank
        comm.all_to_all(whole, out, leaving=counts, arriving=[counts[rank]] * ranks)
        numpy.testing.assert_array_equal(out, numpy.tile(parts[rank], ranks))
    array = numpy.full(5, rank + 1)
    comm.scan(array, op="product")
    assert (array == math.factorial(rank + 1)).all()
    before = numpy.full(5, -1)
    comm.exscan(numpy.full(5, rank + 1), before)
    assert (before == (rank * (rank + 1) // 2 if rank > 0 else -1)).all()
    with pytest.raises(ValueError, match="^arriving is None, but leaving is not"):
        comm.all_to_all(array, array, leaving=[5] * ranks)
    with pytest.raises(ValueError, match="^reduce.kind is average, but a scan"):
        comm.scan(array, op="average")


def test_blocks(on_ranks):
    on_ranks(blocks)


def messages(place):
    comm = place.communicator()
    after, before = (place.rank + 1) % place.ranks, (place.rank - 1) % place.ranks
    stream = tutti.Stream()
    for count in COUNTS:
        got = numpy.empty(count, numpy.float32)
        if place.ranks > 1:
            sent = comm.send(data(place.rank, count, "float32"), after, stream=stream)
            comm.recv(got, before)
            sent.wait()
            numpy.testing.assert_array_equal(got, data(before, count, "float32"))


def test_messages_go_round(on_ranks):
    on_ranks(messages)


def streams(place):
    comm = place.communicator()
    stream = tutti.Stream()
    arrays = [numpy.full(1000, place.rank + i, numpy.int64) for i in range(50)]
    events = [comm.all_reduce(array, stream=stream) for array in arrays]
    del stream  # runs what was submitted first
    assert all(event.ready() for event in events)
    for i, array in enumerate(arrays):
        assert (array == sum(range(place.ranks)) + place.ranks * i).all()
    # Nobody but the stream holds these arrays while they are worked on.
    stream = tutti.Stream()
    for _ in range(200):
        comm.all_reduce(numpy.ones(10_000, numpy.float32), stream=stream)
    stream.synchronize()


def test_streams(on_ranks):
    on_ranks(streams)


def symmetric(place):
    comm = place.communicator()
    array = comm.empty((3, 5), "float16")
    assert array.shape == (3, 5) and array.dtype == numpy.float16 and not array.any()
    array[:] = place.rank + 1
    comm.all_reduce(array)
    assert (array == place.ranks * (place.ranks + 1) / 2).all()
    assert comm.empty(4).dtype == numpy.float32 and comm.empty(0).shape == (0,)
    assert comm.empty((2, 0, 3)).shape == (2, 0, 3)
    for shape in (-1, (2, -1), (1 << 40, 1 << 40)):
        with pytest.raises(tutti.InvalidArgument, match="shape"):
            comm.empty(shape)
    with pytest.raises(TypeError, match="complex64"):
        comm.empty(1, "complex64")
    comm.close()
    del comm
    array += 1  # the memory stays
    assert (array == 1 + place.ranks * (place.ranks + 1) / 2).all()


def test_symmetric_memory_outlives_the_communicator(on_ranks):
    on_ranks(symmetric)


def parts(place):
    comm = place.communicator()
    part = comm.split(place.rank % 2, -place.rank)
    members = [rank for rank in reversed(range(place.ranks)) if rank % 2 == place.rank % 2]
    assert (part.world_size, part.global_rank) == (len(members), members.index(place.rank))
    array = numpy.array([place.rank], numpy.int32)
    part.all_reduce(array)
    assert array[0] == sum(members)
    assert comm.split(-1 if place.rank else 0) is None or place.rank == 0


def test_split(on_ranks):
    on_ranks(parts)


def identity(place):
    comm = place.communicator(timeout=20)  # whole seconds are seconds, too
    assert 0 <= comm.local_rank < comm.local_size <= comm.world_size
    assert "rank" in comm.describe()
    return comm.global_rank, comm.world_size


def test_ranks(on_ranks):
    seen = on_ranks(identity)
    assert seen == [(rank, len(seen)) for rank in range(len(seen))]


def test_what_a_timeout_may_be():
    for timeout in (5, 0.5, numpy.float32(3), None):
        tutti.Communicator(0, 1, tutti.NcclIdHolder(), timeout=timeout)
    for timeout, error in (("5", TypeError), (0, tutti.InvalidArgument), (-1, ValueError),
                           (float("nan"), ValueError), (1e10, ValueError)):
        with pytest.raises(error):
            tutti.Communicator(0, 1, tutti.NcclIdHolder(), timeout=timeout)


def groups(place):
    comm = place.communicator()
    everyone = list(range(place.ranks))[::-1]
    group = comm.group(everyone)
    assert group.world_size == place.ranks
    assert everyone[group.global_rank] == place.rank
    total = numpy.full(3, place.rank)
    group.all_reduce(total)
    assert (total == sum(everyone)).all()
    if place.rank != 0:
        assert comm.group(tuple(everyone[:-1])).world_size == place.ranks - 1  # rank 0 does nothing
    with pytest.raises(ValueError, match="this is rank|this rank"):
        comm.group([(place.rank + 1) % place.ranks] if place.ranks > 1 else [])
    comm.barrier()


def test_groups(on_ranks):
    on_ranks(groups)
