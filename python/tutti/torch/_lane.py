"""A thread that runs what it is given, one after the other."""

from __future__ import annotations

import queue
import threading
from typing import Callable, Optional


class Lane:
    """Runs calls in the order in which they are given. Its thread starts with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Optional[Callable[[], None]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: Optional[threading.Thread] = None
        self._given = 0
        self._ended = 0  # changed by the thread alone

    @property
    def idle(self) -> bool:
        """Whether everything that was given has ended."""
        return self._given == self._ended

    def give(self, call: Callable[[], None]) -> None:
        """Has `call`, which raises nothing, run after what was given before; at once if what runs
        has given it, such as a future's callback, which may wait for it."""
        if threading.current_thread() is self._thread:
            call()
            return
        with self._lock:
            self._given += 1
            self._calls.put(call)
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
            call = self._calls.get()
            if call is None:
                return
            call()
            del call  # and the tensors that it keeps, while this waits for the next
            self._ended += 1
