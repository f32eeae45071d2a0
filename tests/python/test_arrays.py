"""What is taken for an array, and what is refused by name before anything is sent."""

import array
import ctypes
import os

import numpy
import pytest

import tutti


def double(comm, thing):
    comm.all_reduce(thing, factor=2)


def test_whatever_has_a_buffer(comm):
    for thing in (array.array("f", [1, 2, 3]), bytearray(b"\1\2\3"), (ctypes.c_double * 3)(1, 2, 3),
                  memoryview(numpy.array([1, 2, 3], numpy.int64)), numpy.array([1, 2, 3], "e"),
                  *(array.array(code, [1, 2, 3]) for code in "bBhHiIlLqQ")):
        double(comm, thing)
        assert list(thing) == [2, 4, 6]


def test_any_shape_in_c_order(comm):
    for shape in ((), (1,), (2, 3), (0, 4), (3, 1, 2)):
        ones = numpy.ones(shape, numpy.float32)
        double(comm, ones)
        assert (ones == 2).all()
    row = numpy.ones((4, 5), numpy.float32)
    double(comm, row[1:3])  # whole rows lie one after the other
    assert row.sum() == 30


class Interface:
    def __init__(self, owner, **changes):
        self.owner = owner
        self.__array_interface__ = {**owner.__array_interface__, **changes}


def test_array_interface(comm):
    owner = numpy.array([1, 2, 3], numpy.int32)
    double(comm, Interface(owner))
    assert owner.tolist() == [2, 4, 6]
    with pytest.raises(ValueError, match="array is not contiguous"):
        double(comm, Interface(owner, strides=(8,)))
    with pytest.raises(ValueError, match="array is read-only"):
        double(comm, Interface(owner, data=(owner.ctypes.data, True)))
    with pytest.raises(TypeError, match="array has dtype <c8"):
        double(comm, Interface(owner, typestr="<c8"))


class DLPackOnly:
    """A tensor of a library that speaks DLPack alone, with or without versions."""

    def __init__(self, owner, versioned=True, device=(1, 0)):
        self.owner, self.versioned, self.device = owner, versioned, device

    def __dlpack__(self, **arguments):
        if not self.versioned and arguments:
            raise TypeError("unexpected keyword")
        return self.owner.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.device


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack(comm, versioned):
    owner = numpy.arange(6, dtype=numpy.float64).reshape(2, 3)
    double(comm, DLPackOnly(owner, versioned))
    assert owner.ravel().tolist() == [0, 2, 4, 6, 8, 10]
    with pytest.raises(ValueError, match="array is not contiguous"):
        double(comm, DLPackOnly(owner.T, versioned))


def test_bfloat16(comm):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    ones = numpy.ones(3, ml_dtypes.bfloat16)
    double(comm, ones)
    assert (ones == 2).all()


def test_bfloat16_of_torch(comm):
    torch = pytest.importorskip("torch")
    ones = torch.ones(3, dtype=torch.bfloat16)
    double(comm, ones)
    assert (ones == 2).all()


def test_more_than_there_is(comm):
    if os.statvfs("/dev/shm").f_blocks == 0:
        pytest.skip("/dev/shm has no limit")
    with pytest.raises(tutti.SystemError, match="/dev/shm"):
        comm.empty(1 << 44, "uint8")
    double(comm, comm.empty(3))  # which goes on


def test_refusals_name_the_array(comm):
    good = numpy.ones(4, numpy.float32)
    fixed = good.copy()
    fixed.flags.writeable = False
    cases = [
        (fixed, ValueError, "array is read-only"),
        (numpy.ones((4, 4), numpy.float32)[:, 0], ValueError, "array is not contiguous"),
        (numpy.ones((4, 4), numpy.float32).T, ValueError, "array is not contiguous"),
        (numpy.ones(4, numpy.complex64), TypeError, "array has dtype complex64"),
        (numpy.ones(4, ">f4"), TypeError, "array has dtype >f4"),
        (numpy.ones(4, "datetime64[s]"), TypeError, "array has dtype datetime64"),
        (b"bytes", ValueError, "array is read-only"),
        ([1.0, 2.0], TypeError, "array is a list"),
        (None, TypeError, "array is a NoneType"),
        (3.0, TypeError, "array is a float"),
    ]
    for thing, error, message in cases:
        with pytest.raises(error, match=message):
            comm.all_reduce(thing)
        if thing is not None:  # as there is none
            with pytest.raises(error, match=message.replace("array", "out", 1)):
                comm.all_reduce(good, thing)
    for out in (numpy.ones(5, numpy.float32), numpy.ones(4, numpy.float64)):
        with pytest.raises(tutti.InvalidArgument, match="out"):
            comm.all_reduce(good, out)
    with pytest.raises(tutti.InvalidArgument, match="op is 'mean'"):
        comm.all_reduce(good, op="mean")
    with pytest.raises(tutti.InvalidArgument, match="root is 1"):
        comm.broadcast(good, 1)
    assert (good == 1).all()
    comm.all_reduce(fixed, good)  # what is only read may be read-only


def test_an_array_cannot_go_while_a_stream_works_on_it(comm):
    stream = tutti.Stream()
    resizable = bytearray(1000)
    comm.all_reduce(resizable, stream=stream)
    stream.synchronize()
    resizable.extend(b"free again")
