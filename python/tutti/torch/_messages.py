"""Messages between the ranks of a process group, matched as PyTorch's users expect it: tags and
sources may come in any order, and a send that is not long does not wait for its recv."""

# mypy: disable-error-code="misc,import"

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections import deque
from typing import Any, Deque, List, NamedTuple, Optional, Set, Tuple

import numpy
import torch

import tutti
from tutti.errors import CommunicationError, DeadlineExceeded, InvalidArgument, PeerLost
from tutti.torch._line import Line
from tutti.torch._long_messages import End, LongReceives, LongSends, wrong_length

_HEAD = struct.Struct("=iiqq")  # source, tag, bytes, the number of an offer
_FOLLOWS = -1  # no offer: the bytes follow
_MOST_COPIED = 64 * 1024  # bytes; what is longer is offered, and waits for its recv
_GONE = "it has destroyed its process group"
_BETWEEN_LOOKS = 0.3  # seconds, at those who have left
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
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))  # one element may have any stride
    return flat.view(torch.uint8).numpy()


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
        self._left: Set[int] = set()  # who had left before the latest look for a message
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
        if not -2**31 <= tag < 2**31:
            raise InvalidArgument(f"tag is {tag}, but must have 32 bits")
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
            first = min((wanted.deadline for wanted in self._wanted), default=None)
        return first if first is None else min(first, time.monotonic() + _BETWEEN_LOOKS)

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
        """Nothing has come for some time."""
        now = time.monotonic()
        late: List[Tuple[_Wanted, BaseException]] = []
        with self._lock:
            for wanted in self._wanted:
                senders = self._senders(wanted)
                if senders and senders <= self._left:
                    late.append((wanted, PeerLost(tuple(sorted(senders)), f"{_GONE}, and {wanted}")))
                elif wanted.deadline <= now:
                    late.append((wanted, CommunicationError(f"{wanted} within {self._timeout:g} s")))
            for wanted, _ in late:
                self._wanted.remove(wanted)
            others = [self._senders(wanted) - self._left for wanted in self._wanted]
        for wanted, error in late:
            wanted.end(error)
        for rank in {min(senders) for senders in others if senders}:
            try:
                self._store.get(_left(rank), timeout=0)
                self._left.add(rank)  # what it had sent before is looked for once more
            except DeadlineExceeded:
                pass

    def _senders(self, wanted: _Wanted) -> Set[int]:
        """Those without whom nothing can come for it."""
        return {wanted.source} if wanted.source != ANY else set(range(self._size)) - {self._rank}

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
        with contextlib.ExitStack() as last_first:  # all of it, whatever fails
            last_first.callback(self._store.close)
            last_first.callback(self._long_receives.close)
            last_first.callback(self._long_sends.close)
            last_first.callback(self._line.close)
            self._store.set(_left(self._rank), b"")


def _left(rank: int) -> str:
    """What is set once a rank sends nothing any more."""
    return f"left/{rank}"


__all__ = ["ANY", "Mailbox", "bytes_of"]
