"""What the ranks tell each other before they do something together, so that all do it or none."""

from __future__ import annotations

import hashlib
from typing import Any, List

import numpy

from tutti import _core
from tutti.errors import MismatchError


def gather(communicator: _core.Communicator, mine: bytes) -> List[bytes]:
    """The bytes of all ranks, of which some may have none. Collective and blocking."""
    lengths = numpy.empty(communicator.world_size, numpy.int64)
    communicator.all_gather(numpy.array([len(mine)], numpy.int64), lengths)
    counts = [int(length) for length in lengths]
    everything = numpy.empty(sum(counts), numpy.uint8)
    communicator.all_gather(numpy.frombuffer(mine, numpy.uint8), everything, counts)
    ends = numpy.cumsum(counts)
    return [everything[end - count : end].tobytes() for count, end in zip(counts, ends)]


def compare(communicator: _core.Communicator, what: str, mine: List[str]) -> None:
    """MismatchError on all ranks unless all have the same list of descriptions, a line each; it shows
    the first that differs, and the communicator is as good as before. Collective and blocking."""
    digest = hashlib.blake2b("\n".join(mine).encode(), digest_size=16).digest()
    if len(set(gather(communicator, digest))) == 1:
        return
    texts = gather(communicator, "\n".join(mine).encode())
    lists = [text.decode().split("\n") if text else [] for text in texts]
    for rank, theirs in enumerate(lists):
        for i in range(max(len(theirs), len(lists[0]))):
            ours, other = (one[i] if i < len(one) else "nothing" for one in (lists[0], theirs))
            if ours != other:
                raise MismatchError(f"{what} #{i} is {ours} on rank 0, but {other} on rank {rank}")


def described(name: str, array: Any) -> str:
    """A line about an array or a tensor that is alike on ranks that may exchange it."""
    extents, dtype = ", ".join(map(str, array.shape)), array.dtype
    return f"'{name}' ({extents}) {str(dtype).replace('torch.', '')}"
