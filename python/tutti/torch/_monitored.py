"""A barrier that says who does not come, over the store of a group."""

from __future__ import annotations

import time
from typing import Any, List

from tutti.errors import CommunicationError, DeadlineExceeded


def monitored(store: Any, number: int, rank: int, size: int, seconds: float, wait_all: bool) -> None:
    """The barrier of this number. CommunicationError unless all have come within `seconds`: it names
    the first rank that has not, or with `wait_all` all of them."""
    prefix = f"barrier/{number}"
    if rank == 0:
        missing = _missing(store, prefix, size, seconds, wait_all)
        verdict = missing and (f"{missing} failed to pass monitoredBarrier in "
                               f"{round(1000 * seconds)} ms")
        store.set(f"{prefix}/verdict", verdict.encode())
    else:
        store.set(f"{prefix}/{rank}", b"")
        patience = 2 * seconds + 1  # rank 0 may be late, too, and then waits for the others
        try:
            verdict = store.get(f"{prefix}/verdict", timeout=patience).decode()
        except DeadlineExceeded:
            verdict = f"Rank 0 timed out in monitoredBarrier after {round(1000 * patience)} ms"
    if verdict:
        raise CommunicationError(verdict)


def _missing(store: Any, prefix: str, size: int, seconds: float, wait_all: bool) -> str:
    missing: List[str] = []
    deadline = time.monotonic() + seconds
    for other in range(1, size):
        try:
            store.get(f"{prefix}/{other}", timeout=max(0.0, deadline - time.monotonic()))
        except DeadlineExceeded:
            missing.append(str(other))
            if not wait_all:
                break
    return missing and ("Rank " if len(missing) == 1 else "Ranks ") + ", ".join(missing) or ""
