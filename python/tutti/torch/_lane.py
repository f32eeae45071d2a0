"""A thread that runs what it is given, one after the other."""

from __future__ import annotations

import os
import queue
import threading
from typing import Callable, Optional, Tuple

from tutti.errors import CommunicationError

_Call = Tuple[Callable[[], None], Callable[[], None]]


def _nothing() -> None:
    pass


class Lane:
    """Runs calls in the order in which they are given. Its thread starts with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process = os.getpid()
        self._calls: queue.SimpleQueue[Optional[_Call]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: Optional[threading.Thread] = None
        self._given = 0
        self._done = 0  # changed by the thread alone, as is _ended
        self._ended = 0

    @property
    def idle(self) -> bool:
        """Whether everything that was given has ended, with what follows."""
        return self._given == self._ended

    @property
    def is_under_way(self) -> bool:
        """Whether a call has not returned. What follows it need not have ended, nor the count of it."""
        return self._given != self._done

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child of the process that has the thread."""
        return os.getpid() != self._process

    def give(self, call: Callable[[], None], follows: Callable[[], None] = _nothing) -> None:
        """Has `call` run after what was given before, and then `follows`, which both raise nothing; at
        once if what runs has given it, such as a future's callback, which may wait for it.
        CommunicationError in a forked child, where nothing would run."""
        if self.is_inherited:
            raise CommunicationError("the process group belongs to the process that made it, not to a "
                                     "forked child")
        if threading.current_thread() is self._thread:
            call()
            follows()
            return
        with self._lock:
            self._given += 1
            self._calls.put((call, follows))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def end(self, timeout: float) -> None:
        """Ends the thread, once everything that was given has ended, and waits for that."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is None:
            return
        self._calls.put(None)
        if thread is not threading.current_thread():
            thread.join(timeout)

    def _run(self) -> None:
        while True:
            both = self._calls.get()
            if both is None:
                return
            call, follows = both
            call()
            self._done += 1
            follows()
            del both, call, follows  # and the tensors that they keep, while this waits for the next
            self._ended += 1
