"""Arrays on GPUs: what is refused by name, and why. The objects only look like such arrays, so no GPU
is needed; what there is to do on one is in test_gpu_torch.py and test_gpu_cupy.py."""

import mmap

import numpy
import pytest

import tutti
from made_up_arrays import DLPack, Interface

pytestmark = pytest.mark.skipif(tutti._core.gpu_count() > 0,
                                reason="the arrays are made up, and must not reach a GPU")

NO_GPU = "array is in the memory of a GPU, but there is none"


def interface(**changes):
    return Interface("__cuda_array_interface__", **{
        "shape": (2, 3), "typestr": "<f4", "data": (4096, False), "version": 3, **changes})


def test_cuda_array_interface(comm):
    for good in ({}, {"strides": None}, {"strides": (12, 4)}, {"stream": None}, {"stream": 1},
                 {"stream": 2}, {"version": 2}, {"mask": None}, {"shape": (0,), "data": (0, False)}):
        with pytest.raises(ValueError, match=NO_GPU):
            comm.all_reduce(interface(**good))
    for bad, error, message in (
            ({"strides": (4, 8)}, ValueError, "array is not contiguous"),
            ({"data": (4096, True)}, ValueError, "array is read-only"),
            ({"typestr": "<c8"}, TypeError, "array has dtype <c8"),
            ({"typestr": ">f4"}, TypeError, "array has dtype >f4"),
            ({"mask": interface()}, ValueError, "array has a mask"),
            ({"stream": 0}, ValueError, "array has stream 0")):
        with pytest.raises(error, match=message):
            comm.all_reduce(interface(**bad))
    with pytest.raises(ValueError, match=NO_GPU):  # what is only read may be read-only
        comm.all_reduce(interface(data=(4096, True)), numpy.ones(6, numpy.float32))
    comm.barrier()  # nothing was sent


def test_a_buffer_that_cannot_be_had_is_not_the_last_word(comm):
    class OnGpu(mmap.mmap):
        """Has a buffer, which raises once it is closed, as CuPy's arrays have one that raises."""

        __cuda_array_interface__ = {"shape": (2, 3), "typestr": "<f4", "data": (4096, False), "version": 3}

    array = OnGpu(-1, 4096)
    array.close()
    with pytest.raises(ValueError, match=NO_GPU):
        comm.all_reduce(array)


def test_dlpack(comm):
    for device in (2, 13):  # CUDA's own memory, and managed memory
        for dtype in ((2, 32), (2, 16), (4, 16), (0, 64)):
            array = DLPack(device=device, dtype=dtype)
            with pytest.raises(ValueError, match=NO_GPU):
                comm.all_reduce(array)
            assert array.streams == [1], "its owner is told on which stream it is used"
    for bad, error, message in (
            ({"strides": (1, 2)}, ValueError, "array is not contiguous"),
            ({"flags": 1}, ValueError, "array is read-only"),
            ({"dtype": (5, 64)}, TypeError, "array has dtype"),
            ({"device": 8}, ValueError, "array is in the memory of a device that tutti does not")):
        with pytest.raises(error, match=message):
            comm.all_reduce(DLPack(**bad))
    comm.barrier()


def test_host_and_gpu_are_not_mixed(comm):
    with pytest.raises(ValueError, match="out is in the memory of a GPU"):
        comm.all_reduce(numpy.ones(6, numpy.float32), DLPack())


def test_dist_opt_names_its_arrays():
    sgd = tutti.opt.DistOpt(communicator=tutti.Communicator(0, 1, tutti.NcclIdHolder()))
    for call, name in (
            (lambda array: sgd.register_parameters([("weight", array)]), "parameter 'weight'"),
            (lambda array: sgd([(array, numpy.ones(6, numpy.float32))]), "parameter"),
            (lambda array: sgd([(numpy.ones(6, numpy.float32), array)]), "gradient"),
            (sgd.all_reduce, "tensor"),
            (sgd.all_reduce_half, "tensor"),
            (lambda array: sgd.fused_all_reduce([array], send=False), "tensor #0"),
            (lambda array: sgd.sparsification(array, None, 0.1, True), "tensor #0"),
            (lambda array: sgd.update(array, array), "parameter")):
        with pytest.raises(ValueError, match=f"{name} is in the memory of a GPU"):
            call(DLPack())


def test_empty_on_a_gpu(comm):
    assert comm.device == "cpu"
    assert comm.empty(3, device="cpu").sum() == 0
    with pytest.raises(tutti.BackendUnavailable, match="device is 'cuda', but this rank has no GPU"):
        comm.empty(3, device="cuda")
    with pytest.raises(tutti.BackendUnavailable, match="no GPU"):
        comm.empty((2, 3), "bfloat16", device="cuda:1")
    for device in ("cuda:", "cuda:-1", "cuda:x", "gpu", "", None, 0):
        with pytest.raises(ValueError, match="device is '"):
            comm.empty(3, device=device)
    with pytest.raises(TypeError, match="dtype is .*complex64"):
        comm.empty(3, "complex64", device="cuda:0")
    comm.barrier()
