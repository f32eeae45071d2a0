"""tutti.distributed on NumPy arrays: functional collectives, groups, the client, gradients of one's
own."""

import importlib.util
import inspect
import os
import re

import numpy
import pytest

import launching
import tutti
import tutti.distributed as dist
from tutti.distributed import functional as F

DTYPES = ["float32", "float64", "float16", "int32", "int64", "uint8", "bool"]
SHAPES = [(6,), (2, 6), (6, 1, 3), (6, 0), (1, 12, 5)]


def data(rank, shape, dtype):
    """Whole numbers, so that every order of additions is exact."""
    count = int(numpy.prod(shape))
    return ((numpy.arange(count) * 7 + rank * 3) % 5).reshape(shape).astype(dtype)


def expect(result, expected, dtype):
    numpy.testing.assert_array_equal(result, expected)
    assert result.dtype == dtype and result.shape == expected.shape


def every_function():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for dtype in DTYPES:
        for shape in SHAPES:
            every = [data(r, shape, dtype) for r in range(ranks)]
            mine = every[rank].copy()
            whole = sum(every).astype(dtype)
            if dtype != "bool":
                expect(F.all_reduce_sum(mine), whole, dtype)
                result = F.reduce_sum(mine)
                assert (result is None) == (rank > 0)
                if rank == 0:
                    expect(result, whole, dtype)
            expect(F.all_reduce_max(mine), numpy.maximum.reduce(every), dtype)
            expect(F.all_reduce_min(mine), numpy.minimum.reduce(every), dtype)
            expect(F.broadcast(mine if rank == 0 else None), every[0], dtype)
            for axis in range(-len(shape), len(shape)):
                expect(F.all_gather(mine, axis=axis), numpy.concatenate(every, axis), dtype)
                result = F.gather(mine, axis=axis)
                assert (result is None) == (rank > 0)
                if rank == 0:
                    expect(result, numpy.concatenate(every, axis), dtype)
                if shape[axis] % ranks != 0:
                    with pytest.raises(tutti.InvalidArgument, match=r"inp has shape .* along axis"):
                        F.reduce_scatter_sum(mine, axis=axis)
                    continue
                if dtype != "bool":
                    expect(F.reduce_scatter_sum(mine, axis=axis),
                           numpy.split(whole, ranks, axis)[rank], dtype)
                expect(F.scatter(mine if rank == 0 else None, axis=axis),
                       numpy.split(every[0], ranks, axis)[rank], dtype)
                for joined in range(len(shape)):
                    parts = [numpy.split(one, ranks, axis)[rank] for one in every]
                    expect(F.all_to_all(mine, split_axis=axis, concat_axis=joined),
                           numpy.concatenate(parts, joined), dtype)
            numpy.testing.assert_array_equal(mine, every[rank])


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_function(ranks):
    dist.launcher(every_function, n_gpus=ranks)()


def odd_arrays():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    turned = data(rank, (4, 6), "float32").T  # not in C order
    expect(F.all_reduce_sum(turned), sum(data(r, (4, 6), "float32").T for r in range(ranks)), "float32")
    expect(F.broadcast(turned), data(0, (4, 6), "float32").T, "float32")
    assert F.all_gather(numpy.float64(rank)).tolist() == list(range(ranks))
    assert F.gather(rank) is None or F.gather is not None and rank == 0
    result = F.broadcast(turned)
    result += 1  # is the caller's
    expect(turned, data(rank, (4, 6), "float32").T, "float32")
    for call, message in [
            (lambda: F.all_gather(turned, axis=2), r"axis is 2, but inp has shape \(6, 4\)"),
            (lambda: F.all_to_all(turned, concat_axis=-3), "concat_axis is -3"),
            (lambda: F.all_reduce_sum(None), "inp is None"),
            (lambda: F.all_reduce_sum(turned, device="cuda"), "device is 'cuda', but inp is a NumPy"),
            (lambda: F.remote_send(turned, rank), f"dest_rank is {rank}, but must be another"),
            (lambda: F.remote_recv(ranks), f"src_rank is {ranks}"),
            (lambda: dist.override_backend("nccl"), "x.to.'cuda'"),
            (lambda: dist.make_allreduce_cb("max"), "reduce_method is 'max'"),
            (lambda: dist.make_allreduce_cb("sum", backend="nccl"), "backend='nccl' is not there"),
            (lambda: dist.make_allreduce_cb("mean")(turned, numpy.ones(3, int)), "no mean")]:
        with pytest.raises(tutti.Error, match=message):
            call()
    with pytest.raises(tutti.MismatchError):
        F.all_reduce_sum(numpy.ones(3 + rank))


def test_odd_arrays_and_what_is_refused():
    dist.launcher(odd_arrays, n_gpus=2)()


def groups():
    rank = dist.get_rank()
    assert dist.WORLD.proc_ranks == [0, 1, 2] and dist.WORLD.rank == rank and dist.WORLD.size == 3
    if rank != 0:  # made by its members alone
        group = dist.new_group([2, 1])
        assert (group.rank, group.size, group.proc_ranks) == (2 - rank, 2, [2, 1])
        assert F.broadcast(rank if group.rank == 0 else None, group=group) == 2
        expect(F.all_gather(numpy.array([rank]), group=group), numpy.array([2, 1]), "int64")
        dist.group_barrier(group)
        arrays = [numpy.full(3, rank), numpy.full((2, 2), rank, "float32")]
        dist.bcast_list_(arrays, group)
        assert all((array == 2).all() for array in arrays)
    for ranks, message in [([0, 0], "repeated"), ([0, 3], "the ranks are 0 to 2"), ([], "is none"),
                           ([r for r in range(3) if r != rank], f"this rank, {rank}, is none")]:
        with pytest.raises(tutti.InvalidArgument, match=f"ranks is .*{message}"):
            dist.Group(ranks)


def in_other_order():
    """Groups of the same two ranks with different lists."""
    with pytest.raises(tutti.MismatchError):
        dist.Group([0, 1] if dist.get_rank() == 0 else [1, 0])


def test_groups():
    dist.launcher(groups, n_gpus=3)()
    dist.launcher(in_other_order, n_gpus=2)()


def messages():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    for shape in SHAPES:
        for dtype in DTYPES:
            mine = data(rank, shape, dtype)
            F.remote_send(mine, after)  # before anybody receives
            F.remote_send(mine.T, after)
            mine[:] = 0  # is the caller's again
            expect(F.remote_recv(before, shape=list(shape), dtype=dtype), data(before, shape, dtype),
                   dtype)
            expect(F.remote_recv(before), data(before, shape, dtype).T, dtype)
    F.remote_send(numpy.ones(3), after)
    with pytest.raises(tutti.InvalidArgument, match=r"^shape is \(2,\), but rank . has sent \(3,\)"):
        F.remote_recv(before, shape=(2,))
    F.remote_send(numpy.ones(3), after)
    with pytest.raises(tutti.InvalidArgument, match="^dtype is float32, but rank . has sent float64"):
        F.remote_recv(before, dtype="float32")
    with pytest.raises(tutti.InvalidArgument, match="complex64"):
        F.remote_send(numpy.ones(3, "complex64"), after)
    if rank == 0:
        F.remote_send(numpy.arange(100_003), 1)  # waits for its receiver beyond the function's end
    if rank == 1:
        assert F.remote_recv(0)[-1] == 100_002


@pytest.mark.parametrize("ranks", [2, 3])
def test_messages(ranks):
    dist.launcher(messages, n_gpus=ranks)()


def refused_at_the_root():
    is_root = dist.get_rank() == 0
    theirs = "^rank 0, the root, has refused what {} was given there"
    for call, name, mine in [
        (lambda: F.broadcast(numpy.ones(2, "complex64")), "broadcast", "inp has dtype complex64"),
        (lambda: F.broadcast(None), "broadcast", "inp is None"),
        (lambda: F.scatter(numpy.ones(3)), "scatter", "inp has shape"),
        (lambda: F.scatter(numpy.ones(2), axis=1), "scatter", "axis is 1"),
    ]:
        with pytest.raises(tutti.InvalidArgument,
                           match=mine if is_root else theirs.format(name + r"\(\)")):
            call()
    assert F.broadcast(numpy.arange(3) if is_root else None).tolist() == [0, 1, 2]


def test_all_hear_what_the_root_refuses():
    dist.launcher(refused_at_the_root, n_gpus=2, timeout=5)()


def not_received():
    if dist.get_rank() == 1:
        F.remote_send(numpy.ones(1 << 20), 0)


def test_a_message_that_nobody_receives():
    with pytest.raises(dist.RankFailed, match="^rank 1 failed: .*PeerLost: lost rank 0"):
        dist.launcher(not_received, n_gpus=2)()


def across_hosts(place):
    os.environ["TUTTI_HOST_ID"] = str(int(os.environ["OMPI_COMM_WORLD_RANK"]) % 2)
    every_function()
    messages()
    keys_and_values()
    groups()
    assert not dist.WORLD.is_single_machine


def test_between_hosts():
    launching.run(across_hosts, 3, "mpi")


def keys_and_values():
    client, rank = dist.get_client(), dist.get_rank()
    values = [5, "text", b"\0bytes", (3, 4), {"a": [1.5, None]}, numpy.dtype("float16"),
              numpy.arange(100_003)]
    if rank == 0:
        for i, value in enumerate(values):
            client.user_set(f"value {i}", value)
    for i, value in enumerate(values):
        got = client.user_get(f"value {i}")
        numpy.testing.assert_array_equal(got, value)
        assert type(got) is type(value)
    dist.group_barrier()
    if rank == 1:
        assert client.user_pop("value 0") == 5
        with pytest.raises(TimeoutError, match="value 0"):
            client.user_get("value 0", timeout=0.01)
    for i in range(3):
        assert client.bcast_val(i if rank == 1 else None, "key", 3) == i
    assert client.bcast_val("alone", "other", 1) == "alone"
    dist.group_barrier()
    for i in range(3):  # nothing is left
        with pytest.raises(TimeoutError):
            client.user_get(f"bcast_val {i} key", timeout=0)
    with pytest.raises(tutti.InvalidArgument, match="size is 0"):
        client.bcast_val(1, "key", 0)
    dist.group_barrier()  # who leaves might have been to set what is asked for


def test_the_client():
    dist.launcher(keys_and_values, n_gpus=3)()


def own_gradients(method):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    divisor = ranks if method == "mean" else 1
    callback = dist.make_allreduce_cb(method)
    shapes = [(3,), (1 << 21,), (0,), (5, 7), (1 << 20,), (2,)]  # more than two packs
    dtypes = ["float32", "float32", "float32", "float64", "float32", "float16"]
    for _ in range(3):
        gradients = [data(rank, shape, dtype) for shape, dtype in zip(shapes, dtypes)]
        for gradient in gradients:
            assert callback(None, gradient) is gradient
        callback.flush()
        for gradient, shape, dtype in zip(gradients, shapes, dtypes):
            expect(gradient, sum(data(r, shape, dtype) for r in range(ranks)) / divisor, dtype)


@pytest.mark.parametrize("method", ["sum", "mean"])
def test_gradients_of_ones_own(method):
    dist.launcher(own_gradients, n_gpus=2)(method)


def large_halves():
    """Whose sum is out of the range of 16 bits."""
    callback = dist.make_allreduce_cb("mean")
    gradients = [numpy.full(length, 40000 + 64 * dist.get_rank(), numpy.float16) for length in (3, 0, 5)]
    alone = numpy.full(6 << 20, 60000, numpy.float16)  # a pack of its own
    for gradient in [alone, *gradients]:
        callback(None, gradient)
    callback.flush()
    for gradient in gradients:
        assert (gradient == 40032).all() and gradient.dtype == numpy.float16
    assert (alone == 60000).all()


def test_means_of_16_bits_do_not_overflow():
    dist.launcher(large_halves, n_gpus=2)()


def mixed_up():
    callback = dist.make_allreduce_cb("sum")
    mixed = [numpy.ones(length) for length in ((4, 6) if dist.get_rank() == 0 else (6, 4))]
    for gradient in mixed:
        callback(None, gradient)
    with pytest.raises(tutti.MismatchError, match="in different orders"):
        callback.flush()
    for gradient in mixed:
        gradient[:] = 7
    own = numpy.ones(4)
    callback(None, own)
    callback.flush()
    assert (own == 2).all()
    assert all((gradient == 7).all() for gradient in mixed)  # nothing of the failed pass was under way


def test_gradients_that_came_in_another_order():
    dist.launcher(mixed_up, n_gpus=2)()


def test_alone():
    assert not dist.is_distributed() and dist.WORLD.is_single_machine
    array = numpy.arange(6.0).reshape(2, 3)
    expect(F.all_reduce_sum(array), array, "float64")
    expect(F.all_to_all(F.all_gather(array, axis=1)), array, "float64")
    expect(F.scatter(F.gather(array)), array, "float64")
    dist.bcast_list_([array])
    dist.get_client().user_set("key", 5)
    assert dist.get_client().user_get("key") == 5
    assert dist.synchronized(len)([1, 2]) == 2
    assert not dist.is_distributed() and dist.get_world_size() == 1


def test_signatures_and_documentation():
    wanted = {"reduce_sum": "inp group device", "broadcast": "inp group device",
              "all_gather": "inp group device axis", "reduce_scatter_sum": "inp group device axis",
              "all_reduce_sum": "inp group device", "all_reduce_max": "inp group device",
              "all_reduce_min": "inp group device", "gather": "inp group device axis",
              "scatter": "inp group device axis",
              "all_to_all": "inp group device split_axis concat_axis",
              "remote_send": "inp dest_rank", "remote_recv": "src_rank device inp shape dtype"}
    assert set(F.__all__) == set(wanted)
    for name, parameters in wanted.items():
        function = getattr(F, name)
        assert list(inspect.signature(function).parameters) == parameters.split(), name
        assert function.__doc__
    for name in dist.__all__:
        thing = getattr(dist, name)
        assert thing.__doc__, name
        if inspect.isclass(thing):
            for member, value in vars(thing).items():
                assert member.startswith("_") or getattr(value, "__doc__", None), f"{name}.{member}"


def test_a_parameter_is_named_by_the_version_of_its_package():
    """PyTorch's may be too old."""
    for parameter, said in ((numpy.ones(3), f"ndarray of numpy {numpy.__version__}"), ("x", "str")):
        with pytest.raises(tutti.InvalidArgument, match=re.escape(
                f"a parameter is a {said}, but must be a tensor of PyTorch, 2.1 or later")):
            dist.make_allreduce_cb("sum").attach([parameter])


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is there")
def test_without_pytorch():
    with pytest.raises(tutti.InvalidArgument, match="a parameter is a ndarray .*, but must be a tensor"):
        dist.make_allreduce_cb("sum").attach([numpy.ones(3)])
    with pytest.raises(TypeError, match=r"tensors\[0\] is a ndarray, but must be a torch.Tensor"):
        dist.GradManager().attach([numpy.ones(3)])
