"""Fuzzes array protocols: DLPack, __array_interface__ and __cuda_array_interface__."""

import ctypes
import math
import mmap

from made_up_arrays import DLPack, Interface

import tutti

REFUSALS = (TypeError, ValueError, tutti.Error)

ROOM = 4 << 20  # bytes of memory that arrays may lie in: for all that have no odd length
NOWHERE = 1 << 46  # no process has memory there that nobody asked for

LENGTHS = (0, 1, 2, 3, 8, 64)
ODD_LENGTHS = (-1, -8, 1 << 31, 1 << 32, 1 << 40, 1 << 61, 1 << 62, (1 << 63) - 1, -(1 << 63))
ODD_OBJECTS = (None, "33", b"33", 3.5, object(), [], (), {}, float("nan"), 1 << 64, -(1 << 70),
               True, [None], ((1,),), "\ud800")
TYPESTRS = ("<f4", "<f8", "<f2", "<i4", "<i8", "|u1")
ODD_TYPESTRS = ("<u2", ">f4", "<c8", "|b1", "<V2", "f", "", "<f")


def some(rng, usual, odd):
    """One of the usual, now and then an odd one."""
    return rng.choice(odd) if rng.random() < 0.1 else rng.choice(usual)


def strides_of(shape):
    """In elements, in C order."""
    return tuple(math.prod(shape[i + 1:]) for i in range(len(shape)))


class Raises:
    """In the place of an answer: raises instead."""

    def __init__(self, error):
        self.error = error


class Lies:
    """Both methods of DLPack, which answer whatever they are told."""

    def __init__(self, device, gives):
        self.device, self.gives = device, gives

    def _say(self, what):
        if isinstance(what, Raises):
            raise what.error
        return what

    def __dlpack_device__(self):
        return self._say(self.device)

    def __dlpack__(self, **arguments):
        return self._say(self.gives)


class Fuzzer:
    def __init__(self):
        self.memory = mmap.mmap(-1, ROOM)
        self.begin = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.comm = tutti.Communicator(0, 1, tutti.NcclIdHolder())

    def make(self, rng):
        kinds = (self.dlpack, self.dlpack, self.interface, self.interface, self.lies)
        return rng.choice(kinds)(rng)

    def decode(self, array):
        self.comm.all_reduce(array)
        self.comm.broadcast(array)
        if isinstance(array, DLPack):
            tensor = array.managed.tensor
            shape = [tensor.shape[i] for i in range(tensor.dimensions)]
            self.expect_fits(shape, tensor.bits // 8, (tensor.data or 0) + tensor.offset)
        elif isinstance(array, Interface):
            content = vars(array).popitem()[1]
            self.expect_fits(content["shape"], int(content["typestr"][2:]), content["data"][0])

    def expect_fits(self, shape, item, address):
        assert all(length >= 0 for length in shape), shape
        size = math.prod(shape) * item
        inside = self.begin <= address <= self.begin + ROOM - size
        assert size == 0 or inside, f"shape {shape} at {address - self.begin} was accepted"

    def address(self, rng):
        inside = self.begin + 64 * rng.randrange(4)
        return some(rng, (inside,), (inside + 1, 0, NOWHERE))

    def shape(self, rng):
        return tuple(some(rng, LENGTHS, ODD_LENGTHS) for _ in range(rng.randrange(4)))

    def strides(self, rng, shape, item):
        right = tuple(item * stride for stride in strides_of(shape))
        bounded = tuple(max(-(1 << 63), min(stride, (1 << 63) - 1)) for stride in right)
        wrong = ((), bounded[1:], bounded[::-1], (item,) * (len(shape) + 1))
        return some(rng, (bounded, None), wrong)

    def dlpack(self, rng):
        shape = self.shape(rng)
        strides = self.strides(rng, shape, 1)
        if strides is not None and len(strides) < len(shape):
            strides = strides[::-1] + (1,) * (len(shape) - len(strides))
        null = rng.random() < 0.05
        dimensions = some(rng, (len(shape),), (-1, -(1 << 31), (1 << 31) - 1, 65))
        return DLPack(
            device=some(rng, (1,), (0, 2, 3, 13, 77, -1)), ordinal=some(rng, (0,), (-1, 1 << 30)),
            dtype=some(rng, ((2, 32), (2, 64), (2, 16), (4, 16), (0, 32), (0, 64), (1, 8)),
                       ((2, 0), (2, 33), (77, 32), (6, 8), (255, 255))),
            shape=None if null else shape, strides=None if null else strides,
            flags=some(rng, (0,), (1, 2, (1 << 64) - 1)),
            data=self.address(rng) or None, lanes=some(rng, (1,), (0, 2, 65535)),
            offset=some(rng, (0, 64), (1, NOWHERE, (1 << 64) - 1, 1 << 63)),
            dimensions=dimensions if dimensions < 0 or null or dimensions > 64 else len(shape),
            major=some(rng, (1,), (0, 2, (1 << 32) - 1)))

    def interface(self, rng):
        shape = self.shape(rng)
        typestr = some(rng, TYPESTRS, ODD_TYPESTRS)
        item = int(typestr[2:] or 1) if typestr[2:].isdigit() else 1
        entries = {"shape": shape, "typestr": typestr, "version": 3,
                   "data": (self.address(rng), some(rng, (False,), (True, None)))}
        if rng.random() < 0.5:
            entries["strides"] = self.strides(rng, shape, item)
        if rng.random() < 0.2:  # something of another type, or nothing
            entries[rng.choice(list(entries))] = rng.choice((*ODD_OBJECTS, ...))
        if rng.random() < 0.1:
            entries["shape"] = tuple(rng.choice(ODD_OBJECTS) for _ in range(2))
        if rng.random() < 0.05:
            entries["data"] = (rng.choice(ODD_OBJECTS), False)
        protocol = some(rng, ("__array_interface__",), ("__cuda_array_interface__",))
        return Interface(protocol, **entries)

    def lies(self, rng):
        odd = (*ODD_OBJECTS, Raises(BufferError("no")), Raises(KeyError("no")), Raises(TypeError()))
        device = some(rng, ((1, 0),), (*odd, (1,), (None, 0), (1 << 40, 0), (1, 0, 0)))
        gives = some(rng, (self.dlpack(rng).__dlpack__(max_version=(1, 0)),), odd)
        if device == (1, 0) and type(gives).__name__ == "PyCapsule":
            gives = None  # its memory goes with the array that it is of
        return Lies(device, gives)
