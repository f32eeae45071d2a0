"""What samplers share: an order of the samples is dealt to the ranks, and resumed to the sample."""

from __future__ import annotations

import abc
import os
from typing import Any, Dict, Iterator, Literal, NamedTuple, Optional, Sized, Tuple

import numpy
import numpy.typing as npt

from tutti import _core, distributed
from tutti._checks import whole
from tutti.errors import InvalidArgument

Indices = npt.NDArray[numpy.int64]
Pad = Literal["wrap", "drop", "none"]

_PADS = ("wrap", "drop", "none")


class Place(NamedTuple):
    """How far an iteration has come: `position` counts the samples of the epoch that all ranks
    together have read."""

    epoch: int
    position: int


END: Any = object()


class Step(NamedTuple):
    """A batch, or END at the end of the epoch, and where the iteration stands after it."""

    batch: Any
    place: Place


class Sampler(abc.ABC):
    """The batches of one rank, epoch after epoch: what a DataLoader reads from.

    Iterating gives the batches of one epoch as lists of indices, so a sampler is what PyTorch's
    DataLoader takes as `batch_sampler`; with batch_size=None it gives single indices, and is what
    that takes as `sampler`. Each iteration begins `epoch` anew, but for the first after
    load_state_dict(), which goes on. An epoch that was read to its end is followed by the next; who
    leaves one early repeats it, or sets `epoch`.
    """

    def __init__(self, batch_size: Optional[int], world_size: int, rank: int) -> None:
        self.batch_size, self.world_size, self.rank = batch_size, world_size, rank
        self._place = Place(0, 0)
        self._resumes = False

    @property
    def epoch(self) -> int:
        """The epoch that is being read, or is next. To set it is to begin that one."""
        return self._place.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._place = Place(whole("epoch", epoch, 0), 0)
        self._resumes = False

    def set_epoch(self, epoch: int) -> None:
        """Sets `epoch`; PyTorch's DistributedSampler has it by this name."""
        self.epoch = epoch

    @abc.abstractmethod
    def walk(self, begin: Optional[Place] = None) -> Iterator[Step]:
        """The steps of one epoch from `begin`, by default from where an iteration begins, for who
        reads ahead: it says by arrive() how far the steps have been used."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of batches of an epoch."""

    def _begin(self) -> Place:
        """Where an iteration begins that begins now."""
        begin = self._place if self._resumes else Place(self._place.epoch, 0)
        self._resumes = False
        return begin

    def arrive(self, place: Place) -> None:
        """What was read up to `place` has been used."""
        self._place = place

    def __iter__(self) -> Iterator[Any]:
        for step in self.walk():
            self.arrive(step.place)
            if step.batch is not END:
                yield step.batch

    @abc.abstractmethod
    def state_dict(self, used: Optional[int] = None) -> Dict[str, Any]:
        """Where this sampler stands, as numbers and strings.

        used: how many samples of the epoch this rank has used, where somebody who reads ahead, such
        as PyTorch's DataLoader with workers, has read more. tutti's DataLoader needs none. Ranks
        that have used equally many have the same state.
        """

    @abc.abstractmethod
    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes on from a state_dict(), on any number of ranks.

        The next iteration gives the rest of that epoch; seed and order are those of the state.
        Raises InvalidArgument, and changes nothing, if the state is of another kind of sampler or
        of other samples.
        """


class MapSampler(Sampler):
    """A sampler of a dataset with a length: an order of all samples, dealt to the ranks in turns.

    dataset: whatever has a length. batch_size: samples of a batch, or None for single indices.
    drop_last: leaves out the last batch if it is not full. num_samples: samples of an epoch over
    all ranks. world_size, rank: by default those of tutti.distributed, where a process that a
    launcher has started joins the others, if it had not, and one that none has started is alone;
    where tutti run has started servers, too, those of the workers, who alone read then.
    seed: by default 0, so ranks agree without a word. pad: what is done where the ranks do not
    divide the samples: "wrap" gives some of the first a second time, "drop" leaves out some of the
    last, "none" gives some ranks one sample less than others, so that every sample comes once, as
    is right for evaluations. Local, apart from joining.

    Raises TypeError for what is of a wrong kind, InvalidArgument for what is out of range, and if a
    rank would have no batch.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: Optional[int] = 1,
        drop_last: bool = False,
        num_samples: Optional[int] = None,
        world_size: Optional[int] = None,
        rank: Optional[int] = None,
        seed: Optional[int] = None,
        *,
        pad: Pad = "wrap",
    ) -> None:
        if batch_size is not None:
            batch_size = whole("batch_size", batch_size, 1)
        super().__init__(batch_size, *_checked_world(world_size, rank))
        self.dataset = dataset
        if not isinstance(drop_last, bool):
            raise InvalidArgument(f"drop_last is {drop_last!r}, but must be True or False")
        self.drop_last = drop_last
        if pad not in _PADS:
            raise InvalidArgument(f"pad is {pad!r}, but must be one of {', '.join(_PADS)}")
        self.pad = pad
        if len(dataset) == 0:
            raise InvalidArgument("the dataset has no samples")
        if num_samples is None:
            num_samples = len(dataset)
        self.num_samples = whole("num_samples", num_samples, 1)
        self.seed = 0 if seed is None else whole("seed", seed, 0)
        if self._batches(rank=0) == 0:
            raise InvalidArgument(
                f"batch_size is {batch_size}, drop_last {drop_last} and pad {pad!r}, with which "
                f"{self.world_size} ranks have no batch of {self.num_samples} samples"
            )

    @abc.abstractmethod
    def sample(self, epoch: int) -> Indices:
        """The samples of an epoch over all ranks, in their order [num_samples]: the same on every
        rank."""

    def _generator(self, epoch: int) -> numpy.random.RandomState:
        """For the draws of an epoch. RandomState, whose numbers NumPy has frozen: ranks with
        different NumPys draw the same."""
        words = [*divmod(self.seed, 1 << 32)[::-1], *divmod(epoch, 1 << 32)[::-1]]
        return numpy.random.RandomState(words)

    def _share_length(self, left: int, rank: int) -> int:
        """How many of `left` samples are a rank's."""
        if self.pad == "drop":
            return left // self.world_size
        if self.pad == "none":
            return (left - rank + self.world_size - 1) // self.world_size
        return -(-left // self.world_size)

    def share(self, epoch: int, position: int = 0) -> Indices:
        """This rank's samples of an epoch, in their order, without those before `position`."""
        order = self.sample(epoch)
        count = self._share_length(max(0, len(order) - position), self.rank)
        places = position + self.rank + self.world_size * numpy.arange(count)
        share: Indices = order[places % len(order)]
        return share

    def walk(self, begin: Optional[Place] = None) -> Iterator[Step]:
        """The steps of one epoch."""
        epoch, start = begin or self._begin()
        share = self.share(epoch, start)
        size = self.batch_size or 1
        for first in range(0, len(share), size):
            batch = share[first : first + size].tolist()
            if len(batch) < size and self.drop_last:
                break
            position = start + (first + len(batch)) * self.world_size
            yield Step(batch[0] if self.batch_size is None else batch, Place(epoch, position))
        yield Step(END, Place(epoch + 1, 0))

    def _batches(self, rank: int) -> int:
        """The number of batches of a rank in a whole epoch."""
        count, size = self._share_length(self.num_samples, rank), self.batch_size or 1
        return count // size if self.drop_last else -(-count // size)

    def __len__(self) -> int:
        return self._batches(self.rank)

    def _samples(self) -> Dict[str, Any]:
        """What the orders of epochs are made of, apart from the seed."""
        return {"sampler": type(self).__name__, "num_samples": self.num_samples}

    def state_dict(self, used: Optional[int] = None) -> Dict[str, Any]:
        """Where this sampler stands: its epoch, and how many samples of it were read."""
        epoch, position = self._place
        if used is not None:
            position = whole("used", used, 0) * self.world_size
        return {**self._samples(), "seed": self.seed, "epoch": epoch, "position": position}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes on from a state_dict()."""
        for name, mine in self._samples().items():
            if state.get(name) != mine:
                raise InvalidArgument(
                    f"the state is of {name} {state.get(name)!r}, but this sampler's is {mine!r}"
                )
        try:
            seed, epoch, position = (
                whole(f"the state's {name}", state.get(name), 0)
                for name in ("seed", "epoch", "position")
            )
        except TypeError as error:  # a state of something else
            raise InvalidArgument(str(error)) from None
        self.seed = seed
        self._place = Place(epoch, position)
        self._resumes = True


def _own_place() -> Tuple[int, int]:
    """The number of ranks that read data, and this one's among them: in a job of tutti run that has
    servers those are the workers, which need not join the others for that."""
    role = os.environ.get("TUTTI_ROLE")
    if _core.launched_by() != "tutti run" or role is None:
        return distributed.get_world_size(), distributed.get_rank()
    names = ("PADDLE_TRAINERS_NUM", "TUTTI_ROLE_INDEX", "TUTTI_WORLD_SIZE")
    try:
        workers, index, ranks = (int(os.environ[name]) for name in names)
    except (KeyError, ValueError):
        raise InvalidArgument(f"TUTTI_ROLE is {role!r}, but {', '.join(names)} are not all numbers: "
                              "give world_size and rank") from None
    if workers == ranks:
        return distributed.get_world_size(), distributed.get_rank()
    if role != "worker":
        raise InvalidArgument(f"TUTTI_ROLE is {role!r}: only workers read data by themselves; here "
                              "give world_size and rank")
    return workers, index


def _checked_world(world_size: Optional[int], rank: Optional[int]) -> Tuple[int, int]:
    if world_size is None and rank is None:
        return _own_place()
    if world_size is None or rank is None:
        missing = "world_size" if world_size is None else "rank"
        raise InvalidArgument(f"{missing} is missing: give both world_size and rank, or neither")
    world_size, rank = whole("world_size", world_size, 1), whole("rank", rank, 0)
    if rank >= world_size:
        raise InvalidArgument(f"rank is {rank}, but the ranks are 0 to {world_size - 1}")
    return world_size, rank
