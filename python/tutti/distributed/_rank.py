"""What runs in a rank that launcher() has started, and how it tells the end of it."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any, Callable, NamedTuple, Optional

from tutti import _core
from tutti.distributed import _world

_PR_SET_PDEATHSIG = 1


class Outcome(NamedTuple):
    """How a function ended on a rank: with `value`, or, where there is a `reason`, with `error`,
    whose traceback is `text`."""

    value: Any = None
    error: Optional[BaseException] = None
    reason: str = ""
    text: str = ""

    @staticmethod
    def of_error(error: BaseException) -> Outcome:
        line = traceback.format_exception_only(type(error), error)[-1].strip().splitlines()[0]
        return Outcome(None, error, line, _text_of(error))

    @property
    def failed(self) -> bool:
        return self.reason != ""

    @property
    def exitcode(self) -> int:
        """Of its process."""
        if isinstance(self.error, SystemExit) and isinstance(self.error.code, int):
            return self.error.code
        return 1 if self.failed else 0


def packed(outcome: Outcome) -> bytes:
    """As it travels; what cannot be pickled is a failure, or is left out of one."""
    try:
        return pickle.dumps(outcome, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # whatever the objects in it raise
        told = outcome if outcome.failed else Outcome.of_error(error)
        return pickle.dumps(told._replace(error=None), pickle.HIGHEST_PROTOCOL)


def unpacked(data: bytes) -> Outcome:
    """What packed() gave."""
    try:
        return pickle.loads(data)  # type: ignore[no-any-return]
    except Exception as error:  # whatever the objects in it raise
        return Outcome.of_error(error)


def _end_with(parent: int) -> None:
    """Has the kernel kill this process when the one that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _share_cores(ranks: int, forked: bool) -> None:
    """Gives each rank its part of the cores, where the user has not said anything else."""
    torch = sys.modules.get("torch")
    if torch is not None and forked:
        torch.set_num_threads(1)  # a fork has none of OpenMP's threads, but waits for them
    if "OMP_NUM_THREADS" in os.environ:
        return
    cores = max(1, len(os.sched_getaffinity(0)) // ranks)
    os.environ["OMP_NUM_THREADS"] = str(cores)
    if torch is not None and not forked:
        torch.set_num_threads(cores)


def _text_of(error: BaseException) -> str:
    """Its traceback, from the user's function on."""
    start = error.__traceback__
    while start is not None and start.tb_frame.f_code.co_filename == __file__:
        start = start.tb_next
    return "".join(traceback.format_exception(type(error), error, start or error.__traceback__))


def call(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """function(...), and the end of what it has sent."""
    value = function(*args, **kwargs)
    _world.join().mail.finish()
    return value


class Place(NamedTuple):
    """What a rank has to know in order to join the others. here: how many ranks its parent has."""

    rank: int
    size: int
    here: int
    ticket: _core.NcclIdHolder
    timeout: Optional[float]
    parent: int
    forked: bool


def run_rank(
    launched: Any, place: Place, connection: Connection, args: Any, kwargs: Any
) -> None:
    """The life of a rank: launched.function(...), and its outcome into `connection`."""
    _end_with(place.parent)
    _share_cores(place.here, place.forked)
    try:
        # So that Communicator() and DistOpt() join the other ranks as well, in this function.
        os.environ.update(TUTTI_RANK=str(place.rank), TUTTI_WORLD_SIZE=str(place.size),
                          TUTTI_TICKET=place.ticket.text())
        communicator = _core.Communicator(timeout=place.timeout)
        _world.enter(_world.World(communicator))
        torch = sys.modules.get("torch")
        if torch is not None and communicator.device != "cpu":
            torch.cuda.set_device(communicator.device)
        outcome = Outcome(call(launched.function, args, kwargs))
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            outcome = Outcome()
        else:
            outcome = Outcome.of_error(error)
    connection.send_bytes(packed(outcome))  # before the others learn of a failure
    connection.close()
    if outcome.failed:
        _core.close_all(outcome.error)
        sys.exit(outcome.exitcode)
