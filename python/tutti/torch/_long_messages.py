"""Messages that are not copied to the store: they wait, where they are, until they are asked for, and
then go from rank to rank as Communicator.send() and recv() have them."""

# mypy: disable-error-code="misc,import"

from __future__ import annotations

import functools
import struct
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from tutti.errors import CommunicationError, DeadlineExceeded, InvalidArgument
from tutti.torch._lane import Lane
from tutti.torch._line import Line

_GRANT = struct.Struct("=iqq")  # who asks, the number of the offer, bytes that are wanted
End = Callable[[Optional[BaseException]], None]


def wrong_length(source: int, tag: int, sent: int, wanted: int) -> InvalidArgument:
    return InvalidArgument(f"rank {source} has sent {sent} bytes with tag {tag}, but the tensor to "
                           f"receive them has {wanted}")


class _Offered(NamedTuple):
    data: Any
    destination: int
    tag: int
    deadline: float
    end: End


class LongSends:
    """What this rank has offered to others. A token in the store says that an offer stands: whoever
    takes it decides, the receiver to have the message, the sender not to wait for that any longer."""

    def __init__(self, communicator: Any, store: Any, timeout: float) -> None:
        self._communicator, self._store, self._timeout = communicator, store, timeout
        self._rank: int = communicator.global_rank
        self._grants = Line(store, self._rank, "grant")
        self._lock = threading.Lock()
        self._offered: Dict[int, _Offered] = {}
        self._numbers = 0
        self.moves = False  # whether a message is on its way
        self._error: Optional[BaseException] = None

    def offer(self, data: Any, destination: int, tag: int, end: End) -> int:
        """The number of the offer. `end` is called when the message has gone, or failed to."""
        offered = _Offered(data, destination, tag, time.monotonic() + self._timeout, end)
        with self._lock:
            if self._error is not None:
                raise self._error
            number = self._numbers
            self._numbers += 1
            self._store.set(_token(self._rank, number), b"")
            self._offered[number] = offered
            if len(self._offered) == 1:
                self._grants.serve(self._deadline, self._send, self._expire, self.fail)
        return number

    def _deadline(self) -> Optional[float]:
        with self._lock:
            if self._error is not None:
                return None
            return min((one.deadline for one in self._offered.values()), default=None)

    def _send(self, grant: bytes) -> None:
        asking, number, wanted = _GRANT.unpack(grant)
        with self._lock:
            offered = self._offered.pop(number, None)
        if offered is None:  # fail() has ended it
            return
        if wanted != offered.data.size:
            offered.end(wrong_length(self._rank, offered.tag, offered.data.size, wanted))
            return
        self.moves = True
        error: Optional[BaseException] = None
        try:
            self._communicator.send(offered.data, asking)
        except BaseException as failure:  # everything: somebody waits
            error = failure
        self.moves = False
        offered.end(error)

    def _expire(self) -> None:
        now = time.monotonic()
        withdrawn: List[_Offered] = []
        with self._lock:
            for number, one in list(self._offered.items()):
                if one.deadline > now:
                    continue
                if _take(self._store, self._rank, number):
                    withdrawn.append(self._offered.pop(number))
                else:  # it is asked for at this moment
                    self._offered[number] = one._replace(deadline=now + self._timeout)
        for one in withdrawn:
            one.end(CommunicationError(f"rank {one.destination} has not received the message "
                                       f"with tag {one.tag} within {self._timeout:g} s"))

    def fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = error
            offered, self._offered = self._offered, {}
        for one in offered.values():
            one.end(error)

    def close(self) -> None:
        self._grants.close()


class LongReceives:
    """Fetches what others have offered, one after the other."""

    def __init__(self, communicator: Any, store: Any) -> None:
        self._communicator, self._store = communicator, store
        self._grants = Line(store, communicator.global_rank, "grant")
        self._lane = Lane("tutti long messages")

    def fetch(self, into: Any, source: int, number: int, tag: int, sent: int, end: End,
              withdrawn: Callable[[], None]) -> None:
        """Has a message brought into `into`, and calls `end`; or `withdrawn`, if its sender has
        given up."""

        outcome: List[Callable[[], None]] = []

        def run() -> None:
            try:
                if not _take(self._store, source, number):
                    outcome.append(withdrawn)
                    return
                self._grants.put(source, _GRANT.pack(self._communicator.global_rank, number,
                                                     into.size))
                if into.size != sent:
                    raise wrong_length(source, tag, sent, into.size)
                self._communicator.recv(into, source)
            except BaseException as error:  # everything: somebody waits
                outcome.append(functools.partial(end, error))
            else:
                outcome.append(functools.partial(end, None))

        self._lane.give(run, lambda: outcome[0]())

    @property
    def moves(self) -> bool:
        """Whether a message is on its way."""
        return self._lane.is_under_way

    def close(self) -> None:
        self._lane.end(timeout=5)


def _token(rank: int, number: int) -> str:
    return f"offer/{rank}/{number}"


def _take(store: Any, rank: int, number: int) -> bool:
    try:
        store.pop(_token(rank, number), timeout=0)
    except DeadlineExceeded:
        return False
    return True
