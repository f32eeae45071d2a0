"""Messages between the ranks of a process group, matched as PyTorch's users expect it: tags and
sources may come in any order, and a send that is not long does not wait for its recv."""

# mypy: disable-error-code="misc,import"

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, List, NamedTuple, Optional

import numpy
import torch

import tutti
from tutti.errors import CommunicationError, InvalidArgument
from tutti.torch._line import Line
from tutti.torch._long_messages import End, LongReceives, LongSends, wrong_length

_HEAD = struct.Struct("=iiqq")  # source, tag, bytes, the number of an offer
_FOLLOWS = -1  # no offer: the bytes follow
_MOST_COPIED = 64 * 1024  # bytes; what is longer is offered, and waits for its recv
ANY = -1


class _Message(NamedTuple):
    """That has come, or is offered."""

    source: int
    tag: int
    size: int
    offer: int
    data: Any


def bytes_of(tensor: torch.Tensor) -> Any:
    """The memory of a contiguous tensor, as an array of NumPy."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


class _Wanted:
    """A recv that nothing has come for. `end` is called once, with an error or None."""

    def __init__(self, into: Any, source: int, tag: int, deadline: float, end: End) -> None:
        self.into, self.source, self.tag, self.deadline = into, source, tag, deadline
        self.end = end
        self.sender = ANY

    def takes(self, message: _Message) -> bool:
        return self.tag == message.tag and self.source in (ANY, message.source)

    def __str__(self) -> str:
        whom = "any rank" if self.source == ANY else f"rank {self.source}"
        return f"nothing with tag {self.tag} has come from {whom}"


class Mailbox:
    """The messages of one rank. Each rank has a list of what was sent or offered to it, and takes
    from there what its recvs want; what they do not want yet is kept."""

    def __init__(self, communicator: Any, timeout: float) -> None:
        self._rank: int = communicator.global_rank
        self._size: int = communicator.world_size
        self._store = tutti.Store(communicator)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._wanted: List[_Wanted] = []
        self._kept: Deque[_Message] = deque()
        self._line = Line(self._store, self._rank, "message")
        self._long_sends = LongSends(communicator, self._store, timeout)
        self._long_receives = LongReceives(communicator, self._store)
        self._error: Optional[BaseException] = None

    @property
    def store(self) -> Any:
        return self._store

    def send(self, tensor: torch.Tensor, destination: int, tag: int, end: End) -> None:
        """`end` is called when the tensor may be used again: before this returns if it is short,
        else when the message was received."""
        if not 0 <= destination < self._size:
            raise InvalidArgument(f"destination is {destination}, but must be from 0 to "
                                  f"{self._size - 1}")
        data = bytes_of(tensor.contiguous())
        if data.size > _MOST_COPIED and destination != self._rank:
            number = self._long_sends.offer(data, destination, tag, end)
            self._line.put(destination, _HEAD.pack(self._rank, tag, data.size, number))
            return
        message = numpy.empty(_HEAD.size + data.size, numpy.uint8)
        message[:_HEAD.size] = numpy.frombuffer(
            _HEAD.pack(self._rank, tag, data.size, _FOLLOWS), numpy.uint8)
        message[_HEAD.size:] = data
        self._line.put(destination, message)
        end(None)

    def recv(self, tensor: torch.Tensor, source: int, tag: int, end: End) -> _Wanted:
        """Asks for a message. `end` is called when it is in `tensor`, which is contiguous."""
        if source != ANY and not 0 <= source < self._size:
            raise InvalidArgument(f"source is {source}, but must be from 0 to {self._size - 1}")
        wanted = _Wanted(bytes_of(tensor), source, tag, time.monotonic() + self._timeout, end)
        self._want(wanted)
        return wanted

    def _want(self, wanted: _Wanted) -> None:
        with self._lock:
            if self._error is not None:
                raise self._error
            place = next((i for i, kept in enumerate(self._kept) if wanted.takes(kept)), None)
            if place is None:
                self._wanted.append(wanted)
                if len(self._wanted) == 1:
                    self._line.serve(self._deadline, self._deliver, self._expire, self._fail)
                return
            message = self._kept[place]
            del self._kept[place]
        self._give(message, wanted)

    def _deadline(self) -> Optional[float]:
        with self._lock:
            if self._error is not None:
                return None
            return min((wanted.deadline for wanted in self._wanted), default=None)

    def _deliver(self, value: bytes) -> None:
        source, tag, size, offer = _HEAD.unpack_from(value)
        message = _Message(source, tag, size, offer, memoryview(value)[_HEAD.size:])
        with self._lock:
            wanted = next((one for one in self._wanted if one.takes(message)), None)
            if wanted is None:
                self._kept.append(message)
                return
            self._wanted.remove(wanted)
        self._give(message, wanted)

    def _give(self, message: _Message, wanted: _Wanted) -> None:
        wanted.sender = message.source
        if message.offer != _FOLLOWS:
            self._long_receives.fetch(wanted.into, message.source, message.offer, message.tag,
                                      message.size, wanted.end, lambda: self._want_again(wanted))
        elif message.size != wanted.into.size:
            wanted.end(wrong_length(message.source, message.tag, message.size, wanted.into.size))
        else:
            wanted.into[:] = numpy.frombuffer(message.data, numpy.uint8)
            wanted.end(None)

    def _want_again(self, wanted: _Wanted) -> None:
        try:
            self._want(wanted)
        except BaseException as error:  # everything: somebody waits
            wanted.end(error)

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
        self._long_sends.fail(error)

    @property
    def moves(self) -> bool:
        """Whether a long message is on its way."""
        return self._long_receives.moves or self._long_sends.moves

    def close(self) -> None:
        self._fail(CommunicationError("the process group was destroyed"))
        self._line.close()
        self._long_sends.close()
        self._long_receives.close()
        self._store.close()


__all__ = ["ANY", "Mailbox", "bytes_of"]
