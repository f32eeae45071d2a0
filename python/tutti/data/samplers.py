"""The samplers: in order, shuffled, drawn with replacement, and epoch after epoch."""

from __future__ import annotations

import sys
import zlib
from typing import Any, Dict, Iterator, Optional, Sequence, Sized, Union

import numpy
import numpy.typing as npt

from tutti._checks import check_kind, sized
from tutti.data.sampler import END, Indices, MapSampler, Pad, Place, Sampler, Step
from tutti.errors import InvalidArgument


class _Subset(MapSampler):
    """A sampler of given samples of a dataset, or of all."""

    def __init__(
        self,
        dataset: Sized,
        batch_size: Optional[int],
        drop_last: bool,
        indices: Optional[Union[Sequence[int], Indices]],
        world_size: Optional[int],
        rank: Optional[int],
        seed: Optional[int],
        pad: Pad,
    ) -> None:
        sized("dataset", dataset)
        self.indices: Optional[Indices] = None
        if indices is not None:
            self.indices = _checked_indices(indices, len(dataset))
        count = len(dataset) if self.indices is None else len(self.indices)
        super().__init__(dataset, batch_size, drop_last, count, world_size, rank, seed, pad=pad)

    def _all(self) -> Indices:
        return numpy.arange(self.num_samples) if self.indices is None else self.indices

    def _samples(self) -> Dict[str, Any]:
        checksum = 0 if self.indices is None else zlib.crc32(self.indices.tobytes())
        return {**super()._samples(), "indices": checksum}


def _checked_indices(indices: Union[Sequence[int], Indices], length: int) -> Indices:
    given = numpy.asarray(indices)
    if given.ndim != 1 or given.dtype.kind not in "iu" or not len(given):
        raise InvalidArgument(f"indices is {indices!r:.80}, but must be a list of whole numbers")
    if given.min() < 0 or given.max() >= length:
        raise InvalidArgument(f"indices reaches from {given.min()} to {given.max()}, but the "
                              f"dataset has the samples 0 to {length - 1}")
    return given.astype(numpy.int64)


class SequentialSampler(_Subset):
    """The samples in their order; with `indices` those alone, in the order given.

    Arguments as those of MapSampler. Every sample comes once an epoch, over all ranks, apart from
    what `pad` and `drop_last` say.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: Optional[int] = 1,
        drop_last: bool = False,
        indices: Optional[Union[Sequence[int], Indices]] = None,
        world_size: Optional[int] = None,
        rank: Optional[int] = None,
        *,
        pad: Pad = "wrap",
    ) -> None:
        super().__init__(dataset, batch_size, drop_last, indices, world_size, rank, None, pad)

    def sample(self, epoch: int) -> Indices:
        """The samples of an epoch over all ranks."""
        return self._all()


class RandomSampler(_Subset):
    """The samples in an order drawn anew for each epoch from `seed`; with `indices` those alone.

    Arguments as those of MapSampler. Every sample comes once an epoch, over all ranks, apart from
    what `pad` and `drop_last` say.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: Optional[int] = 1,
        drop_last: bool = False,
        indices: Optional[Union[Sequence[int], Indices]] = None,
        world_size: Optional[int] = None,
        rank: Optional[int] = None,
        seed: Optional[int] = None,
        *,
        pad: Pad = "wrap",
    ) -> None:
        super().__init__(dataset, batch_size, drop_last, indices, world_size, rank, seed, pad)

    def sample(self, epoch: int) -> Indices:
        """The samples of an epoch over all ranks."""
        return self._generator(epoch).permutation(self._all())


class ReplacementSampler(MapSampler):
    """Samples drawn independently of each other, so that some come twice, and some not at all.

    num_samples: draws of an epoch over all ranks, by default the length of the dataset. weights:
    how likely each sample is, in any unit; by default equally. Other arguments as those of
    MapSampler.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: Optional[int] = 1,
        drop_last: bool = False,
        num_samples: Optional[int] = None,
        weights: Optional[Union[Sequence[float], npt.NDArray[Any]]] = None,
        world_size: Optional[int] = None,
        rank: Optional[int] = None,
        seed: Optional[int] = None,
        *,
        pad: Pad = "wrap",
    ) -> None:
        sized("dataset", dataset)
        super().__init__(dataset, batch_size, drop_last, num_samples, world_size, rank, seed,
                         pad=pad)
        self.weights: Optional[npt.NDArray[numpy.float64]] = None
        if weights is not None:
            try:
                given = numpy.asarray(weights, numpy.float64)
            except (TypeError, ValueError):
                raise TypeError(f"weights is {weights!r:.80}, but must be numbers") from None
            if given.shape != (len(dataset),):
                raise InvalidArgument(f"weights has the shape {given.shape}, but the dataset has "
                                      f"{len(dataset)} samples")
            if not (numpy.isfinite(given).all() and given.min() >= 0 and given.sum() > 0):
                raise InvalidArgument("weights must be finite numbers from 0, not all of them 0")
            self.weights = given / given.sum()

    def sample(self, epoch: int) -> Indices:
        """The samples of an epoch over all ranks."""
        generator, count = self._generator(epoch), len(self.dataset)
        if self.weights is None:
            return generator.randint(count, size=self.num_samples, dtype=numpy.int64)
        return generator.choice(count, self.num_samples, p=self.weights)

    def _samples(self) -> Dict[str, Any]:
        return {**super()._samples(), "dataset_length": len(self.dataset)}


class Infinite(Sampler):
    """The epochs of another sampler one after the other, without end. Its state is that one's."""

    def __init__(self, sampler: Sampler) -> None:
        check_kind("sampler", sampler, (Sampler,))
        if len(sampler) == 0:
            raise InvalidArgument("the sampler has no batches")
        super().__init__(sampler.batch_size, sampler.world_size, sampler.rank)
        self.sampler = sampler

    @property
    def epoch(self) -> int:
        """The epoch that is being read, or is next. To set it is to begin that one."""
        return self.sampler.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.sampler.epoch = epoch

    def walk(self, begin: Optional[Place] = None) -> Iterator[Step]:
        """The steps of all epochs from now on."""
        while True:
            for step in self.sampler.walk(begin):
                begin = step.place
                if step.batch is not END:
                    yield step

    def arrive(self, place: Place) -> None:
        """What was read up to `place` has been used."""
        self.sampler.arrive(place)

    def __len__(self) -> int:
        return sys.maxsize  # as much as a length can be

    def state_dict(self, used: Optional[int] = None) -> Dict[str, Any]:
        """Where the other sampler stands."""
        return self.sampler.state_dict(used)

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes on from a state_dict()."""
        self.sampler.load_state_dict(state)
