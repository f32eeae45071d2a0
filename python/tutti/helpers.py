"""What a training script needs around DistOpt: equal starts, shards, checkpoints."""

from __future__ import annotations

import os
from typing import Any, Dict, Iterable, Mapping, Optional, Tuple, Union

import numpy
import numpy.typing as npt

from tutti import _core
from tutti._types import Array, State
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


def save(path: Union[str, "os.PathLike[str]"], opt: _core.DistOpt) -> None:
    """Writes what the optimiser remembers (momentum and the like) to a .npz file.

    A crash at any moment leaves the old file or the new one. Local; the parameters are the model's
    to save. Raises OSError if the file cannot be written.
    """
    state = opt.state()
    entries: Dict[str, Any] = {f"array:{name}": array for name, array in state["arrays"].items()}
    entries.update({f"number:{name}": numpy.float64(n) for name, n in state["numbers"].items()})
    temporary = f"{os.fspath(path)}.{os.getpid()}.part"
    try:
        with open(temporary, "wb") as file:
            numpy.savez(file, **entries)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise


def load(path: Union[str, "os.PathLike[str]"], opt: _core.DistOpt) -> None:
    """Loads what save() wrote, after the parameters were registered. Local.

    Raises InvalidArgument, and changes nothing, if the state is not of these parameters; ValueError
    or OSError if the file is no such file.
    """
    state: State = {"arrays": {}, "numbers": {}}
    with numpy.load(path, allow_pickle=False) as entries:
        for key in entries.files:
            kind, _, name = key.partition(":")
            if kind == "array":
                state["arrays"][name] = entries[key]
            elif kind == "number":
                state["numbers"][name] = float(entries[key])
            else:
                raise ValueError(f"{os.fspath(path)}: not an optimiser's state: it holds '{key}'")
    opt.load_state(state)
