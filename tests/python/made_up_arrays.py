"""Arrays of protocols with whatever contents a test wants."""

import ctypes


class Tensor(ctypes.Structure):
    """DLTensor of DLPack."""

    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("ordinal", ctypes.c_int32),
                ("dimensions", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)]


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor)]


def capsule(content, name=b"dltensor_versioned"):
    """A capsule that points to the ctypes object `content`, and does not keep it alive."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p,
                                                     ctypes.c_void_p]
    return make(ctypes.addressof(content), name, None)


class DLPack:
    """An array that has DLPack alone. A shape or strides of None are null pointers."""

    def __init__(self, device=2, ordinal=0, dtype=(2, 32), shape=(2, 3), strides=(3, 1), flags=0,
                 data=4096, offset=0, lanes=1, dimensions=None, major=1):
        self.device = (device, ordinal)
        self.kept = [None if numbers is None else (ctypes.c_int64 * len(numbers))(*numbers)
                     for numbers in (shape, strides)]
        dimensions = len(shape) if dimensions is None else dimensions
        self.managed = Versioned(major, 0, None, None, flags, Tensor(
            data, device, ordinal, dimensions, *dtype, lanes, *self.kept, offset))
        self.streams = []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None):
        assert max_version == (1, 0)
        self.streams.append(stream)
        return capsule(self.managed)


class Interface:
    """An array that has __array_interface__, or another of that kind, alone."""

    def __init__(self, protocol="__array_interface__", **entries):
        setattr(self, protocol, {key: value for key, value in entries.items()
                                 if value is not ...})
