"""Samples become a batch: arrays of one more dimension, in the samples' structure."""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, Sequence, Tuple

import numpy
import numpy.typing as npt

from tutti.errors import InvalidArgument

# Makes the arrays of a batch, like numpy.empty.
Empty = Callable[[Tuple[int, ...], "numpy.dtype[Any]"], npt.NDArray[Any]]


def collate(samples: Sequence[Any], empty: Empty = numpy.empty) -> Any:
    """The batch of samples that are alike.

    Arrays, and whatever NumPy takes for one, such as PyTorch's tensors in CPU memory, are stacked:
    [batch, ...], of their dtype. Numbers make an array [batch]: int64 of int, float64 of float.
    Text and bytes make a list. Tuples, lists and dicts are collated by their elements. empty: makes
    the arrays. Raises InvalidArgument for samples that are not alike, or of other types.
    """
    first = samples[0]
    if isinstance(first, (str, bytes)):
        return list(samples)
    if isinstance(first, Mapping):
        _check([frozenset(sample) for sample in samples], "keys")
        return {key: collate([sample[key] for sample in samples], empty) for key in first}
    if isinstance(first, (tuple, list)):
        _check([len(sample) for sample in samples], "length")
        return like(first, [collate(part, empty) for part in zip(*samples)])
    if isinstance(first, (bool, int, float, complex, numpy.generic)):
        return _numbers(samples, empty)
    return _stacked([numpy.asarray(sample) for sample in samples], empty)


def like(sequence: Any, elements: List[Any]) -> Any:
    """Elements as a list, tuple or named tuple like `sequence`."""
    if hasattr(sequence, "_fields"):
        return type(sequence)(*elements)
    return type(sequence)(elements)


def map_leaves(batch: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """The batch with function(leaf) for everything of exactly this kind in its tuples, lists and
    dicts."""
    if type(batch) is kind:
        return function(batch)
    if isinstance(batch, (tuple, list)):
        return like(batch, [map_leaves(part, kind, function) for part in batch])
    if isinstance(batch, dict):
        return {key: map_leaves(part, kind, function) for key, part in batch.items()}
    return batch


def _check(of_samples: Sequence[Any], what: str) -> None:
    """Refuses samples that differ in `what`."""
    first = of_samples[0]
    for number, other in enumerate(of_samples):
        if other != first:
            raise InvalidArgument(
                f"sample {number} of the batch has the {what} {other}, the first one {first}"
            )


def _refuse(kind: type) -> None:
    raise InvalidArgument(f"samples of type {kind.__name__} need a collator of yours")


def _numbers(samples: Sequence[Any], empty: Empty) -> npt.NDArray[Any]:
    kinds = [type(sample) for sample in samples]
    if len(set(kinds)) > 1:
        _check(kinds, "type")
    numbers = numpy.array(samples)
    if numbers.dtype.hasobject:
        _refuse(kinds[0])
    out = empty(numbers.shape, numbers.dtype)
    out[...] = numbers
    return out


def _stacked(arrays: Sequence[npt.NDArray[Any]], empty: Empty) -> npt.NDArray[Any]:
    first = arrays[0]
    shape, dtype = first.shape, first.dtype
    if dtype.hasobject:
        _refuse(type(first.flat[0]) if first.size else object)
    for array in arrays:
        if array.shape != shape or array.dtype is not dtype and array.dtype != dtype:
            _check([f"{other.dtype} {list(other.shape)}" for other in arrays], "type and shape")
    out = empty((len(arrays), *shape), dtype)
    if shape:  # faster than numpy.stack()
        numpy.concatenate(arrays, out=out.reshape(len(arrays) * shape[0], *shape[1:]))
    else:
        out[...] = arrays
    return out
