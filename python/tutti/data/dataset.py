"""Datasets: whatever has __getitem__ and __len__."""

from __future__ import annotations

from typing import Any, Protocol

import numpy.typing as npt

from tutti._checks import sized
from tutti.errors import InvalidArgument


class Samples(Protocol):
    """Samples by their index, which is all that a DataLoader with a sampler reads."""

    def __getitem__(self, index: int, /) -> Any: ...


class Dataset(Samples, Protocol):
    """What a DataLoader reads: samples by their index, from 0. PyTorch's map-style datasets are
    such ones, and so is a list."""

    def __len__(self) -> int: ...


class ArrayDataset:
    """Arrays of equally many samples along their first axes, such as images and labels.

    Sample i is the tuple of their i-th elements, views rather than copies; of a single array, that
    element itself. Raises InvalidArgument if the lengths differ.
    """

    def __init__(self, *arrays: npt.NDArray[Any]) -> None:
        for number, array in enumerate(arrays):
            sized(f"arrays[{number}]", array)
        lengths = [len(array) for array in arrays]
        if not arrays or len(set(lengths)) > 1:
            raise InvalidArgument(f"arrays have the lengths {lengths}, but must have one length")
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: int) -> Any:
        if len(self.arrays) == 1:
            return self.arrays[0][index]
        return tuple(array[index] for array in self.arrays)
