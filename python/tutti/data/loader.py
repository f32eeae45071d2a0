"""The loader: batches of a dataset, made in this process or by workers."""

from __future__ import annotations

import collections
import os
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Literal, Optional, Union, cast

from tutti._checks import function, seconds, sized, whole
from tutti.data._pool import Pool
from tutti.data._random import seed_of, seeded
from tutti.data._worker import Recipe
from tutti.data.dataset import Dataset, Samples
from tutti.data.sampler import END, Place, Sampler, Step
from tutti.data.samplers import SequentialSampler
from tutti.errors import InvalidArgument


def _default_timeout() -> float:
    text = os.environ.get("TUTTI_TIMEOUT", "300")
    try:
        value = float(text)
    except ValueError:
        raise InvalidArgument(f"TUTTI_TIMEOUT is '{text}', but must be a number of seconds") from None
    return seconds("TUTTI_TIMEOUT", value)


class DataLoader:
    """The batches of a dataset that a sampler chooses, as NumPy arrays.

    Which batches come, and what they hold, does not depend on the number of workers: they come in
    the sampler's order, and random, numpy.random and torch are seeded for each batch, from `seed`,
    the rank, the epoch and the batch's place in it.

    dataset: whatever has __getitem__, and __len__ where no sampler is given. sampler: gives lists of
    indices; PyTorch's batch samplers and lists of lists will do, but have no state; by default a
    SequentialSampler of single samples. transform: called with each sample. collator: called with
    the list of a batch's samples, makes the batch; by default collate(). num_workers: processes that
    make batches; with 0 it is done here, when a batch is asked for. timeout: seconds that a worker
    may take for a batch; by default TUTTI_TIMEOUT, or else 300. prefetch: batches that each worker
    makes ahead. seed: as said above. start_method: "fork", with which workers have all that this
    process has, or "spawn", for which dataset, transform and collator must be picklable, and the program's main
    module importable: choose that where this process has used a GPU that the dataset uses as well.

    A batch of a worker lies in shared memory that both map; nothing is copied or pickled but what
    is no array. It is the caller's, to write to or to keep; who keeps many gets copies of later
    ones.

    Raises TypeError for what is of a wrong kind, InvalidArgument for what is out of range. Iterating
    raises WorkerError, which names the worker, its samples and its traceback, if one raises, dies or
    is late; without workers what was raised comes as it is.
    """

    def __init__(
        self,
        dataset: Samples,
        sampler: Optional[Union[Sampler, Iterable[List[int]]]] = None,
        transform: Optional[Callable[[Any], Any]] = None,
        collator: Optional[Callable[[List[Any]], Any]] = None,
        num_workers: int = 0,
        timeout: Optional[float] = None,
        *,
        prefetch: int = 2,
        seed: int = 0,
        start_method: Literal["fork", "spawn"] = "fork",
    ) -> None:
        if sampler is None:
            sized("dataset", dataset)
        elif not hasattr(dataset, "__getitem__"):
            raise TypeError(f"dataset is {dataset!r}, but must give samples by their index "
                            "(__getitem__)")
        function("transform", transform)
        function("collator", collator)
        if sampler is not None and (not isinstance(sampler, Iterable) or isinstance(sampler, str)):
            raise TypeError(f"sampler is {sampler!r}, but must be a sampler, or an iterable of lists "
                            "of indices")
        self.dataset = dataset
        self.sampler = SequentialSampler(cast(Dataset, dataset)) if sampler is None else sampler
        if isinstance(sampler, Sampler) and sampler.batch_size is None:
            raise InvalidArgument("the sampler's batch_size is None: it gives no batches")
        self.transform = transform
        self.collator = collator
        self.num_workers = whole("num_workers", num_workers, 0)
        self.timeout = _default_timeout() if timeout is None else seconds("timeout", timeout)
        self.prefetch = whole("prefetch", prefetch, 1, 16)
        self.seed = whole("seed", seed, 0)
        if start_method not in ("fork", "spawn"):
            raise InvalidArgument(f"start_method is {start_method!r}, but must be fork or spawn")
        self.start_method = start_method
        self._iterations = 0  # of a sampler that counts no epochs

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        return len(self.sampler)  # type: ignore[arg-type]  # not every iterable has one

    def __iter__(self) -> Iterator[Any]:
        """The batches of an epoch, or of what is left of it after load_state_dict()."""
        for step in self.steps():
            self.arrive(step.place)
            if step.batch is not END:
                yield step.batch

    def steps(self) -> Iterator[Step]:
        """The batches with the places after them, for who reads ahead: it says by arrive() how far
        they have been used."""
        recipe = Recipe(self.dataset, self.transform, self.collator)
        if self.num_workers == 0:
            for step in self._walk():
                yield step if step.batch is END else self._made_here(recipe, step)
            return
        with Pool(recipe, self.num_workers, self.prefetch, self.timeout, self.start_method) as pool:
            yield from self._made_by(pool)

    def arrive(self, place: Place) -> None:
        """What was read up to `place` has been used."""
        if isinstance(self.sampler, Sampler):
            self.sampler.arrive(place)

    def state_dict(self) -> Dict[str, Any]:
        """Where the loader stands: after the batch that it gave last, however many are made ahead.

        Numbers and strings, the same on all ranks that have read equally far. Raises
        InvalidArgument if the sampler is none of tutti's.
        """
        return self._sampler_with_state().state_dict()

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes on from a state_dict(): the next iteration gives the rest of that epoch, with any
        number of workers and ranks. Raises InvalidArgument as Sampler.load_state_dict() does."""
        self._sampler_with_state().load_state_dict(state)

    def _sampler_with_state(self) -> Sampler:
        if not isinstance(self.sampler, Sampler):
            raise InvalidArgument(f"the sampler is a {type(self.sampler).__name__}, which has no "
                                  "state: use one of tutti.data")
        return self.sampler

    def _walk(self) -> Iterator[Step]:
        if isinstance(self.sampler, Sampler):
            return self.sampler.walk()
        self._iterations += 1
        return _counted(self.sampler, self._iterations - 1)

    def _seed(self, place: Place) -> int:
        return seed_of(self.seed, getattr(self.sampler, "rank", 0), *place)

    def _made_here(self, recipe: Recipe, step: Step) -> Step:
        with seeded(self._seed(step.place)):
            return Step(recipe.make(step.batch), step.place)

    def _made_by(self, pool: Pool) -> Iterator[Step]:
        walk = self._walk()
        ahead: Deque[Step] = collections.deque()

        def ask() -> None:
            """For as many as may be under way."""
            while len(ahead) < self.num_workers * self.prefetch:
                step = next(walk, None)
                if step is None:
                    return
                if step.batch is not END:
                    pool.ask(step.batch, self._seed(step.place))
                ahead.append(step)

        ask()
        while ahead:
            step = ahead.popleft()
            if step.batch is not END:
                step = Step(pool.take(), step.place)
                ask()
            yield step


def _counted(batches: Iterable[List[int]], iteration: int) -> Iterator[Step]:
    """The steps of a sampler that knows no places."""
    position = 0
    for batch in batches:
        if not isinstance(batch, Iterable):
            raise InvalidArgument(f"the sampler gives {batch!r}, but must give lists of indices")
        indices = list(batch)
        position += len(indices)
        yield Step(indices, Place(iteration, position))
