"""What others send to a rank: a numbered list in the store, from which a thread takes."""

from __future__ import annotations

import time
from typing import Any, Callable, Optional

from tutti.errors import DeadlineExceeded
from tutti.torch._lane import Lane

_END = b""  # close() has put it there


class Line:
    """The list `name` of each rank."""

    def __init__(self, store: Any, rank: int, name: str) -> None:
        self._store, self._rank, self._name = store, rank, name
        self._lane = Lane(f"tutti {name}s")
        self._next = 0  # the number of what is taken next

    def put(self, rank: int, value: Any) -> None:
        """To the end of another rank's list."""
        number = self._store.add(f"{self._name}s/{rank}", 1) - 1
        self._store.set(f"{self._name}/{rank}/{number}", value)

    def serve(self, deadline: Callable[[], Optional[float]], take: Callable[[bytes], None],
              expire: Callable[[], None], fail: Callable[[BaseException], None]) -> None:
        """Has the thread take() what comes, until deadline() is None: it says until when somebody
        waits. Then expire(); and fail() with what ends all waits, such as what the others raise."""

        def run() -> None:
            try:
                while (until := deadline()) is not None:
                    try:
                        value = self._store.pop(f"{self._name}/{self._rank}/{self._next}",
                                                timeout=max(0.0, until - time.monotonic()))
                    except DeadlineExceeded:
                        expire()
                        continue
                    self._next += 1
                    if value == _END:
                        return
                    take(value)
            except BaseException as error:  # everything: somebody waits
                fail(error)

        self._lane.give(run)

    def close(self) -> None:
        """Ends the thread, for which nobody waits any more."""
        try:
            if not self._lane.idle:
                self.put(self._rank, _END)
        finally:
            self._lane.end(timeout=5)
