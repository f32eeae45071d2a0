"""Checkpoints: what a training needs to go on as if it had never stopped, in one .npz file.

The shuffling is a function of seed and epoch, so these stand for all random numbers.
"""

import io
import os
import zipfile
import zlib

import numpy as np
from together import together


def _pack(state):
    """An optimiser's state as bytes, to be sent to another rank."""
    file = io.BytesIO()
    np.savez(file, **{f"array:{name}": array for name, array in state["arrays"].items()},
             **{f"number:{name}": number for name, number in state["numbers"].items()})
    return np.frombuffer(file.getvalue(), np.uint8)


def _unpack(packed):
    state = {"arrays": {}, "numbers": {}}
    with np.load(io.BytesIO(packed.tobytes())) as entries:
        for key in entries.files:
            kind, _, name = key.partition(":")
            state[f"{kind}s"][name] = entries[key] if kind == "array" else float(entries[key])
    return state


def _gather(comm, mine):
    """The bytes of every rank."""
    sizes = np.empty(comm.world_size, np.int64)
    comm.all_gather(np.array([mine.size]), sizes)
    whole = np.empty(sizes.sum(), np.uint8)
    comm.all_gather(mine, whole, sizes.tolist())
    return np.split(whole, np.cumsum(sizes)[:-1])


def _replace(path, entries):
    with open(f"{path}.part", "wb") as file:
        np.savez(file, **entries)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.part", path)


def save(path, seed, epochs_done, model, sgd):
    """Replaces `path`: after a crash at any moment it is the old checkpoint or the new one.
    Collective; rank 0 writes."""
    state = sgd.state()
    packed = [_pack(state)]
    if "dist.rank" in state["numbers"]:  # otherwise all ranks remember the same
        packed = _gather(sgd.communicator, packed[0])
    if sgd.global_rank == 0:
        entries = {f"parameter:{name}": array for name, array in model.parameters()}
        entries.update({f"state:{rank}": state for rank, state in enumerate(packed)})
        entries.update(seed=np.uint64(seed), epochs_done=epochs_done)
    together(sgd.communicator, lambda: sgd.global_rank == 0 and _replace(path, entries))


def _take(path, data, model, comm):
    """What read() returns, of the file's bytes."""
    try:
        with np.load(io.BytesIO(data.tobytes())) as entries:
            for name, array in model.parameters():
                array[...] = entries[f"parameter:{name}"]
            seed, epochs_done = int(entries["seed"]), int(entries["epochs_done"])
            states = [entries[key] for key in entries.files if key.startswith("state:")]
        fits = len(states) in (1, comm.world_size)
        state = _unpack(states[0 if len(states) == 1 else comm.global_rank]) if fits else None
    except (KeyError, TypeError, ValueError, OSError, EOFError, zipfile.BadZipFile,
            zlib.error) as error:
        raise ValueError(f"{path}: not a checkpoint of this model: {error}") from error
    if not fits:
        raise ValueError(f"{path}: of {len(states)} ranks, each with a state of its own, and this "
                         f"is a run of {comm.world_size}")
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
