"""What a training script needs around DistOpt: equal starts, shards, parameters in files."""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, Dict, Iterable, Mapping, Optional, Tuple, Union

import numpy
import numpy.typing as npt

from tutti import _agreement, _core, files
from tutti._checks import check_kind, integer, sized, whole
from tutti._types import Array
from tutti.errors import Error, InvalidArgument

Parameters = Union[Mapping[str, Array], Iterable[Array]]


def broadcast_parameters(
    params: Parameters,
    communicator: Optional[_core.Communicator] = None,
    root: int = 0,
) -> None:
    """Gives every rank the parameters of rank `root`, in place.

    params: arrays in the same order on all ranks, or a mapping to them. communicator: by default
    one over all ranks that a launcher has started. Collective and blocking.
    """
    if not isinstance(params, Iterable) or isinstance(params, str):
        raise TypeError(f"params is {params!r}, but must be arrays, or a mapping to them")
    if communicator is None:
        communicator = _core.Communicator()
    check_kind("communicator", communicator, (_core.Communicator,))
    for array in params.values() if isinstance(params, Mapping) else params:
        communicator.broadcast(array, root)


def data_partition(
    dataset_x: npt.NDArray[Any], dataset_y: npt.NDArray[Any], global_rank: int, world_size: int
) -> Tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """This rank's shard of samples and labels, along the first axis.

    All shards are equally long, so that all ranks have the same number of batches; where the data
    do not divide, the last shards begin anew at the front. Local.
    """
    for name, dataset in (("dataset_x", dataset_x), ("dataset_y", dataset_y)):
        sized(name, dataset)
    global_rank, world_size = integer("global_rank", global_rank), whole("world_size", world_size, 1)
    count = len(dataset_x)
    if count == 0 or len(dataset_y) != count:
        raise InvalidArgument(f"dataset_x has {count} samples, dataset_y {len(dataset_y)}")
    if not 0 <= global_rank < world_size:
        raise InvalidArgument(
            f"global_rank is {global_rank}, but the ranks are 0 to {world_size - 1}"
        )
    size = -(-count // world_size)
    first = global_rank * size % count
    if first + size <= count:
        return dataset_x[first : first + size], dataset_y[first : first + size]
    indices = numpy.arange(first, first + size) % count
    return dataset_x[indices], dataset_y[indices]


def save_parameters(
    path: files.Path, params: Parameters, communicator: _core.Communicator, root: int = 0
) -> None:
    """Writes the parameters of rank `root` to a .npz file, which load_parameters() reads.

    params: arrays of numbers or bool, but not of bfloat16, by name, such as PyTorch's
    model.state_dict(), or in an order. A crash at any moment leaves the old file or the new one.
    Collective and blocking: if it fails, rank `root` raises why (OSError, InvalidArgument), and the
    others tutti.Error with the text.
    """

    def write() -> None:
        if communicator.global_rank != root:
            return
        arrays = {}
        for name, array in _named(params).items():
            arrays[_KEY + name] = values = _values(name, array)
            if values.dtype.kind not in "fiub":
                raise InvalidArgument(f"parameter {name} is of {values.dtype}, not of numbers")
        with files.OutputFile(path) as output:
            files.save_arrays(output.file, arrays)
            output.commit()

    _on_all(write, communicator)


def load_parameters(
    path: files.Path, params: Parameters, communicator: _core.Communicator, root: int = 0
) -> None:
    """Gives every rank the parameters of a file that save_parameters() wrote, in place. Rank `root`
    alone reads the file; the others get them from it.

    params: as they were saved, of the same names, shapes and dtypes, and contiguous. Collective and
    blocking. If it fails, nothing has changed on any rank: the one where it does raises why (OSError,
    ValueError for a file that is none, InvalidArgument for one of other parameters), the others
    tutti.Error with the text, and all MismatchError where their parameters differ.
    """
    arrays = _named(params)
    saved: Dict[str, npt.NDArray[Any]] = {}

    def check() -> None:
        for key, array in arrays.items():
            _check_writable(key, array)
        if communicator.global_rank != root:
            return
        name = os.fspath(path)
        with open(path, "rb") as file:
            saved.update(files.load_arrays(file, name))
        if {_KEY + key for key in arrays} != set(saved):
            differ = sorted({key[len(_KEY):] for key in saved} ^ set(arrays))
            raise InvalidArgument(f"{name}: not of these parameters: {', '.join(differ):.200}")
        for key, array in arrays.items():
            mine, values = _values(key, array), saved[_KEY + key]
            if mine.shape != values.shape or mine.dtype != values.dtype:
                raise InvalidArgument(f"{name}: parameter {key} is {values.dtype} "
                                      f"{list(values.shape)}, but the model's is {mine.dtype} "
                                      f"{list(mine.shape)}")

    _on_all(check, communicator)
    _agreement.compare(communicator, "parameter",
                       [_agreement.described(key, _with_shape(array)) for key, array in arrays.items()])
    for key, values in saved.items():
        _assign(arrays[key[len(_KEY):]], values)
    broadcast_parameters(arrays, communicator, root)


_KEY = "parameter:"


def _named(params: Parameters) -> Dict[str, Array]:
    if isinstance(params, Mapping):
        return dict(params)
    return {str(number): array for number, array in enumerate(params)}


def _values(name: str, array: Array) -> npt.NDArray[Any]:
    """An array's elements in CPU memory; PyTorch's tensors give them only if they are asked so."""
    try:
        return numpy.asarray(array.detach().cpu() if hasattr(array, "detach") else array)
    except TypeError as error:  # bfloat16, which NumPy has not
        raise InvalidArgument(f"parameter {name}: {error}") from error


def _with_shape(array: Any) -> Any:
    return array if hasattr(array, "shape") and hasattr(array, "dtype") else numpy.asarray(array)


def _check_writable(name: str, array: Any) -> None:
    """Refuses what cannot be broadcast."""
    if hasattr(array, "is_contiguous"):
        contiguous, writable = array.is_contiguous(), True
    else:
        flags = numpy.asarray(array).flags
        contiguous, writable = flags.c_contiguous, flags.writeable
    if not contiguous:
        raise InvalidArgument(f"parameter {name} is not contiguous: its elements must lie one after "
                              "the other in C order")
    if not writable:
        raise InvalidArgument(f"parameter {name} is read-only")


def _assign(array: Array, values: npt.NDArray[Any]) -> None:
    if hasattr(array, "detach"):
        array.detach().copy_(sys.modules["torch"].from_numpy(values.copy()))
    else:
        numpy.asarray(array)[...] = values


def _on_all(action: Callable[[], None], communicator: _core.Communicator) -> None:
    """Calls action() on every rank. If it fails on one, it does on all."""
    fault: Optional[Exception] = None
    try:
        action()
    except Exception as error:
        fault = error
    text = b"" if fault is None else f"{type(fault).__name__}: {fault}".encode(errors="backslashreplace")
    texts = _agreement.gather(communicator, text)
    if fault is not None:
        raise fault
    for rank, text in enumerate(texts):
        if text:
            raise Error(f"rank {rank}: {text.decode(errors='replace')}")
