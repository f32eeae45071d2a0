"""The exceptions of tutti: one tree under Error, as in C++."""

from __future__ import annotations

from typing import Optional, Sequence


class Error(RuntimeError):
    """Root of everything that tutti raises on its own account."""


class InvalidArgument(Error, ValueError):
    """An argument was refused. The message names it and its value; nothing was changed."""


class SystemError(Error):  # noqa: A001 - the name that it has in C++
    """A call to the operating system failed, for example because /dev/shm is full."""

    def __init__(self, errno: int, message: str) -> None:
        super().__init__(errno, message)
        self.errno = errno

    def __str__(self) -> str:
        return str(self.args[1])


class BackendUnavailable(Error):
    """The build or the machine lacks what was asked for, for example a GPU."""


class DeadlineExceeded(Error, TimeoutError):
    """What was waited for was not there before the deadline. Nothing is broken: the call may be made
    again."""


class CommunicationError(Error):
    """Communication failed. The communicator refuses every further call."""


class PeerLost(CommunicationError):
    """A rank died, left, or did not answer before the deadline.

    ranks: the global ranks that were lost, ascending. reason: why.
    """

    def __init__(self, ranks: Sequence[int], reason: str) -> None:
        super().__init__(ranks, reason)
        self.ranks = tuple(ranks)
        self.reason = reason

    def __str__(self) -> str:
        return "lost " + ", ".join(f"rank {rank}" for rank in self.ranks) + ": " + self.reason


class MismatchError(CommunicationError):
    """The ranks asked for different things in the same collective. The message shows what each
    asked for. No output was written (but see broadcast() in tutti/communicator.hpp)."""


class WorkerError(Error):
    """A worker of a tutti.data.DataLoader raised, died, or did not answer before the deadline. The
    message has the samples, and the worker's traceback if it raised, which is also the __cause__.

    worker: its number, from 0.
    """

    def __init__(self, worker: int, message: str) -> None:
        super().__init__(worker, message)
        self.worker = worker

    def __str__(self) -> str:
        return str(self.args[1])


class RankFailed(Error):
    """A rank that tutti.distributed.launcher() started has failed, and the others were ended.

    rank: which. reason: how, in a line. traceback: the text of the exception's, empty if it did not
    fail by one. exitcode: that of its process, as multiprocessing has it (negative for a signal);
    None if that would not end. __cause__ is the exception, if it could be pickled.
    """

    def __init__(self, rank: int, reason: str, traceback: str, exitcode: Optional[int]) -> None:
        super().__init__(rank, reason, traceback, exitcode)
        self.rank = rank
        self.reason = reason
        self.traceback = traceback
        self.exitcode = exitcode

    def __str__(self) -> str:
        head = f"rank {self.rank} failed: {self.reason}"
        return f"{head}\n\nOn rank {self.rank}: {self.traceback.rstrip()}" if self.traceback else head
