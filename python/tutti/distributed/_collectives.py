"""Collectives on arrays with axes: what is moved lies along the first one, in one piece."""

from __future__ import annotations

from typing import Any, Callable, Literal, Optional

from tutti import _core
from tutti.distributed import _arrays

Op = Literal["sum", "min", "max"]


def all_reduce(comm: _core.Communicator, array: Any, op: Op) -> Any:
    """The reduction over all ranks."""
    array = _arrays.contiguous(array)
    out = _arrays.empty(array, tuple(array.shape))
    comm.all_reduce(array, out, op)
    return out


def reduce_sum(comm: _core.Communicator, array: Any) -> Optional[Any]:
    """The sum on rank 0, None elsewhere."""
    array = _arrays.contiguous(array)
    out = _arrays.empty(array, tuple(array.shape)) if comm.global_rank == 0 else None
    comm.reduce(array, 0, out)
    return out


def broadcast(comm: _core.Communicator, array: Optional[Any], blank: Callable[[], Any]) -> Any:
    """A copy of rank 0's array. blank: makes memory for it on another rank."""
    out = blank() if array is None else _arrays.copy_of(array)
    comm.broadcast(out, 0)
    return out


def all_gather(comm: _core.Communicator, array: Any, axis: int) -> Any:
    """The arrays of all ranks, one after the other along an axis."""
    array = _arrays.contiguous(array)
    out = _arrays.empty(array, (comm.world_size, *array.shape))
    comm.all_gather(array, out)
    return _arrays.join(out, axis)


def reduce_scatter_sum(comm: _core.Communicator, array: Any, axis: int) -> Any:
    """This rank's part, along an axis, of the sum over all ranks."""
    parts = _arrays.split(array, axis, comm.world_size)
    out = _arrays.empty(parts, tuple(parts.shape[1:]))
    comm.reduce_scatter(parts, out)
    return out


def gather(comm: _core.Communicator, array: Any, axis: int) -> Optional[Any]:
    """The arrays of all ranks, along an axis, on rank 0; None elsewhere."""
    array = _arrays.contiguous(array)
    if comm.global_rank != 0:
        comm.gather(array, root=0)
        return None
    out = _arrays.empty(array, (comm.world_size, *array.shape))
    comm.gather(array, out, 0)
    return _arrays.join(out, axis)


def scatter(
    comm: _core.Communicator, array: Optional[Any], axis: int, blank: Callable[[], Any]
) -> Any:
    """This rank's part, along an axis, of rank 0's array. blank: makes memory for it elsewhere."""
    parts = None if array is None else _arrays.split(array, axis, comm.world_size)
    out = blank() if parts is None else _arrays.empty(parts, tuple(parts.shape[1:]))
    comm.scatter(parts, out, 0)
    return out


def all_to_all(comm: _core.Communicator, array: Any, split_axis: int, concat_axis: int) -> Any:
    """Of each rank's array, cut along one axis, this rank's part; these along another axis."""
    parts = _arrays.split(array, split_axis, comm.world_size)
    out = _arrays.empty(parts, tuple(parts.shape))
    comm.all_to_all(parts, out)
    return _arrays.join(out, concat_axis)
