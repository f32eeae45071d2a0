"""Workers and servers, brought together."""

from __future__ import annotations

import dataclasses
import os
import threading
from types import TracebackType
from typing import Any, Dict, Iterable, List, Optional, Sequence, Type, Union

from tutti._core import Communicator
from tutti._core import ps as core
from tutti._log import logger
from tutti.errors import Error, InvalidArgument
from tutti.ps import _roles
from tutti._checks import check_kind, flag, items, one_of, path, seconds, whole
from tutti.ps._dense import Dense
from tutti.ps._dispatch import Slicing, choose
from tutti.ps._embedding import Embedding, Rule

Mode = Union[core.Sync, core.Async, core.HalfAsync, core.Geo]


class Fleet:
    """This process' part of a parameter server; made by ps.start().

    A context manager: at its end a worker stops, or, where an exception ends it, leaves without
    that, and counts as lost. A server of its own serves within it. Errors of all calls: PeerLost
    naming a server that has died, from the next call that needs it on.
    """

    def __init__(self, roles: _roles.Roles, fleet: core.Fleet,
                 tables: Sequence[Union[Embedding, Dense]]) -> None:
        self._roles = roles
        self._fleet = fleet
        self._tables = tables if self.is_worker else ()
        self._leaving = threading.RLock()
        self._failure: Union[Error, MemoryError, None] = None  # of the stop() of leave(), until it is raised
        self._workers: Optional[Communicator] = None
        try:
            for table in self._tables:
                table.bind(fleet)
            for table in self._tables:
                if isinstance(table, Dense):
                    table.pull()
        except BaseException as failure:
            self._close_after(failure)
            raise

    @property
    def is_worker(self) -> bool:
        """Whether this process trains."""
        return self._roles.placement.is_worker

    @property
    def is_server(self) -> bool:
        """Whether this process is a server, which is to serve(). One that is a thread of a worker
        serves by itself."""
        return self._roles.placement.is_server and not self.is_worker

    @property
    def worker_index(self) -> int:
        """Which worker this is; -1 of a server."""
        return self._roles.placement.worker_index

    @property
    def worker_num(self) -> int:
        """How many workers there are."""
        return self._roles.placement.workers

    @property
    def server_index(self) -> int:
        """Which server this process is or has; -1 if it has none."""
        return self._roles.placement.server_index

    @property
    def server_num(self) -> int:
        """How many servers there are."""
        return self._roles.placement.servers

    @property
    def server_endpoints(self) -> List[str]:
        """'host:port' of each server, as far as they have any."""
        return list(self._roles.placement.server_endpoints)

    @property
    def workers(self) -> Communicator:
        """A communicator of the workers alone, for what they do among themselves: a DistOpt of the
        dense parameters, a sum of losses. Rank i is worker i. The first use is collective over the
        workers. Unlike the parameter server it ends with the first of them that is lost."""
        if not self.is_worker:
            raise InvalidArgument("workers is a communicator of the workers, and this is a server")
        if self._workers is None:
            world, ranks = self._roles.world, self._roles.workers
            if world is None or ranks is None:
                raise InvalidArgument("processes that know each other by endpoints alone have no "
                                      "communicator: start them by tutti run on one machine, or by "
                                      "mpiexec with servers=N")
            self._workers = world.group(ranks)
        return self._workers

    def serve(self) -> None:
        """On a server: serves, and returns when all workers have stopped or are lost."""
        if not self.is_server:
            raise InvalidArgument("serve() is for servers, and this is a worker")
        self._fleet.serve()

    def step(self) -> None:
        """Ends a batch: what was pushed goes to the servers, as the mode says."""
        self._fleet.step()

    def flush(self) -> None:
        """Blocks until servers have applied all that this worker has pushed; in Geo mode an exchange
        of all of its progress, after which it has what others had pushed."""
        self._fleet.flush()

    def barrier(self) -> None:
        """A flush(); blocks until all workers that live have called it."""
        self._fleet.barrier()

    def save(self, folder: Union[str, os.PathLike[str]]) -> None:
        """Has the servers write a checkpoint, beside the training; blocks until it is there. One
        worker calls it."""
        self._fleet.save(path("folder", folder))

    def stop(self) -> None:
        """On a worker: pushes what is left, and leaves; its tables are of no use any more. Nothing
        once it has left, be it with an error."""
        if not self.is_worker:
            return
        with self._leaving:
            if not self._fleet.has_stopped:
                self._fleet.stop()
            self._unbind()

    @property
    def has_stopped(self) -> bool:
        """Whether this worker has left, be it with an error."""
        return self._fleet.has_stopped

    def leave(self) -> None:
        """stop() and close(), the latter also where the former fails. What Ctrl-C leaves of that is
        for the next call, the error of stop() as well; who comes while another thread does it waits
        for that, and is told nothing."""
        with self._leaving:
            if self._failure is None:
                try:
                    self.stop()
                except (Error, MemoryError) as failure:
                    if not self._fleet.has_stopped:
                        raise
                    self._failure = failure
            failed = self._failure
            if failed is None:
                self.close()
                return
            self._close_after(failed)
            self._failure = None
            raise failed

    def stats(self) -> Dict[str, Any]:
        """What this worker has done: steps, pushes, merged batches, rows, bytes; or this server:
        pushes, rows_updated, lost_workers, and of each of its tables rows, bytes, created, refused
        and evicted. Of a worker with a server in a thread, the latter as "server"."""
        server = self._fleet.server_stats()
        if not self.is_worker:
            return server or {}
        worker = self._fleet.worker_stats()
        return worker if server is None else {**worker, "server": server}

    def lost_workers(self) -> List[int]:
        """On a worker: those that were lost so far, as far as servers have said so, which they do
        when they answer a batch."""
        return self._fleet.lost_workers()

    def close(self) -> None:
        """Leaves without stop(): for the servers this worker is lost, unless it had stopped. Where
        a server is a thread of this process, blocks until no worker is left, and raises what has
        ended that thread before, or has kept it from writing the last checkpoint."""
        self._close(None)

    def _close(self, error: Optional[BaseException]) -> None:
        """close(), since this worker cannot go on for `error`, if there is one: servers tell that."""
        self._unbind()
        self._fleet.close(error)

    def _serves_others(self) -> bool:
        placement = self._roles.placement
        return placement.is_worker and placement.is_server and placement.workers > 1

    def _unbind(self) -> None:
        for table in self._tables:
            table.bind(None)
        self._tables = ()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        if kind is not None and error is not None and self._serves_others():
            logger.error("worker %d leaves by an exception, and its server serves until no worker "
                         "is left", self.worker_index, exc_info=(kind, error, traceback))
        if error is not None:
            self._close_after(error)
            return
        try:
            self.stop()
        except BaseException as failure:
            self._close_after(failure)
            raise
        self.close()

    def _close_after(self, error: BaseException) -> None:
        """close(), of which `error` is what the caller is told."""
        try:
            self._close(error)
        except (Error, MemoryError) as also:
            logger.error("worker %d leaves by an exception (%r), and then: %s", self.worker_index,
                         error, also)


@dataclasses.dataclass
class Job:
    """What start() is told, but for who is a worker and who a server. Raises InvalidArgument or
    TypeError naming an argument that is wrong."""

    tables: Iterable[Union[Embedding, Dense]]
    mode: Mode
    slicing: Slicing = Slicing()
    seed: int = 0
    wire: str = "float32"
    load: Union[str, os.PathLike[str], None] = None
    checkpoint: Union[str, os.PathLike[str], None] = None
    every: int = 0
    save_at_end: bool = False
    timeout: Optional[float] = None

    def __post_init__(self) -> None:
        check_kind("mode", self.mode, (core.Sync, core.Async, core.HalfAsync, core.Geo))
        check_kind("slicing", self.slicing, (Slicing,))
        self.seed = whole("seed", self.seed, 0, 2**64 - 1)
        one_of("wire", self.wire, tuple(core.WireFormat.__members__))
        self.load = None if self.load is None else path("load", self.load)
        self.checkpoint = None if self.checkpoint is None else path("checkpoint", self.checkpoint)
        self.every = whole("every", self.every, 0, 10**9)
        self.save_at_end = flag("save_at_end", self.save_at_end)
        self.timeout = None if self.timeout is None else seconds("timeout", self.timeout)
        self.tables = items("tables", self.tables, (Embedding, Dense))
        for table in self.tables:
            if table.is_bound:
                raise InvalidArgument(f"{table!r} is another fleet's, which must stop() first")

    def start(self, roles: _roles.Roles, rule: Rule = core.Sgd()) -> Fleet:
        """start() of a process whose role is known; `rule` is for tables without an optimizer."""
        placement, tables = roles.placement, list(self.tables)
        dense = [spec for table in tables if isinstance(table, Dense)
                 for spec in table.spec(rule, with_values=placement.worker_index == 0)]
        chosen = choose(self.slicing, dense, placement.servers, placement.server_endpoints)
        fleet = core.Fleet(
            placement,
            tables=[table.spec(rule) for table in tables if isinstance(table, Embedding)],
            dense=dense,
            slice_var_up=bool(self.slicing.slice_var_up),
            min_block_size=self.slicing.min_block_size,
            servers_of_blocks=list(chosen.values()),
            mode=self.mode,
            seed=self.seed,
            wire=core.WireFormat.__members__[self.wire],
            timeout=self.timeout,
            load="" if self.load is None else str(self.load),
            checkpoint="" if self.checkpoint is None else str(self.checkpoint),
            every=self.every,
            save_at_end=self.save_at_end,
        )
        return Fleet(roles, fleet, tables)


def start(
    tables: Iterable[Union[Embedding, Dense]],
    *,
    mode: Mode = core.Async(),
    servers: Union[int, str, None] = None,
    communicator: Optional[Communicator] = None,
    slicing: Slicing = Slicing(),
    seed: int = 0,
    wire: str = "float32",
    load: Union[str, os.PathLike[str], None] = None,
    checkpoint: Union[str, os.PathLike[str], None] = None,
    every: int = 0,
    save_at_end: bool = False,
    timeout: Optional[float] = None,
) -> Fleet:
    """Brings workers and servers together: collective over all of them, with the same arguments.

    tables: Embeddings and Dense parameters.
    mode: Sync(), Async(), HalfAsync() or Geo().
    servers: N, the last N ranks are servers; "host", the last rank of each host is; "thread", all
        ranks are workers and each has one in a thread; None, what the environment says: tutti run's
        roles (--server_num, --servers), or Paddle's variables of processes that were started one by
        one. With communicator, among its ranks; otherwise among those that a launcher has started.
    slicing: how dense parameters are spread over servers.
    seed: of initial values and entry rules.
    wire: how rows travel between hosts: "float32", "float16" or "bfloat16".
    load: a checkpoint to begin with. checkpoint, every, save_at_end: where servers write them, every
        how many seconds of the training, and whether when no worker is left. Servers alone look at
        these; checkpoint is refused without one of the other two.
    timeout: seconds that any wait may last; TUTTI_TIMEOUT, or else 300.

    Blocks until all are there. Raises PeerLost listing who is missing at the deadline, MismatchError
    showing both sides if they are told different things.
    """
    job = Job(tables, mode=mode, slicing=slicing, seed=seed, wire=wire, load=load,
              checkpoint=checkpoint, every=every, save_at_end=save_at_end, timeout=timeout)
    if communicator is not None:
        check_kind("communicator", communicator, (Communicator,))
    if servers is not None:
        roles = _roles.among_ranks(servers, communicator, timeout)
    elif communicator is not None:
        raise InvalidArgument("with communicator, servers is to be a number, 'host' or 'thread'")
    else:
        roles = _roles.by_environment()
    return job.start(roles)
