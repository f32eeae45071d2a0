"""A barrier that says who does not come, over the store of a group."""

from __future__ import annotations

import contextlib
import time
from typing import Any, List, Set

from tutti.errors import CommunicationError, DeadlineExceeded


class MonitoredBarriers:
    """Those of the ranks of a group, one after the other."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._begun = 0
        self._left: List[str] = []  # on rank 0: keys of earlier ones that are, or will be, in the store

    def wait(self, seconds: float, wait_all: bool) -> None:
        """CommunicationError unless all have come within `seconds`: it names the first rank that has
        not, or with `wait_all` all of them."""
        self._begun += 1
        prefix = f"barrier/{self._begun}"
        if self._rank == 0:
            verdict = self._judge(prefix, seconds, wait_all)
        else:
            self._store.set(f"{prefix}/{self._rank}", b"")
            patience = 2 * seconds + 1  # rank 0 may be late, too, and then waits for the others
            try:
                verdict = self._store.get(f"{prefix}/verdict", timeout=patience).decode()
            except DeadlineExceeded:
                verdict = f"Rank 0 timed out in monitoredBarrier after {round(1000 * patience)} ms"
        if verdict:
            raise CommunicationError(verdict)

    def _judge(self, prefix: str, seconds: float, wait_all: bool) -> str:
        waiting = set(range(1, self._size))
        missing = self._missing(prefix, seconds, wait_all, waiting)
        verdict = missing and f"{missing} failed to pass monitoredBarrier in {round(1000 * seconds)} ms"
        self._store.set(f"{prefix}/verdict", verdict.encode())
        if not waiting:  # who has come has done with the earlier ones
            while self._left:
                key = self._left.pop()
                with contextlib.suppress(DeadlineExceeded):  # a rank that was interrupted before
                    self._store.pop(key, timeout=0)
        self._left += [f"{prefix}/verdict", *(f"{prefix}/{other}" for other in sorted(waiting))]
        return verdict

    def _missing(self, prefix: str, seconds: float, wait_all: bool, waiting: Set[int]) -> str:
        """Who has not come. Takes those from `waiting` that have."""
        missing: List[str] = []
        deadline = time.monotonic() + seconds
        for other in range(1, self._size):
            try:
                self._store.pop(f"{prefix}/{other}", timeout=max(0.0, deadline - time.monotonic()))
                waiting.discard(other)
            except DeadlineExceeded:
                missing.append(str(other))
                if not wait_all:
                    break
        return missing and ("Rank " if len(missing) == 1 else "Ranks ") + ", ".join(missing) or ""
