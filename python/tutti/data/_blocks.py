"""Batches in shared memory: a worker writes their arrays into blocks, the reader lends them out."""

from __future__ import annotations

import collections
import math
import mmap
import os
import weakref
from multiprocessing.connection import Connection
from typing import Any, Deque, Dict, Iterable, List, NamedTuple, Optional, Tuple

import numpy
import numpy.typing as npt

from tutti.data import _channel
from tutti.data.collate import map_leaves

_ALIGNMENT = 64


class ArrayAt(NamedTuple):
    """An array of a block."""

    offset: int
    shape: Tuple[int, ...]
    dtype: numpy.dtype[Any]


class Packet(NamedTuple):
    """A batch whose arrays are in a block: each is an ArrayAt instead."""

    batch: Any
    block: Optional[int]  # None without any arrays
    added: Optional[int]  # bytes of the block if it is new; its memory follows
    dropped: Optional[int]  # a block that is used no more


def _room_for(size: int) -> int:
    """What an array of so many bytes takes in a block: something, even if it has no elements."""
    return max(1, -(-size // _ALIGNMENT)) * _ALIGNMENT


def _array(memory: Any, at: ArrayAt) -> npt.NDArray[Any]:
    return numpy.ndarray(at.shape, at.dtype, memory, at.offset)


class BlockWriter:
    """The blocks of a worker: a batch is written to one, while others are read elsewhere."""

    def __init__(self) -> None:
        self._blocks: Dict[int, mmap.mmap] = {}
        self._free: List[int] = []
        self._made = 0
        self._current: Optional[int] = None
        self._used = 0
        # Those made in the current block, by id().
        self._arrays: Dict[int, Tuple[npt.NDArray[Any], ArrayAt]] = {}

    def begin(self, returned: Iterable[int]) -> None:
        """Begins a batch. returned: blocks that nobody reads any more."""
        self._free.extend(returned)
        self._current = self._free.pop() if self._free else None
        self._used = 0
        self._arrays.clear()

    def empty(self, shape: Tuple[int, ...], dtype: numpy.dtype[Any]) -> npt.NDArray[Any]:
        """A new array of the batch: in the block, if there is room."""
        room = _room_for(math.prod(shape) * dtype.itemsize)
        memory = self._memory()
        if memory is None or self._used + room > len(memory):
            return numpy.empty(shape, dtype)
        at = ArrayAt(self._used, shape, dtype)
        array = _array(memory, at)
        self._used += room
        self._arrays[id(array)] = array, at
        return array

    def send(self, connection: Connection, number: int, batch: Any) -> None:
        """Sends batch `number`, with its arrays in a block, and ends it."""
        outside: List[int] = []
        map_leaves(batch, numpy.ndarray, lambda array: outside.append(self._bytes_outside(array)))
        needed = self._used + sum(outside)
        dropped = descriptor = None
        if needed > self._capacity():
            dropped, descriptor = self._current, self._add(needed)
        try:
            batch = map_leaves(batch, numpy.ndarray, self._place)
            block = self._current if needed else None
            added = None if descriptor is None else self._capacity()
            self._arrays.clear()
            if dropped is not None:
                del self._blocks[dropped]
            _channel.send(connection, (number, Packet(batch, block, added, dropped)))
            if descriptor is not None:
                _channel.send_memory(connection, descriptor)
        finally:
            if descriptor is not None:
                os.close(descriptor)
        if block is None and self._current is not None:
            self._free.append(self._current)

    def _memory(self) -> Optional[mmap.mmap]:
        return None if self._current is None else self._blocks[self._current]

    def _capacity(self) -> int:
        memory = self._memory()
        return 0 if memory is None else len(memory)

    def _bytes_outside(self, array: npt.NDArray[Any]) -> int:
        """What an array still takes in the block."""
        if id(array) in self._arrays or array.dtype.hasobject:
            return 0
        return _room_for(array.nbytes)

    def _add(self, size: int) -> int:
        """Makes the current block a new one of that many bytes; its descriptor."""
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        descriptor = _channel.new_memory(size)
        try:
            memory = mmap.mmap(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
        self._made += 1
        self._current = self._made
        self._blocks[self._current] = memory
        self._used = 0
        self._arrays.clear()  # what the old one has is copied; the batch keeps it mapped till then
        return descriptor

    def _place(self, array: npt.NDArray[Any]) -> Any:
        """Where an array is in the block, to which it is copied if need be."""
        if array.dtype.hasobject:
            return array
        if id(array) not in self._arrays:
            copy = self.empty(array.shape, array.dtype)
            copy[...] = array
            array = copy
        return self._arrays[id(array)][1]


class BlockReader:
    """The blocks of one worker as the other side sees them. A batch is lent as arrays in its block,
    which goes back to the worker when the last of them is gone."""

    def __init__(self) -> None:
        self._blocks: Dict[int, mmap.mmap] = {}
        self._lent = 0
        # The garbage collector appends, at any moment and in any thread.
        self._returned: Deque[int] = collections.deque()

    @property
    def lent(self) -> int:
        """How many blocks are lent."""
        return self._lent - len(self._returned)

    def receive(self, connection: Connection, packet: Packet, copied: bool) -> Any:
        """The batch of a packet, whose new block is next on the connection; copied out of the block
        if so wanted."""
        if packet.dropped is not None:
            del self._blocks[packet.dropped]
        if packet.block is None:
            return packet.batch
        if packet.added is not None:
            memory = _channel.receive_memory(connection, packet.added)
            self._blocks[packet.block] = memory
        # All arrays of the batch have this one as their base.
        whole = numpy.frombuffer(self._blocks[packet.block], numpy.uint8)
        weakref.finalize(whole, self._returned.append, packet.block).atexit = False
        self._lent += 1
        batch = map_leaves(packet.batch, ArrayAt, lambda at: _array(whole, at))
        return map_leaves(batch, numpy.ndarray, numpy.copy) if copied else batch

    def take_returned(self) -> List[int]:
        """The blocks that were lent, and are no more."""
        returned = []
        while self._returned:
            returned.append(self._returned.popleft())
        self._lent -= len(returned)
        return returned
