"""The process of a DataLoader's worker: makes batches until it is told to stop or left alone."""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
import select
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any, Callable, Deque, Iterator, List, NamedTuple, Optional, Tuple

import numpy

from tutti.data import _channel
from tutti.data._blocks import BlockWriter
from tutti.data._random import seed_all
from tutti.data.collate import Empty, collate
from tutti.data.dataset import Samples
from tutti.distributed import _world

_LOOK = 0.5  # seconds between looks whether the parent is still there


class Recipe(NamedTuple):
    """How a batch is made of indices."""

    dataset: Samples
    transform: Optional[Callable[[Any], Any]]
    collator: Optional[Callable[[List[Any]], Any]]

    def make(self, indices: List[int], empty: Empty = numpy.empty) -> Any:
        """A batch. empty: makes its arrays, where there is no collator."""
        samples = [self.dataset[index] for index in indices]
        if self.transform is not None:
            samples = [self.transform(sample) for sample in samples]
        if self.collator is not None:
            return self.collator(samples)
        return collate(samples, empty)


class Task(NamedTuple):
    """A batch to make, and the blocks that are free again."""

    number: int
    indices: List[int]
    seed: int
    returned: List[int]


class Failure(NamedTuple):
    """What was raised instead of a batch."""

    traceback: str
    error: Optional[bytes]  # pickled


def run(connection: Connection, parent: int, recipe: Recipe,
        place: Optional[Tuple[int, int]]) -> None:
    """Makes a batch of every Task until None comes. place: of the rank that wants them."""
    _world.help_rank(place)
    # Ctrl-C is the parent's to hear; other handlers of its are not for this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)  # a fork has none of its threads, but would wait for them
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent has gone
        _make_batches(connection, recipe)


def _make_batches(connection: Connection, recipe: Recipe) -> None:
    blocks = BlockWriter()
    for task in _tasks(connection):
        blocks.begin(task.returned)
        try:
            seed_all(task.seed)
            blocks.send(connection, task.number, recipe.make(task.indices, blocks.empty))
        except (BrokenPipeError, ConnectionResetError):
            raise
        except BaseException as error:  # SystemExit, too, ends the iteration
            _channel.send(connection, (task.number, _failure(error)))


def _tasks(connection: Connection) -> Iterator[Task]:
    """The tasks in their order. Ends at None, even if there are tasks before it."""
    inbox: Deque[Task] = collections.deque()
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    while True:
        while not inbox or poller.poll(0):
            try:
                task = _channel.receive(connection)
            except EOFError:
                return
            if task is None:
                return
            inbox.append(task)
        yield inbox.popleft()


def _failure(error: BaseException) -> Failure:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        return Failure(text, pickle.dumps(error))
    except Exception:  # whatever the error's own attributes lead to
        return Failure(text, None)


def _end_with(parent: int) -> None:
    """Ends this process soon after its parent, of whose end a socket may tell nothing: other
    children that it forked have that open as well."""
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(1)
