"""Memory for gradients that travel: that which the ranks of a host share, where there is enough."""

# mypy: disable-error-code="misc,import"

from __future__ import annotations

import functools
import os
from typing import Any, List, Optional

import numpy
import torch

from tutti.errors import SystemError
from tutti.torch._compiled import c10d
from tutti.torch._lane import Lane
from tutti.torch._tensors import KNOWN
from tutti.torch._work import start

_NO_BACKWARD = -1
_DISABLES = "DDP_DISABLE_COMM_MEM"  # PyTorch's own; "1" where it is not set

def symmetric(communicator: Any, count: int, dtype: torch.dtype,
              device: torch.device) -> torch.Tensor:
    """`count` elements in symmetric memory, where nothing is copied for a sum, or in a rank's own if
    there is not so much. Collective."""
    if dtype in KNOWN:
        try:
            array = communicator.empty(count, dtype, device=str(device))
            return torch.from_numpy(array) if isinstance(array, numpy.ndarray) else (
                torch.from_dlpack(array))
        except SystemError:
            pass  # /dev/shm has not so much, say
    return torch.empty(count, dtype=dtype, device=device)


def _in_order(communicator: Any, lane: Lane, count: int, dtype: torch.dtype) -> torch.Tensor:
    if torch._C._current_graph_task_id() != _NO_BACKWARD:  # where ranks come in orders of their own
        return torch.empty(count, dtype=dtype, device="cpu")
    made: List[torch.Tensor] = []
    start(lane, [], lambda: made.append(
        symmetric(communicator, count, dtype, torch.device("cpu")))).wait()
    return made[0]


def for_buckets(communicator: Any, lane: Lane) -> Optional[Any]:
    """What DistributedDataParallel gets its buckets' memory from, in allocations that are collective
    and that `lane` runs in the order of the calls: a Backend of PyTorch's. None where it is not
    compiled, or not wanted, on one of the ranks. Collective."""
    if c10d is not None and not torch.cuda.is_available():  # NCCL, too, would heed it
        os.environ.setdefault(_DISABLES, "0")
    has = numpy.array([c10d is not None and os.environ.get(_DISABLES, "1") != "1"])
    communicator.all_reduce(has, op="land")
    if not has[0]:
        return None
    assert c10d is not None
    return c10d.BucketMemory(communicator.global_rank, communicator.world_size,
                             functools.partial(_in_order, communicator, lane))
