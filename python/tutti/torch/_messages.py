"""Messages between the ranks of a process group, matched as PyTorch's users expect it: a send does
not wait for its recv, and tags and sources may come in any order."""

# mypy: disable-error-code="misc,import"

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, List, Optional, Tuple

import numpy
import torch

import tutti
from tutti.errors import CommunicationError, DeadlineExceeded, InvalidArgument
from tutti.torch._lane import Lane

_HEAD = struct.Struct("=iiq")  # source, tag, bytes
ANY = -1


def bytes_of(tensor: torch.Tensor) -> Any:
    """The memory of a contiguous tensor, as an array of NumPy."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


class _Wanted:
    """A recv that nothing has come for. `end` is called once, with an error or None."""

    def __init__(self, into: Any, source: int, tag: int, deadline: float,
                 end: Callable[[Optional[BaseException]], None]) -> None:
        self.into, self.source, self.tag, self.deadline = into, source, tag, deadline
        self.end = end
        self.sender = ANY

    def takes(self, source: int, tag: int) -> bool:
        return self.tag == tag and self.source in (ANY, source)

    def take(self, source: int, data: Any) -> None:
        self.sender = source
        if len(data) != self.into.size:
            self.end(InvalidArgument(
                f"rank {source} has sent {len(data)} bytes with tag {self.tag}, but the tensor to "
                f"receive them has {self.into.size}"))
            return
        self.into[:] = numpy.frombuffer(data, numpy.uint8)
        self.end(None)

    def __str__(self) -> str:
        whom = "any rank" if self.source == ANY else f"rank {self.source}"
        return f"nothing with tag {self.tag} has come from {whom}"


class Mailbox:
    """The messages of one rank. Each rank has a numbered list of what was sent to it, in the store,
    and takes from there what its recvs want; what they do not want yet is kept."""

    def __init__(self, communicator: Any, timeout: float) -> None:
        self._rank: int = communicator.global_rank
        self._size: int = communicator.world_size
        self._store = tutti.Store(communicator)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._wanted: List[_Wanted] = []
        self._kept: Deque[Tuple[int, int, Any]] = deque()
        self._next = 0  # the number of the message that is taken from the store next
        self._lane = Lane("tutti messages")
        self._error: Optional[BaseException] = None

    @property
    def store(self) -> Any:
        return self._store

    def send(self, tensor: torch.Tensor, destination: int, tag: int) -> None:
        """Returns when the message is on its way; the tensor may be used again."""
        if not 0 <= destination < self._size:
            raise InvalidArgument(f"destination is {destination}, but must be from 0 to "
                                  f"{self._size - 1}")
        data = bytes_of(tensor.contiguous())
        message = numpy.empty(_HEAD.size + data.size, numpy.uint8)
        message[:_HEAD.size] = numpy.frombuffer(_HEAD.pack(self._rank, tag, data.size), numpy.uint8)
        message[_HEAD.size:] = data
        self._put(destination, message)

    def _put(self, destination: int, message: Any) -> None:
        number = self._store.add(f"sent/{destination}", 1) - 1
        self._store.set(f"message/{destination}/{number}", message)

    def recv(self, tensor: torch.Tensor, source: int, tag: int,
             end: Callable[[Optional[BaseException]], None]) -> _Wanted:
        """Asks for a message. `end` is called when it is in `tensor`, which is contiguous."""
        if source != ANY and not 0 <= source < self._size:
            raise InvalidArgument(f"source is {source}, but must be from 0 to {self._size - 1}")
        wanted = _Wanted(bytes_of(tensor), source, tag, time.monotonic() + self._timeout, end)
        with self._lock:
            if self._error is not None:
                raise self._error
            place = next((i for i, kept in enumerate(self._kept)
                          if wanted.takes(kept[0], kept[1])), None)
            if place is None:
                self._wanted.append(wanted)
                if len(self._wanted) == 1:
                    self._lane.give(self._serve)
                return wanted
            source, _, data = self._kept[place]
            del self._kept[place]
        wanted.take(source, data)
        return wanted

    def _serve(self) -> None:
        """Takes messages from the store until no recv wants one."""
        while True:
            with self._lock:
                if not self._wanted or self._error is not None:
                    return
                deadline = min(wanted.deadline for wanted in self._wanted)
            try:
                message = self._store.pop(f"message/{self._rank}/{self._next}",
                                          timeout=max(0.0, deadline - time.monotonic()))
            except DeadlineExceeded:
                self._expire()
            except BaseException as error:  # everything: somebody waits
                self._fail(error)
                return
            else:
                self._next += 1
                source, tag, size = _HEAD.unpack_from(message)
                if size < 0:  # close() has sent it
                    return
                self._deliver(source, tag, memoryview(message)[_HEAD.size:])

    def _deliver(self, source: int, tag: int, data: Any) -> None:
        with self._lock:
            wanted = next((one for one in self._wanted if one.takes(source, tag)), None)
            if wanted is None:
                self._kept.append((source, tag, data))
                return
            self._wanted.remove(wanted)
        wanted.take(source, data)

    def _expire(self) -> None:
        now = time.monotonic()
        with self._lock:
            late = [wanted for wanted in self._wanted if wanted.deadline <= now]
            self._wanted = [wanted for wanted in self._wanted if wanted.deadline > now]
        for wanted in late:
            wanted.end(CommunicationError(f"{wanted} within {self._timeout:g} s"))

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = error
            wanted, self._wanted = self._wanted, []
        for one in wanted:
            one.end(error)

    def close(self) -> None:
        self._fail(CommunicationError("the process group was destroyed"))
        if not self._lane.idle:
            self._put(self._rank, _HEAD.pack(self._rank, 0, -1))
        self._lane.end(timeout=5)
        self._store.close()


__all__ = ["ANY", "Mailbox", "bytes_of"]
