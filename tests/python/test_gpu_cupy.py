"""CuPy's arrays on a GPU. Skips itself where there is none."""

import numpy
import pytest

import launching
import tutti


@pytest.fixture
def cupy():
    """CuPy, where there is a GPU."""
    if tutti._core.gpu_count() == 0:
        pytest.skip("no GPU")
    return pytest.importorskip("cupy")


@pytest.fixture
def comm(cupy):
    comm = tutti.Communicator(0, 1, tutti.NcclIdHolder())
    cupy.cuda.Device(_ordinal(comm)).use()
    return comm


class InterfaceAlone:
    """An array of CuPy's without its DLPack."""

    def __init__(self, array):
        self.__cuda_array_interface__ = array.__cuda_array_interface__


def _ordinal(comm):
    return int(comm.device.split(":")[1])


def _busy(cupy, seconds=0.2):
    """Keeps the current stream busy for about so long."""
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    matrix = cupy.ones((4096, 4096), cupy.float32)
    matrix @ matrix  # which loads what it needs
    begin.record()
    matrix @ matrix
    end.record()
    end.synchronize()
    took = cupy.cuda.get_elapsed_time(begin, end) / 1e3
    for _ in range(min(1000, int(seconds / took) + 1)):
        matrix @ matrix


def test_collectives_work_in_place(cupy, comm):
    for dtype in ("float32", "float64", "float16", "int32", "int64", "uint8", "int8"):
        ones = cupy.ones((2, 3), dtype)
        comm.all_reduce(ones, factor=2)
        assert (ones == 2).all()
    out = cupy.zeros(6, "float32")
    comm.all_gather(cupy.arange(6, dtype="float32"), out)
    assert out.tolist() == [0, 1, 2, 3, 4, 5]


def test_cuda_array_interface(cupy, comm):
    ones = cupy.ones(1000, "float32")
    comm.all_reduce(InterfaceAlone(ones), factor=2)
    assert (ones == 2).all()


@pytest.mark.parametrize("wrap", [lambda array: array, InterfaceAlone],
                         ids=["dlpack", "cuda_array_interface"])
def test_what_another_stream_makes_is_waited_for(cupy, comm, wrap):
    comm.all_reduce(cupy.ones(1, "float32"))  # NCCL takes long to start
    with cupy.cuda.Stream(non_blocking=True):
        data = cupy.zeros(1 << 20, "float32")
        _busy(cupy)
        data += 3
        comm.all_reduce(wrap(data), factor=2)
    assert (data == 6).all()


def test_a_worker_stream(cupy, comm):
    data = cupy.ones(1000, "float32")
    event = comm.all_reduce(data, factor=2, stream=tutti.Stream())
    event.wait()
    assert (data == 2).all()


def test_refusals(cupy, comm):
    square = cupy.ones((4, 4), "float32")
    with pytest.raises(ValueError, match="array is not contiguous"):
        comm.all_reduce(square.T)
    with pytest.raises(TypeError, match="array has dtype"):
        comm.all_reduce(cupy.ones(4, "complex64"))
    with pytest.raises(tutti.InvalidArgument, match="in.device is the CPU, but out.device is GPU"):
        comm.all_reduce(numpy.ones(16, numpy.float32), square)
    comm.all_reduce(square)  # and goes on


@pytest.mark.parametrize("view", ["from_dlpack", "asarray"])
def test_empty_gives_memory_that_outlives_the_communicator(cupy, view):
    comm = tutti.Communicator(0, 1, tutti.NcclIdHolder())
    cupy.cuda.Device(_ordinal(comm)).use()
    array = comm.empty((2, 3), "float32", device="cuda")
    seen = getattr(cupy, view)(array)
    assert seen.dtype == numpy.float32 and seen.tolist() == [[0, 0, 0], [0, 0, 0]]
    seen += 1
    comm.all_reduce(array, factor=2)
    assert (seen == 2).all()
    del comm, array
    seen += 1
    assert (seen == 3).all()


MODES = ("full", "half", "sparse")


def _train(comm, mode, arrays):
    """Three steps of a mode, on arrays of CuPy or NumPy; the parameters on the CPU."""
    sgd = tutti.opt.DistOpt(tutti.opt.SGD(lr=0.1, momentum=0.5), communicator=comm)
    weight, bias = arrays.ones(500, "float32"), arrays.zeros(3, "float32")
    sgd.register_parameters([("weight", weight), ("bias", bias)])
    random = numpy.random.default_rng(comm.global_rank)
    for _ in range(3):
        gradients = [(parameter, arrays.asarray(random.standard_normal(parameter.shape, "float32")))
                     for parameter in (bias, weight)]
        if mode == "half":
            sgd.backward_and_update_half(gradients)
        elif mode == "sparse":
            sgd.backward_and_sparse_update(gradients, topK=True, spars=0.1)
        else:
            sgd(gradients)
    if arrays is not numpy:
        weight, bias = weight.get(), bias.get()
    return numpy.concatenate([weight, bias])


def _train_everywhere(place):
    """The number of ranks; for each mode the parameters on the GPU and on the CPU."""
    import cupy

    comm = place.communicator()
    cupy.cuda.Device(_ordinal(comm)).use()
    return comm.world_size, {mode: [_train(comm, mode, arrays) for arrays in (cupy, numpy)]
                             for mode in MODES}


@pytest.fixture(scope="module")
def trained():
    """What _train_everywhere() gave on each of two ranks."""
    return launching.run(_train_everywhere, 2, "spawn")


@pytest.mark.parametrize("mode", MODES)
def test_replicas_stay_equal_and_do_what_the_cpu_does(cupy, mode, record_property, request):
    (world_size, first), (_, second) = request.getfixturevalue("trained")
    record_property("world_size", world_size)
    assert world_size == 2
    on_gpu, on_cpu = first[mode]
    assert (on_gpu == second[mode][0]).all()
    assert abs(on_gpu - on_cpu).max() <= (1e-5 if mode == "full" else 1e-2)
