"""The workers of one iteration of a DataLoader, as its process sees them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import selectors
import signal
import socket
import struct
import time
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Dict, List, Optional, Type

from tutti.data import _channel
from tutti.data._blocks import BlockReader
from tutti.data._worker import Failure, Recipe, Task, run
from tutti.distributed import _world
from tutti.errors import WorkerError

_GRACE = 1.0  # seconds that a worker has to end by itself
_KEPT = 8  # batches that are used at a time, apart from those made ahead
_SLICE = 1.0  # seconds: who is stopped and goes on is not late by more


class _Worker:
    """A process, what it was asked for, and its blocks."""

    def __init__(self, number: int, recipe: Recipe, timeout: float, context: Any) -> None:
        self.number = number
        self.tasks: Dict[int, List[int]] = {}  # the indices of each batch under way
        self.fault: Optional[WorkerError] = None  # once it has died
        self.blocks = BlockReader()
        self.connection, theirs = context.Pipe()
        try:
            _limit_waits(self.connection, timeout)
            self.process = context.Process(target=run,
                                           args=(theirs, os.getpid(), recipe, _world.place()),
                                           name=f"tutti-data-{number}", daemon=True)
            self.process.start()
        except BaseException:
            self.connection.close()
            raise
        finally:
            theirs.close()

    def ended(self) -> str:
        """How its process has."""
        self.process.join(_GRACE)
        code = self.process.exitcode
        if code is None:
            return "closed its connection"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"


def _limit_waits(connection: Connection, seconds: float) -> None:
    """Has waits in the middle of a message fail with BlockingIOError after so long: the other side
    was stopped there."""
    limit = struct.pack("@ll", *divmod(max(1, int(seconds * 1e6)), 1_000_000))  # 0 is no limit
    with socket.socket(fileno=os.dup(connection.fileno())) as view:
        view.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        view.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


class Pool:
    """Workers that make batches, which are taken in the order in which they were asked for.

    A context manager, at whose end the processes are gone: those that do not end by themselves
    within a second are killed.
    """

    def __init__(self, recipe: Recipe, workers: int, prefetch: int, timeout: float,
                 start_method: str) -> None:
        self._timeout = timeout
        # Each block takes a descriptor here. Who keeps more batches gets copies of further ones.
        self._most_lent = workers * prefetch + _KEPT
        self._made: Dict[int, Any] = {}  # batches, and failures, by number
        self._asked = self._taken = 0
        self._workers: List[_Worker] = []
        self._selector = selectors.DefaultSelector()
        context = multiprocessing.get_context(start_method)
        try:
            for number in range(workers):
                worker = _Worker(number, recipe, timeout, context)
                self._workers.append(worker)
                self._selector.register(worker.connection, selectors.EVENT_READ, worker)
                self._selector.register(worker.process.sentinel, selectors.EVENT_READ, worker)
        except BaseException:
            self.close()
            raise

    def ask(self, indices: List[int], seed: int) -> None:
        """Has the worker with the least to do make a batch."""
        worker = min(self._workers, key=lambda worker: len(worker.tasks))
        number = self._asked
        self._asked += 1
        if worker.fault is not None:
            self._made[number] = worker.fault
            return
        worker.tasks[number] = indices
        task = Task(number, indices, seed, worker.blocks.take_returned())
        try:
            _channel.send(worker.connection, task)
        except BlockingIOError:
            raise self._late(number) from None
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has died, which comes after what it has made

    def take(self) -> Any:
        """The next batch. Blocks until it is there, or there is a WorkerError to raise."""
        number = self._taken
        self._look(0.0)
        left = self._timeout
        while number not in self._made:
            if left <= 0:
                raise self._late(number)
            start = time.monotonic()
            self._look(min(left, _SLICE))
            left -= min(time.monotonic() - start, _SLICE)
        self._taken += 1
        batch = self._made.pop(number)
        if isinstance(batch, WorkerError):
            raise batch
        return batch

    def _look(self, seconds: float) -> None:
        """Takes in what has come, or comes first, within so many seconds."""
        ready = {(key.data, key.fileobj) for key, _ in self._selector.select(seconds)}
        # A worker's last words come before its end.
        for worker in self._workers:
            if (worker, worker.connection) in ready:
                self._receive(worker)
            elif (worker, worker.process.sentinel) in ready:
                self._died(worker)

    def _receive(self, worker: _Worker) -> None:
        try:
            number, made = _channel.receive(worker.connection)
            if isinstance(made, Failure):
                made = self._failed(worker, number, made)
            else:
                lent = sum(worker.blocks.lent for worker in self._workers)
                made = worker.blocks.receive(worker.connection, made, lent >= self._most_lent)
        except BlockingIOError:
            raise self._late(next(iter(worker.tasks))) from None
        except (EOFError, ConnectionResetError):
            self._died(worker)
            return
        worker.tasks.pop(number)
        self._made[number] = made

    def _name(self, worker: _Worker) -> str:
        return f"data worker {worker.number} of {len(self._workers)} (pid {worker.process.pid})"

    def _failed(self, worker: _Worker, number: int, failure: Failure) -> WorkerError:
        """The error that take() raises instead of the batch."""
        said = (f"{self._name(worker)} failed at {_shown(worker.tasks[number])}:\n"
                f"{failure.traceback.rstrip()}")
        error = WorkerError(worker.number, said)
        if failure.error is not None:
            with contextlib.suppress(Exception):  # what raises when it is made anew is left out
                error.__cause__ = pickle.loads(failure.error)
        return error

    def _died(self, worker: _Worker) -> None:
        """What it had to make is an error, each in its turn: others' batches come before."""
        made = next(iter(worker.tasks.values()), None)
        doing = "" if made is None else f" at {_shown(made)}"
        worker.fault = WorkerError(worker.number, f"{self._name(worker)} {worker.ended()}{doing}")
        self._made.update(dict.fromkeys(worker.tasks, worker.fault))
        worker.tasks.clear()
        self._selector.unregister(worker.connection)
        self._selector.unregister(worker.process.sentinel)

    def _late(self, number: int) -> WorkerError:
        worker = next(worker for worker in self._workers if number in worker.tasks)
        return WorkerError(worker.number, f"{self._name(worker)} has not made its batch of "
                           f"{_shown(worker.tasks[number])} within {self._timeout:g} s")

    def close(self) -> None:
        """Ends the workers; who works on a batch may end it within the grace."""
        end = time.monotonic() + _GRACE
        try:
            for worker in self._workers:
                with contextlib.suppress(OSError):  # it has died, or reads nothing
                    _channel.send(worker.connection, None)
            for worker in self._workers:
                worker.process.join(max(0.0, end - time.monotonic()))
        finally:
            for worker in self._workers:
                worker.process.kill()
                worker.process.join()
                worker.process.close()
                worker.connection.close()
            self._workers.clear()
            self._selector.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()


def _shown(indices: List[int]) -> str:
    more = "" if len(indices) <= 8 else f" and {len(indices) - 8} more"
    return f"samples {', '.join(map(str, indices[:8]))}{more}"
