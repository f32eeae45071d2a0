"""What NumPy arrays and PyTorch tensors have in common, and how they are described to a rank that
does not know what will come."""

from __future__ import annotations

import importlib
import sys
from typing import Any, NamedTuple, Optional, Sequence, Tuple

import numpy
import numpy.typing as npt

from tutti._checks import integer
from tutti._types import Array
from tutti.errors import InvalidArgument

_DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32",
           "uint32", "int64", "uint64", "bool")
_FIELDS = 16  # 128 bytes, which travel with the offer of a message
_MOST_DIMENSIONS = _FIELDS - 5


def is_tensor(array: Any) -> bool:
    """Whether this is PyTorch's. Where PyTorch was never imported, nothing is."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def as_array(array: Array, name: str) -> Any:
    """A tensor as it is, anything else as NumPy's array."""
    if is_tensor(array):
        return array
    if array is None:
        raise InvalidArgument(f"{name} is None, but must be an array on this rank")
    return numpy.asarray(array)


def contiguous(array: Any) -> Any:
    """The same elements one after the other, detached from any graph; a copy where they are not."""
    if is_tensor(array):
        return array.detach().contiguous().resolve_neg()
    return array.copy() if not array.flags.c_contiguous else array


def empty(like: Any, shape: Tuple[int, ...]) -> Any:
    """An array of the same library, dtype and device."""
    return like.new_empty(shape) if is_tensor(like) else numpy.empty(shape, like.dtype)


def copy_of(array: Any) -> Any:
    """A contiguous copy, detached from any graph."""
    return contiguous(array).clone() if is_tensor(array) else array.copy(order="C")


def flat(arrays: Sequence[Any]) -> Any:
    """The elements of contiguous arrays of one dtype and device, one after the other."""
    if len(arrays) == 1:
        return arrays[0]
    if is_tensor(arrays[0]):
        torch = importlib.import_module("torch")
        return torch.cat([array.detach().reshape(-1) for array in arrays])
    return numpy.concatenate([array.reshape(-1) for array in arrays])


def assign_parts(arrays: Sequence[Any], elements: Any) -> None:
    """Gives arrays what flat() of them has become."""
    begin = 0
    for array in arrays if len(arrays) > 1 else ():
        end = begin + int(numpy.prod(array.shape))
        array[...] = elements[begin:end].reshape(array.shape)
        begin = end


def move_axis(array: Any, source: int, destination: int) -> Any:
    """numpy.moveaxis, for either."""
    if is_tensor(array):
        return array.movedim(source, destination)
    return numpy.moveaxis(array, source, destination)


def dtype_name(array: Any) -> str:
    """The name of an array's dtype, as of either library."""
    return str(array.dtype).replace("torch.", "")


def name_of_dtype(dtype: Any) -> str:
    """The name of a dtype: a name, NumPy's or PyTorch's."""
    text = str(dtype).replace("torch.", "")
    return text if text in _DTYPES else str(numpy.dtype(dtype))


def as_tensor(array: Any) -> Any:
    """A NumPy array as a tensor, in the same memory."""
    return importlib.import_module("torch").from_numpy(array)


class Description(NamedTuple):
    """What an array is like that another rank sends."""

    dtype: str
    shape: Tuple[int, ...]
    tensor: bool
    on_gpu: bool
    requires_grad: bool

    @staticmethod
    def of(array: Any, name: str, requires_grad: bool = False) -> Description:
        dtype = dtype_name(array)
        if dtype not in _DTYPES:
            raise InvalidArgument(f"{name} has dtype {dtype}, but must have one of "
                                  f"{', '.join(_DTYPES)}")
        if array.ndim > _MOST_DIMENSIONS:
            raise InvalidArgument(f"{name} has {array.ndim} dimensions, but may have at most "
                                  f"{_MOST_DIMENSIONS}")
        tensor = is_tensor(array)
        return Description(dtype, tuple(array.shape), tensor, tensor and array.is_cuda,
                           requires_grad)

    def pack(self, kind: int = 0, number: int = 0) -> npt.NDArray[numpy.int64]:
        """As it travels. kind, number: the caller's own, see unpack()."""
        fields = numpy.zeros(_FIELDS, numpy.int64)
        flags = self.tensor | self.on_gpu << 1 | self.requires_grad << 2
        fields[:5] = (kind, number, _DTYPES.index(self.dtype), flags, len(self.shape))
        fields[5 : 5 + len(self.shape)] = self.shape
        return fields

    @staticmethod
    def unpack(fields: npt.NDArray[numpy.int64]) -> Tuple[int, int, Description]:
        """Kind, number, and the description, of what pack() gave."""
        kind, number, dtype, flags, dimensions = (int(field) for field in fields[:5])
        shape = tuple(int(extent) for extent in fields[5 : 5 + dimensions])
        return kind, number, Description(_DTYPES[dtype], shape, bool(flags & 1), bool(flags & 2),
                                         bool(flags & 4))

    def empty(self, device: str) -> Any:
        """Memory for it; `device`, PyTorch's name of one, counts for a tensor."""
        if not self.tensor:
            return numpy.empty(self.shape, self.dtype)
        torch = importlib.import_module("torch")
        return torch.empty(self.shape, dtype=getattr(torch, self.dtype), device=device)


def blank_fields() -> npt.NDArray[numpy.int64]:
    """Where the fields of a pack() are received."""
    return numpy.empty(_FIELDS, numpy.int64)


def axis_of(axis: int, array: Any, name: str = "axis") -> int:
    """A valid axis, counted from the front."""
    axis, dimensions = integer(name, axis), int(array.ndim)
    if not -dimensions <= axis < dimensions:
        raise InvalidArgument(f"{name} is {axis}, but inp has shape {tuple(array.shape)}")
    return axis % dimensions


def divisible_axis(axis: int, array: Any, parts: int, name: str = "axis") -> int:
    """The same of an axis that is cut into equal parts."""
    axis = axis_of(axis, array, name)
    if array.shape[axis] % parts != 0:
        raise InvalidArgument(f"inp has shape {tuple(array.shape)}, which does not divide among "
                              f"{parts} ranks along {name} {axis}")
    return axis


def split(array: Any, axis: int, parts: int) -> Any:
    """The parts of an array along an axis, one after the other: of shape (parts, ...)."""
    shape = tuple(array.shape)
    apart = array.reshape(shape[:axis] + (parts, shape[axis] // parts) + shape[axis + 1 :])
    return contiguous(move_axis(apart, axis, 0))


def join(parts: Any, axis: int) -> Any:
    """The inverse of split()."""
    shape = tuple(parts.shape[1:])
    whole = shape[:axis] + (parts.shape[0] * shape[axis],) + shape[axis + 1 :]
    return contiguous(move_axis(parts, 0, axis).reshape(whole))


def to_device(array: Any, device: Optional[str]) -> Any:
    """The result of a function that was asked for one on `device`."""
    if device is None:
        return array
    if is_tensor(array):
        return array.to(device)
    if device != "cpu":
        raise InvalidArgument(f"device is {device!r}, but inp is a NumPy array, which is on the cpu")
    return array
