"""Checkpoints: what a training needs to go on as if it had never stopped, in one .npz file.

The shuffling is a function of seed and epoch, so these stand for all random numbers.
"""

import io

import numpy as np
from options import MOST_EPOCHS
from together import together

import tutti
from tutti import files


def _pack(state):
    """An optimiser's state as bytes, to be sent to another rank."""
    file = io.BytesIO()
    files.save_state(file, state)
    return np.frombuffer(file.getvalue(), np.uint8)


def _gather(comm, mine):
    """The bytes of every rank."""
    sizes = np.empty(comm.world_size, np.int64)
    comm.all_gather(np.array([mine.size]), sizes)
    whole = np.empty(sizes.sum(), np.uint8)
    comm.all_gather(mine, whole, sizes.tolist())
    return np.split(whole, np.cumsum(sizes)[:-1])


def check_path(path, comm):
    """Ends the program on all ranks if save() would fail for certain: better now than then."""
    together(comm, lambda: comm.global_rank == 0 and files.OutputFile(path).close())


def _replace(path, arrays):
    with files.OutputFile(path) as output:
        files.save_arrays(output.file, arrays)
        output.commit()


def save(path, seed, epochs_done, model, sgd):
    """Replaces `path`: after a crash at any moment it is the old checkpoint or the new one.
    Collective; rank 0 writes."""
    state = sgd.state()
    packed = [_pack(state)]
    if "dist.rank" in state["numbers"]:  # otherwise all ranks remember the same
        packed = _gather(sgd.communicator, packed[0])
    if sgd.global_rank == 0:
        arrays = {f"parameter:{name}": array for name, array in model.parameters()}
        arrays.update({f"state:{rank}": state for rank, state in enumerate(packed)})
        arrays.update(seed=np.uint64(seed), epochs_done=np.int64(epochs_done))
    together(sgd.communicator, lambda: sgd.global_rank == 0 and _replace(path, arrays))


def _expect(path, arrays, key, like):
    """Entry `key`, which has the type and the shape of `like`."""
    array = arrays.pop(key, None)
    if array is None or (array.dtype, array.shape) != (like.dtype, like.shape):
        found = "missing" if array is None else f"{array.dtype} of shape {array.shape}"
        raise ValueError(f"{path}: not a checkpoint of this model: '{key}' is {found}, but must be "
                         f"{like.dtype} of shape {like.shape}")
    return array


def _take(path, data, model, comm):
    """What read() returns, of the file's bytes."""
    arrays = files.load_arrays(io.BytesIO(data.tobytes()), path)
    seed = int(_expect(path, arrays, "seed", np.uint64()))
    epochs_done = int(_expect(path, arrays, "epochs_done", np.int64()))
    if not 0 <= epochs_done <= MOST_EPOCHS:
        raise ValueError(f"{path}: epochs_done is {epochs_done}, but must be from 0 to "
                         f"{MOST_EPOCHS}")
    values = [_expect(path, arrays, f"parameter:{name}", array)
              for name, array in model.parameters()]
    ranks = sum(key.startswith("state:") for key in arrays)
    if ranks not in (1, comm.world_size):
        raise ValueError(f"{path}: of {ranks} ranks, each with a state of its own, and this is a "
                         f"run of {comm.world_size}")
    packed = [arrays.pop(f"state:{rank}", None) for rank in range(ranks)]
    if arrays:
        raise ValueError(f"{path}: not a checkpoint of this model: it holds '{min(arrays)}'")
    rank = comm.global_rank if ranks > 1 else 0
    state = files.load_state(io.BytesIO(packed[rank].tobytes()), path)
    for (_, array), value in zip(model.parameters(), values):
        array[...] = value
    return seed, epochs_done, state


def read(path, model, comm):
    """Sets the model's parameters; the seed, the epochs done, and this rank's state for
    DistOpt.load_state(). Collective; rank 0 reads, since others may be on other machines."""
    reads = comm.global_rank == 0
    data = together(comm, lambda: np.fromfile(path, np.uint8) if reads else None)
    size = np.array([data.size if reads else 0])
    comm.broadcast(size)
    if not reads:
        data = np.empty(size[0], np.uint8)
    comm.broadcast(data)
    return together(comm, lambda: _take(path, data, model, comm))


def load(path, state, sgd):
    """Hands the optimiser what read() returned. Local."""
    try:
        sgd.load_state(state)
    except tutti.InvalidArgument as error:
        raise ValueError(f"{path}: {error}") from error
