"""Arrays of NumPy and tensors of PyTorch as memory that both sides share."""

from __future__ import annotations

import collections
import sys
from typing import Any, Deque, Optional, Tuple

import numpy
import numpy.typing as npt

from tutti._types import Array
from tutti.errors import InvalidArgument

_INT64 = numpy.dtype(numpy.int64)
_FLOAT32 = numpy.dtype(numpy.float32)

_ONE = [numpy.empty(0)]
_REFERENCES_IN_A_LIST = sys.getrefcount(_ONE[0])  # to what nothing else refers to


class Recycled:
    """Makes arrays of float32 for results, of memory that results had which are gone. The allocator
    gives the memory of large ones back to the system, and new memory costs a page fault every 4 KiB.

    Keeps the last two, since a caller's variable has one while the next is made, and gives the older
    one out again if nothing else refers to it, nor to a view of it. Threads may share it."""

    _KEPT = 2
    _MOST_BYTES = 1 << 22

    def __init__(self) -> None:
        self._last: Deque[npt.NDArray[numpy.float32]] = collections.deque(maxlen=self._KEPT)

    def empty(self, shape: Tuple[int, ...]) -> npt.NDArray[numpy.float32]:
        """As numpy.empty()."""
        array = self._older() if len(self._last) == self._KEPT else None
        if (array is None or array.shape != shape or array.dtype is not _FLOAT32
                or not array.flags.carray):
            array = numpy.empty(shape, _FLOAT32)
        if array.nbytes <= self._MOST_BYTES:
            self._last.append(array)
        return array

    def _older(self) -> Optional[npt.NDArray[numpy.float32]]:
        try:
            taken = [self._last.popleft()]
        except IndexError:  # another thread was faster
            return None
        return taken[0] if sys.getrefcount(taken[0]) == _REFERENCES_IN_A_LIST else None


def is_tensor(array: Array) -> bool:
    """Whether it is PyTorch's, which is not imported for that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _as_array(array: Array, name: str) -> npt.NDArray[Any]:
    try:
        return numpy.asarray(array)
    except (TypeError, ValueError) as error:  # lists of different length
        raise InvalidArgument(f"{name} is {array!r:.80}, which is no array: {error}") from None


def ids_of(ids: Array) -> npt.NDArray[numpy.int64]:
    """Ids as int64 in C order: the memory of `ids` itself if it is that already."""
    if is_tensor(ids):
        ids = ids.numpy() if ids.is_cpu and not ids.requires_grad else ids.detach().cpu().numpy()
    memory = _as_array(ids, "ids")
    if memory.dtype != _INT64:
        if memory.size and (memory.dtype.kind not in "iu"  # a mask is no ids
                            or not numpy.can_cast(memory.dtype, _INT64)):
            raise TypeError(f"ids is of {memory.dtype}, but must be of int64")
        memory = memory.astype(_INT64)
    return memory if memory.flags.c_contiguous else numpy.ascontiguousarray(memory)


def floats_of(array: Array, name: str, shape: Tuple[int, ...]) -> npt.NDArray[numpy.float32]:
    """Numbers of that shape to be read as float32 in C order: the memory of `array` itself if it is
    that already."""
    if is_tensor(array):
        array = array.detach().cpu()
        if array.layout != sys.modules["torch"].strided:
            array = array.to_dense()
        array = (array if array.element_size() != 2 else array.float()).numpy()  # NumPy has no bfloat16
    memory = _as_array(array, name)
    if memory.shape != shape:
        raise InvalidArgument(f"{name} has shape {memory.shape}, but must have {shape}")
    if memory.dtype.kind not in "fiu" and memory.size:
        raise TypeError(f"{name} is of {memory.dtype}, but must be of float32")
    return numpy.ascontiguousarray(memory, numpy.float32)


def _no_array(array: Any, name: str) -> TypeError:
    return TypeError(f"{name} is {array!r:.80}, but must be an array of float32 in CPU memory")


def shape_of(array: Array, name: str) -> Tuple[int, ...]:
    """An array's shape. Raises TypeError if it is none."""
    shape = getattr(array, "shape", None)
    if not isinstance(shape, tuple):
        raise _no_array(array, name)
    return shape


def writable(array: Array, name: str, shape: Tuple[int, ...]) -> npt.NDArray[numpy.float32]:
    """The memory of `array`, of that shape, which will be written in place."""
    memory: npt.NDArray[Any]
    if is_tensor(array):
        if not array.is_cpu:
            raise InvalidArgument(f"{name} is on {array.device}, but must be in CPU memory")
        memory = (array.detach() if array.requires_grad else array).numpy()
    elif hasattr(array, "__array_interface__"):
        memory = numpy.asarray(array)
    else:
        try:
            memory = numpy.asarray(memoryview(array))
        except TypeError:
            raise _no_array(array, name) from None
    if memory.dtype != numpy.float32:
        raise InvalidArgument(f"{name} is of {memory.dtype}, but must be of float32")
    if memory.shape != shape:
        raise InvalidArgument(f"{name} has shape {memory.shape}, but must have {shape}")
    if not memory.flags.carray:
        raise InvalidArgument(f"{name} is not contiguous in C order, or is read-only")
    return memory


def like(rows: npt.NDArray[numpy.float32], ids: Array) -> Any:
    """Rows in the library, and on the device, of the ids that they belong to."""
    if not is_tensor(ids):
        return rows
    tensor = sys.modules["torch"].from_numpy(rows)
    return tensor if ids.is_cpu else tensor.to(ids.device)


class _Alias:
    """The memory of an array that must not be written, for PyTorch, which knows none such."""

    def __init__(self, array: npt.NDArray[numpy.float32]) -> None:
        self._array = array  # keeps the memory
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def view_of(memory: Any, like: Array) -> Any:
    """Memory of float32 that must not be written as an array or a tensor, as `like` is."""
    array: npt.NDArray[numpy.float32]
    array = numpy.frombuffer(memory, numpy.float32).reshape(tuple(like.shape))
    return (sys.modules["torch"].from_numpy(numpy.asarray(_Alias(array))) if is_tensor(like)
            else array)


def array_of(memory: npt.NDArray[numpy.float32], like: Array) -> Any:
    """Memory as an array or a tensor, as `like` is."""
    array = memory.reshape(tuple(like.shape))
    return sys.modules["torch"].from_numpy(array) if is_tensor(like) else array


def address_of(array: Array) -> int:
    """Where it lies, which tells arrays apart that are alive."""
    if is_tensor(array):
        return int(array.data_ptr())
    return int(numpy.asarray(array).__array_interface__["data"][0])
