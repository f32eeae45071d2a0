"""A dataset of which each host has one copy, in memory that its ranks share."""

from __future__ import annotations

import json
import math
import mmap
import os
import secrets
import struct
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import numpy
import numpy.typing as npt

from tutti import _core
from tutti._checks import check_kind
from tutti.data import _channel
from tutti.data.dataset import ArrayDataset
from tutti.errors import Error, InvalidArgument

Arrays = Union[npt.NDArray[Any], Sequence[npt.NDArray[Any]]]

_ALIGNMENT = 64
_HEAD = struct.Struct("<16sq")  # a token, and the length of the table of arrays that follows
_NOTICE = struct.Struct("<qq16s480s")  # process, descriptor, token; what went wrong, in UTF-8


class SharedDataset(ArrayDataset):
    """An ArrayDataset whose arrays one rank of each host has loaded, and all of the host read.

    load: called on one rank a host, that with local_rank 0; returns an array or several of numbers,
    which are copied once. communicator: of the ranks. The arrays are read-only, and stay as long as
    anybody has them; their memory has no name, so nothing is left behind.

    Collective and blocking: the others wait for load() no longer than the communicator's timeout.
    If it fails on a rank, that one raises what load() did, and the others tutti.Error with its
    text.
    """

    def __init__(self, load: Callable[[], Arrays], communicator: _core.Communicator) -> None:
        if not callable(load):
            raise TypeError(f"load is {load!r}, but must be a function")
        check_kind("communicator", communicator, (_core.Communicator,))
        super().__init__(*_shared(load, communicator))


def _shared(load: Callable[[], Arrays], comm: _core.Communicator) -> List[npt.NDArray[Any]]:
    token, descriptor, fault = secrets.token_bytes(16), None, None
    try:
        try:
            if comm.local_rank == 0:
                made = load()
                descriptor = _written([made] if isinstance(made, numpy.ndarray) else made, token)
        except Exception as error:
            fault = error
        notices = _told(comm, fault, -1 if descriptor is None else descriptor, token)
        mapped: List[npt.NDArray[Any]] = []
        try:
            if descriptor is None:
                descriptor = _found(notices)
            mapped = _mapped(descriptor)
        except Exception as error:
            fault = error
        _told(comm, fault, -1, token)  # the descriptor is kept until all have the memory
        return mapped
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _told(comm: _core.Communicator, fault: Optional[Exception], descriptor: int,
          token: bytes) -> List[Tuple[int, int, bytes]]:
    """What all ranks say: process, descriptor and token of each. Raises if one has failed."""
    text = b"" if fault is None else f"{type(fault).__name__}: {fault}".encode()
    mine = _NOTICE.pack(os.getpid(), descriptor, token, text)
    all_notices = numpy.empty((comm.world_size, _NOTICE.size), numpy.uint8)
    comm.all_gather(numpy.frombuffer(mine, numpy.uint8), all_notices)
    if fault is not None:
        raise fault
    places = []
    for rank, notice in enumerate(all_notices):
        pid, theirs, token, said = _NOTICE.unpack(notice.tobytes())
        if said := said.rstrip(b"\0"):
            raise Error(f"rank {rank} could not share its dataset: {said.decode(errors='replace')}")
        places.append((pid, theirs, token))
    return places


def _layout(table: List[Tuple[str, List[int]]], begin: int) -> Tuple[List[int], int]:
    """Where each array of the table begins, and where the last ends."""
    offsets = []
    for dtype, shape in table:
        begin = -(-begin // _ALIGNMENT) * _ALIGNMENT
        offsets.append(begin)
        begin += numpy.dtype(dtype).itemsize * math.prod(shape)
    return offsets, begin


def _written(arrays: Sequence[npt.NDArray[Any]], token: bytes) -> int:
    """A descriptor of memory that holds the arrays."""
    for number, array in enumerate(arrays):
        if not isinstance(array, numpy.ndarray) or array.dtype.kind not in "biufc":
            kind = getattr(array, "dtype", type(array).__name__)
            raise InvalidArgument(f"array {number} of load() is of {kind}, but must be of numbers")
    table = [(array.dtype.str, list(array.shape)) for array in arrays]
    text = json.dumps(table).encode()
    offsets, end = _layout(table, _HEAD.size + len(text))
    descriptor = _channel.new_memory(end)
    try:
        with mmap.mmap(descriptor, end) as memory:
            memory.write(_HEAD.pack(token, len(text)) + text)
            for array, offset in zip(arrays, offsets):
                numpy.ndarray(array.shape, array.dtype, memory, offset)[...] = array
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _found(notices: List[Tuple[int, int, bytes]]) -> int:
    """A descriptor of this host's memory, among those that ranks of all hosts have."""
    for pid, theirs, token in notices:
        try:
            descriptor = os.open(f"/proc/{pid}/fd/{theirs}",
                                 os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:  # a process of another host
            continue
        found = False
        try:
            found = os.pread(descriptor, len(token), 0) == token
        except OSError:  # of another host, too: what has its number here is no memory
            pass
        finally:
            if not found:
                os.close(descriptor)
        if found:
            return descriptor
    raise Error("this rank sees the memory of none that has local_rank 0 in /proc")


def _mapped(descriptor: int) -> List[npt.NDArray[Any]]:
    """The arrays in the memory, read-only."""
    memory = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    _, length = _HEAD.unpack_from(memory)
    table = json.loads(memory[_HEAD.size : _HEAD.size + length])
    offsets, _ = _layout(table, _HEAD.size + length)
    return [numpy.ndarray(shape, dtype, memory, offset)
            for (dtype, shape), offset in zip(table, offsets)]
