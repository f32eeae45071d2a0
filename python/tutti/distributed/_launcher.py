"""Runs a function on several ranks, and brings back what it returns, or how it failed."""

from __future__ import annotations

import functools
import importlib
import math
import multiprocessing
import multiprocessing.connection
import operator
import os
import pickle
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Callable, List, Literal, Optional, Union, overload

import numpy

from tutti import _core
from tutti._checks import integer
from tutti.distributed import _rank, _world
from tutti.distributed._rank import Outcome, Place
from tutti.errors import CommunicationError, InvalidArgument, PeerLost, RankFailed

_GRACE = 0.5  # seconds for a rank to end after SIGTERM, and for the cause of another's failure
_PATIENCE = 3.0  # seconds for that cause where a rank that still runs is said to be it
_LOOK = 0.2  # seconds after which one is seen to have ended whose pipes its children still hold

StartMethod = Literal["fork", "spawn"]


class _Child:
    """A rank as its parent sees it."""

    def __init__(self, number: int, process: BaseProcess, connection: Connection) -> None:
        self.number = number
        self.process = process
        self.connection = connection
        self.outcome: Optional[Outcome] = None
        self.ended = False

    def look(self) -> None:
        """Takes what it has sent, and notes whether it has ended."""
        if self.ended:
            return
        ended = not self.process.is_alive()  # asked first: what it has sent by then has come
        if self.outcome is None and self.connection.poll():
            try:
                self.outcome = _rank.unpacked(self.connection.recv_bytes())
            except (EOFError, OSError):  # it ended before, or in the middle of it
                self.process.join(_GRACE)
                ended = not self.process.is_alive()
        self.ended = ended

    @property
    def failed(self) -> bool:
        if self.outcome is not None and self.outcome.failed:
            return True
        return self.ended and (self.outcome is None or self.process.exitcode != 0)

    @property
    def is_consequence(self) -> bool:
        """Whether it failed because another rank had."""
        return self.outcome is not None and isinstance(self.outcome.error, CommunicationError)

    def blames(self, other: _Child) -> bool:
        """Whether it failed because it had lost that rank."""
        error = None if self.outcome is None else self.outcome.error
        return isinstance(error, PeerLost) and other.number in error.ranks

    def waitables(self) -> List[Any]:
        """What tells that there is something new of it."""
        return [self.process.sentinel] + ([self.connection] if self.outcome is None else [])

    def failure(self) -> RankFailed:
        """What its failure is for the caller."""
        if self.outcome is not None and self.outcome.failed:
            told = self.outcome
            raised = RankFailed(self.number, told.reason, told.text, told.exitcode)
            raised.__cause__ = told.error
            return raised
        code = self.process.exitcode
        return RankFailed(self.number, _how_it_ended(code), "", code)


def _how_it_ended(code: Optional[int]) -> str:
    if code is not None and code < 0:
        names = {int(one): one.name for one in signal.Signals}
        return f"it was killed by {names.get(-code, f'signal {-code}')}"
    return f"its process ended with exit code {code}, and without a result"


def _stop(ranks: List[_Child]) -> None:
    """Ends what still runs: by SIGTERM, or after a while by SIGKILL."""
    try:
        for rank in ranks:
            rank.process.terminate()
        deadline = time.monotonic() + _GRACE
        for rank in ranks:
            rank.process.join(max(0.0, deadline - time.monotonic()))
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.join()
            rank.connection.close()


def _results_of(ranks: List[_Child], timeout: float) -> List[Any]:
    """What the ranks return; RankFailed as soon as one has failed."""
    limit = math.inf  # when to stop waiting, where there is something to be told
    first_failure = math.inf
    while True:
        for rank in ranks:
            rank.look()
        running = [rank for rank in ranks if not rank.ended]
        failed = [rank for rank in ranks if rank.failed]
        causes = [rank for rank in failed if not rank.is_consequence]
        if causes:
            causes[0].process.join(_GRACE)  # in which it tells the ranks of other launchers why
            raise causes[0].failure()
        now = time.monotonic()
        if failed:
            first_failure = min(first_failure, now)
            blamed = any(one.blames(rank) for one in failed for rank in running
                         if rank.outcome is None)
            limit = first_failure + (_PATIENCE if blamed else _GRACE)
        if failed and (not running or now >= limit):
            raise failed[0].failure()
        if not running:
            return [rank.outcome.value for rank in ranks if rank.outcome is not None]
        if now >= limit:
            raise RankFailed(running[0].number, "it has returned, but did not end within "
                             f"{timeout:g} s", "", None)
        if not failed and all(rank.outcome is not None for rank in ranks):
            limit = min(limit, now + timeout)
        multiprocessing.connection.wait([one for rank in running for one in rank.waitables()],
                                        max(0.0, min(_LOOK, limit - now)))


# --- The launcher ---------------------------------------------------------------------------------


def _default_ranks() -> int:
    """A rank a GPU, or a core where there is none. The driver is asked by another process: ranks
    cannot be forked from one that has."""
    if os.path.exists("/dev/nvidiactl"):
        count = subprocess.run(
            [sys.executable, "-c", "from tutti import _core; print(_core.gpu_count())"],
            capture_output=True, text=True, timeout=60, check=True).stdout
        if int(count) > 0:
            return int(count)
    return len(os.sched_getaffinity(0))


def _named(module: str, name: str) -> Any:
    return operator.attrgetter(name)(importlib.import_module(module))


class Launched:
    """A function that launcher() was given: called, it runs on all ranks."""

    def __init__(
        self,
        function: Callable[..., Any],
        n_gpus: Optional[int],
        world_size: Optional[int],
        rank_start: int,
        master_ip: str,
        port: int,
        timeout: Optional[float],
        start_method: StartMethod,
    ) -> None:
        if not callable(function):
            raise TypeError(f"func is a {type(function).__name__}, but must be a function")
        for name, value in (("n_gpus", n_gpus), ("world_size", world_size)):
            if value is not None and integer(name, value) < 1:
                raise InvalidArgument(f"{name} is {value}, but must be at least 1")
        if start_method not in ("fork", "spawn"):
            raise InvalidArgument(f"start_method is {start_method!r}, but must be 'fork' or 'spawn'")
        if integer("rank_start", rank_start) < 0 or rank_start > 0 and world_size is None:
            raise InvalidArgument(f"rank_start is {rank_start}, and world_size {world_size}: the "
                                  "ranks of several launchers are counted from 0 to world_size - 1")
        self.function = function
        self._options = (n_gpus, world_size, rank_start, master_ip, port, timeout, start_method)
        functools.update_wrapper(self, function)

    def __reduce__(self) -> Any:
        """A decorated function is found by its name, which now is this object's."""
        module, name = self.function.__module__, self.function.__qualname__
        try:
            if _named(module, name) is self:
                return _named, (module, name)
        except (ImportError, AttributeError):  # as in other functions
            pass
        return Launched, (self.function, *self._options)

    def __call__(self, *args: Any, **kwargs: Any) -> List[Any]:
        """What the function returned on the ranks, in their order."""
        if _world.is_started():
            return self._call_here(args, kwargs)
        n_gpus, world_size, first, master_ip, port, timeout, start_method = self._options
        here = _default_ranks() if n_gpus is None else n_gpus
        size = here if world_size is None else world_size
        if first + here > size:
            raise InvalidArgument(f"world_size is {size}, but rank_start is {first} and n_gpus "
                                  f"{here}: the last rank here would be {first + here - 1}")
        torch = sys.modules.get("torch")
        if start_method == "fork" and torch is not None and torch.cuda.is_initialized():
            raise InvalidArgument(
                "start_method is 'fork', but this process has used a GPU, which forked ones then "
                "cannot: use GPUs in the function alone, or pass start_method='spawn'")
        ticket = (_core.NcclIdHolder() if size == here
                  else _world.ticket_of(master_ip, port, size))
        context = multiprocessing.get_context(start_method)
        ranks: List[_Child] = []
        try:
            for number in range(first, first + here):
                ours, theirs = context.Pipe(duplex=False)
                place = Place(number, size, here, ticket, timeout, os.getpid(),
                              start_method == "fork")
                process = context.Process(  # type: ignore[attr-defined]
                    target=_rank.run_rank, args=(self, place, theirs, args, kwargs),
                    name=f"rank {number}")
                process.start()
                theirs.close()
                ranks.append(_Child(number, process, ours))
            return _results_of(ranks, 300.0 if timeout is None else timeout)
        finally:
            _stop(ranks)

    def _call_here(self, args: Any, kwargs: Any) -> List[Any]:
        """On a rank that has been started already: the function in this process."""
        world = _world.join()
        self._check(world)
        try:
            value = _rank.call(self.function, args, kwargs)
            mine = numpy.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), numpy.uint8)
        except BaseException as error:  # the other ranks hear of it, and so does the caller
            world.communicator.__exit__(type(error), error, error.__traceback__)
            raise
        lengths = numpy.empty(world.size, numpy.int64)
        world.communicator.all_gather(numpy.array([mine.size]), lengths)
        data = numpy.empty(int(lengths.sum()), numpy.uint8)
        world.communicator.all_gather(mine, data, lengths.tolist())
        ends = numpy.cumsum(lengths).tolist()
        return [pickle.loads(data[end - length : end].tobytes())
                for end, length in zip(ends, lengths.tolist())]

    def _check(self, world: _world.World) -> None:
        """Refuses to run on another number of ranks than was asked for."""
        n_gpus, world_size, first = self._options[:3]
        communicator = world.communicator
        found = communicator.global_rank - communicator.local_rank
        for name, asked, there in (("world_size", world_size, world.size),
                                   ("n_gpus", n_gpus, communicator.local_size),
                                   ("rank_start", first or None, found)):
            if asked is not None and asked != there:
                raise InvalidArgument(f"{name} is {asked}, but the launcher that started this "
                                      f"process says {there}: leave it out, or start as many")


_Decorator = Callable[[Callable[..., Any]], Launched]


@overload
def launcher(
    func: Callable[..., Any],
    n_gpus: Optional[int] = None,
    world_size: Optional[int] = None,
    rank_start: int = 0,
    master_ip: str = "localhost",
    port: int = 0,
    device_type: Optional[str] = None,
    backend: Optional[str] = None,
    *,
    timeout: Optional[float] = None,
    start_method: StartMethod = "fork",
) -> Launched: ...


@overload
def launcher(
    func: None = None,
    n_gpus: Optional[int] = None,
    world_size: Optional[int] = None,
    rank_start: int = 0,
    master_ip: str = "localhost",
    port: int = 0,
    device_type: Optional[str] = None,
    backend: Optional[str] = None,
    *,
    timeout: Optional[float] = None,
    start_method: StartMethod = "fork",
) -> _Decorator: ...


def launcher(
    func: Optional[Callable[..., Any]] = None,
    n_gpus: Optional[int] = None,
    world_size: Optional[int] = None,
    rank_start: int = 0,
    master_ip: str = "localhost",
    port: int = 0,
    device_type: Optional[str] = None,
    backend: Optional[str] = None,
    *,
    timeout: Optional[float] = None,
    start_method: StartMethod = "fork",
) -> Union[Launched, _Decorator]:
    """Makes a function run on several ranks: a process each, which have joined each other.

        @launcher
        def main(): ...                             # main() returns a list, in the order of ranks
        launcher(main, n_gpus=2)(arguments)         # or without a decorator

    Called, the function gets the same arguments on all ranks. What it returns is pickled. As soon
    as it raises an exception on one, or one dies, the others are ended (SIGTERM, SIGKILL after half
    a second), and RankFailed says which it was, with its traceback. No rank outlives the process
    that has called it, however that ends.

    Where tutti run or mpiexec has started this process, no other is: the function runs in this
    one, as a rank of those, whose numbers n_gpus, world_size and rank_start must be, if they are
    given. It then returns on all ranks what it returned on each; an exception goes on as it is.

    n_gpus: how many ranks this call starts; as many as there are GPUs, or else cores.
    world_size, rank_start: of several calls (in several programs), how many ranks these have
        together, and the first one of this call. On one machine they meet by the same `port`;
        master_ip is then an address of it. On several machines: see above.
    device_type, backend: MegEngine's, not to be given; see override_backend().
    timeout: seconds that any wait for another rank may last; TUTTI_TIMEOUT, or else 300. How long
        the function runs is not limited.
    start_method: "fork", or "spawn", with which the function must be found by its name in a module
        that can be imported, and arguments are pickled. Use GPUs in the function alone with "fork".
    OMP_NUM_THREADS, unless it is set, becomes the number of cores over that of the ranks. Where a
        process has imported PyTorch, that uses one thread in the ranks forked from it, since
        OpenMP does not survive a fork; "spawn" ones, and those that import it themselves, have more.
    """
    _world.check_choices(device_type, backend)
    if func is None:
        return lambda function: Launched(function, n_gpus, world_size, rank_start, master_ip, port,
                                         timeout, start_method)
    return Launched(func, n_gpus, world_size, rank_start, master_ip, port, timeout, start_method)
