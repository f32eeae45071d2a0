"""Arrays whose owner tells what cannot be: refused by name, never believed."""

import ctypes

import numpy
import pytest

from made_up_arrays import DLPack, Interface, capsule

OWNER = numpy.ones((2, 3), numpy.float32)
ADDRESS = OWNER.ctypes.data
NOWHERE = 1 << 46  # no process has memory there that nobody asked for


def tensor(**changes):
    return DLPack(**{"device": 1, "data": ADDRESS, **changes})


def interface(protocol="__array_interface__", **changes):
    return Interface(protocol, **{"shape": (2, 3), "typestr": "<f4", "data": (ADDRESS, False),
                                  "version": 3, **changes})


def check(comm, bad, error, message):
    """Refused as it comes in, and as it goes out."""
    with pytest.raises(error, match="^array" + message):
        comm.all_reduce(bad)
    with pytest.raises(error, match="^out" + message):
        comm.all_reduce(OWNER, bad)
    assert (OWNER == 1).all()


def test_what_is_right_is_taken(comm):
    for good in (tensor(), tensor(strides=None), tensor(shape=(), strides=()), interface(),
                 tensor(shape=(0,), data=None), tensor(shape=(1 << 40, 1 << 40, 0), strides=None),
                 tensor(data=ADDRESS - 64, offset=64), interface(strides=(12, 4)),
                 interface(strides=None), interface(shape=[2, 3]), interface(shape=(6,), mask=None),
                 tensor(shape=None, strides=None, dimensions=0)):
        comm.all_reduce(good)
    assert (OWNER == 1).all()


@pytest.mark.parametrize("changes, error, message", [
    (dict(shape=None, strides=None, dimensions=2), ValueError, " has 2 dimensions, but no shape"),
    (dict(dimensions=-1), ValueError, " has -1 dimensions"),
    (dict(dimensions=1 << 30), ValueError, " has 1073741824 dimensions"),
    (dict(shape=(-8, -8), strides=None), ValueError, r" has shape \(-8, -8\), but no length may"),
    (dict(shape=(1 << 40, 1 << 40), strides=None), ValueError, " has shape .*too much"),
    (dict(shape=(1 << 32, 1 << 32), strides=None), ValueError, " has shape .*too much"),
    (dict(shape=(1 << 61,), strides=None), ValueError, " has shape .*too much"),
    (dict(shape=(1 << 44,), strides=None), ValueError, " has .* where this process has no memory"),
    (dict(strides=(1, 2)), ValueError, " is not contiguous"),
    (dict(data=None), ValueError, " has 24 bytes at address 0x0, where"),
    (dict(data=NOWHERE), ValueError, " has 24 bytes at address 0x400000000000, where"),
    (dict(offset=NOWHERE), ValueError, " has 24 bytes .* no memory"),
    (dict(offset=(1 << 64) - 1), ValueError, " has byte_offset 18446744073709551615"),
    (dict(lanes=4), TypeError, " has dtype"),
    (dict(lanes=0), TypeError, " has dtype"),
    (dict(dtype=(0, 33)), TypeError, " has dtype"),
    (dict(dtype=(77, 32)), TypeError, " has dtype"),
    (dict(major=2), TypeError, " has version 2 of DLPack"),
    (dict(device=77), ValueError, " is in the memory of a device"),
])
def test_dlpack(comm, changes, error, message):
    check(comm, tensor(**changes), error, message)


def test_a_shape_that_is_too_short(comm):
    """Nobody can tell how long a shape is; what lies behind it is checked as it is."""
    array = tensor(shape=(2, 1 << 50), strides=None, dimensions=2)
    check(comm, array, ValueError, " has shape .*|.*no memory")


class Answers:
    """Has both methods of DLPack, which give or raise what they are told."""

    def __init__(self, gives, device=(1, 0)):
        self.gives, self.device = gives, device

    def __dlpack_device__(self):
        return self._say(self.device)

    def __dlpack__(self, **arguments):
        return self._say(self.gives)

    def _say(self, what):
        if isinstance(what, BaseException):
            raise what
        return what


class Unsayable(Exception):
    def __str__(self):
        raise RuntimeError("not even this")


def test_what_the_methods_of_dlpack_give(comm):
    used = tensor()
    for gives in (None, 5, capsule(used.managed, b"used_dltensor"), capsule(used.managed, None)):
        check(comm, Answers(gives), TypeError, ": its __dlpack__\\(\\) is a .*, but must be a capsule")
    for device in (None, 5, (1,), ("cpu", 0), (1.0, 0), "10"):
        check(comm, Answers(None, device), TypeError, ": its __dlpack_device__")
    check(comm, Answers(None, (1 << 32, 0)), ValueError, ": its __dlpack_device__")
    for raised in (RuntimeError("no"), BufferError("no"), TypeError("no"), KeyError("no")):
        check(comm, Answers(raised), ValueError, f".*__dlpack__ raised {type(raised).__name__}: '?no")
        check(comm, Answers(None, raised), ValueError, ".*__dlpack_device__ raised")
    check(comm, Answers(Unsayable()), ValueError, ".*__dlpack__ raised Unsayable$")
    check(comm, Answers(ValueError("\ud800")), ValueError, r".*raised ValueError: \\ud800")
    with pytest.raises(KeyboardInterrupt):
        comm.all_reduce(Answers(KeyboardInterrupt()))


def test_a_capsule_is_freed_once(comm):
    """By its own destructor, since nobody takes what it holds; also where it is refused."""
    freed = []
    destroy = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(freed.append)
    make = ctypes.pythonapi.PyCapsule_New

    class Counted(DLPack):
        def __dlpack__(self, **arguments):
            make.restype = ctypes.py_object
            make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
            return make(ctypes.addressof(self.managed), b"dltensor_versioned",
                        ctypes.cast(destroy, ctypes.c_void_p))

    comm.all_reduce(Counted(device=1, data=ADDRESS))
    assert len(freed) == 1
    with pytest.raises(ValueError):
        comm.all_reduce(Counted(device=1, data=ADDRESS, strides=(1, 2)))
    assert len(freed) == 2


BAD_ENTRIES = [
    (dict(shape=...), TypeError, " has no 'shape'"),
    (dict(shape=None), TypeError, " has no 'shape'"),
    (dict(shape=6), TypeError, r"\['shape'\] is a int"),
    (dict(shape="66"), TypeError, r"\['shape'\] is a str"),
    (dict(shape=(2, 3.0)), TypeError, r"\['shape'\]: a float is no whole number"),
    (dict(shape=(1 << 70,)), ValueError, r"\['shape'\]: a number has more than 64 bits"),
    (dict(shape=(1,) * 65), ValueError, r"\['shape'\] has 65 numbers"),
    (dict(shape=(-8, -8)), ValueError, r" has shape \(-8, -8\)"),
    (dict(shape=(1 << 32, 1 << 32)), ValueError, " has shape .*too much"),
    (dict(shape=(1 << 40, 1 << 40)), ValueError, " has shape .*too much"),
    (dict(strides=()), ValueError, r" has strides \(\), but shape \(2, 3\)"),
    (dict(strides=(12, 4, 1)), ValueError, " has strides"),
    (dict(strides=(4, 8)), ValueError, " is not contiguous"),
    (dict(strides=4), TypeError, r"\['strides'\] is a int"),
    (dict(typestr=...), TypeError, " has no 'typestr'"),
    (dict(typestr=b"<f4"), TypeError, r"\['typestr'\] is a bytes"),
    (dict(typestr=""), TypeError, " has dtype"),
    (dict(typestr="\ud800f4"), TypeError, " has dtype"),
    (dict(data=...), TypeError, " has no 'data'"),
    (dict(data=None), TypeError, " has no 'data'"),
    (dict(data=ADDRESS), TypeError, r"\['data'\] is a int"),
    (dict(data=(ADDRESS,)), TypeError, r"\['data'\] has 1 items"),
    (dict(data=(None, False)), TypeError, r"\['data'\]: a NoneType is no whole number"),
    (dict(data=(-ADDRESS, False)), ValueError, r"\['data'\] has the address -"),
    (dict(data=(1 << 70, False)), ValueError, r"\['data'\]: a number has more"),
    (dict(mask=OWNER), ValueError, " has a mask"),
]


@pytest.mark.parametrize("changes, error, message", BAD_ENTRIES)
def test_interfaces(comm, changes, error, message):
    for protocol in ("__array_interface__", "__cuda_array_interface__"):
        check(comm, interface(protocol, **changes), error, ".*" + message)


def test_interfaces_that_are_none(comm):
    for protocol in ("__array_interface__", "__cuda_array_interface__"):
        for value in (None, 5, [("shape", (6,))]):
            bad = type("Bad", (), {protocol: value})()
            check(comm, bad, TypeError, f": its {protocol} is a .*, but must be a dict")
        bad = type("Bad", (), {protocol: property(lambda self: 1 // 0)})()
        check(comm, bad, ValueError, f".*its {protocol} raised ZeroDivisionError")


def test_memory_that_is_not_there(comm):
    check(comm, interface(data=(NOWHERE, False)), ValueError, ".*no memory")
    check(comm, interface(data=(0, False)), ValueError, ".*no memory")
    check(comm, interface(shape=(1 << 44,)), ValueError, ".*no memory")
    check(comm, interface("__cuda_array_interface__", stream="1"), TypeError, r".*\['stream'\]")


def test_a_buffer_that_is_gone(comm):
    gone = memoryview(bytearray(8))
    gone.release()
    check(comm, gone, ValueError, " cannot be used: its buffer raised ValueError")


def test_symmetric_memory_of_any_dtype(comm):
    for dtype in ("float32", numpy.float32, numpy.dtype("float32"), float, "<i8", int):
        assert comm.empty(3, dtype).dtype == numpy.dtype(dtype)
    assert comm.empty(numpy.int64(3)).shape == comm.empty([3]).shape == (3,)
    for bad in ("float33", "complex64", object(), 5, "f4,f4"):
        with pytest.raises(TypeError, match="^dtype is .*, but must be float32"):
            comm.empty(3, bad)
    for bad, error in (((1 << 32, 1 << 32), ValueError), (1 << 70, ValueError), ((2, -1), ValueError),
                       ("33", TypeError), (None, TypeError), (3.5, TypeError), ((3.5,), TypeError)):
        with pytest.raises(error, match="^shape"):
            comm.empty(bad)


def test_bfloat16_without_numpy(comm, monkeypatch):
    """NumPy has no such type, so it is memory for whoever has."""
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    array = comm.empty((2, 3), "bfloat16")
    assert (array.shape, array.dtype, array.device) == ((2, 3), "bfloat16", "cpu")
    assert repr(array) == "<tutti.DeviceArray of shape (2, 3), bfloat16, on cpu>"
    assert array.__dlpack_device__() == (1, 0) and not hasattr(array, "__cuda_array_interface__")
    comm.all_reduce(array)
    comm.close()
    assert "dltensor" in repr(array.__dlpack__())  # the memory stays


class dtype:
    """As PyTorch's."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"torch.{self.name}"


dtype.__module__ = "torch"


def test_symmetric_memory_by_a_dtype_of_torch(comm):
    for name in ("float32", "float16", "int64", "uint8", "uint16", "bool"):
        assert comm.empty(3, dtype(name)).dtype == name
    assert comm.empty(3, dtype("bfloat16")).dtype == "bfloat16"
    for name in ("complex64", "quint8"):
        with pytest.raises(TypeError, match="^dtype is"):
            comm.empty(3, dtype(name))


def test_symmetric_memory_for_torch(comm):
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.float16, torch.int64, torch.bfloat16, torch.int16):
        tensor = torch.from_dlpack(comm.empty((2, 3), dtype))
        assert tensor.dtype == dtype and not tensor.any()
        tensor += 1
        comm.all_reduce(tensor, factor=2)
        assert (tensor == 2).all()


def test_views_that_torch_negates_when_they_are_read(comm):
    torch = pytest.importorskip("torch")
    lazy = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert lazy.is_neg() and lazy.tolist() == [-2, 4]
    one = torch.tensor([5.0])
    with pytest.raises(ValueError, match=r"^array is a view that PyTorch negates.*resolve_neg\(\)"):
        comm.all_reduce(lazy[1:], op="max")
    with pytest.raises(ValueError, match="^out is a view that PyTorch negates"):
        comm.all_reduce(one, lazy[1:])
    resolved = lazy.resolve_neg()
    comm.all_reduce(resolved[1:], op="max")
    assert resolved.tolist() == [-2, 4]
    with pytest.raises(ValueError, match=r"^array is a view .*resolve_conj\(\)"):
        comm.all_reduce(torch.tensor([1j]).conj())


class Lazy:
    """As PyTorch's tensor with the negative bit."""

    def __init__(self, kind):
        self.is_neg, self.is_conj = (lambda: kind == "neg"), (lambda: kind == "conj")

    def detach(self):
        return tensor()


Lazy.__dlpack__ = lambda self, **arguments: None
Lazy.__dlpack_device__ = lambda self: (1, 0)


def test_views_that_are_negated_when_they_are_read(comm):
    for kind in ("neg", "conj"):
        check(comm, Lazy(kind), ValueError, f" is a view .*resolve_{kind}")
    comm.all_reduce(Lazy("none"))
