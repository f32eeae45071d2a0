"""What a training script needs around DistOpt: equal starts, shards."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Optional, Tuple, Union

import numpy
import numpy.typing as npt

from tutti import _core
from tutti._types import Array
from tutti.errors import InvalidArgument


def broadcast_parameters(
    params: Union[Mapping[str, Array], Iterable[Array]],
    communicator: Optional[_core.Communicator] = None,
    root: int = 0,
) -> None:
    """Gives every rank the parameters of rank `root`, in place.

    params: arrays in the same order on all ranks, or a mapping to them. communicator: by default
    one over the ranks that mpiexec started. Collective and blocking.
    """
    if communicator is None:
        communicator = _core.Communicator()
    for array in params.values() if isinstance(params, Mapping) else params:
        communicator.broadcast(array, root)


def data_partition(
    dataset_x: npt.NDArray[Any], dataset_y: npt.NDArray[Any], global_rank: int, world_size: int
) -> Tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """This rank's shard of samples and labels, along the first axis.

    All shards are equally long, so that all ranks have the same number of batches; where the data
    do not divide, the last shards begin anew at the front. Local.
    """
    count = len(dataset_x)
    if count == 0 or len(dataset_y) != count:
        raise InvalidArgument(f"dataset_x has {count} samples, dataset_y {len(dataset_y)}")
    if not 0 <= global_rank < world_size:
        raise InvalidArgument(
            f"global_rank is {global_rank}, but the ranks are 0 to {world_size - 1}"
        )
    size = -(-count // world_size)
    first = global_rank * size % count
    if first + size <= count:
        return dataset_x[first : first + size], dataset_y[first : first + size]
    indices = numpy.arange(first, first + size) % count
    return dataset_x[indices], dataset_y[indices]
