"""What DistOpt is told: refused by name and value before it joins, and what it joins."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from tutti._checks import check_kind, flag, number, seconds, whole
from tutti._core import Communicator, NcclIdHolder
from tutti._losses import name_of
from tutti.errors import InvalidArgument

_NUMBERS = ("clip_Value", "spars", "momentum_correction", "clip_norm")
_FLAGS = ("clipping", "corr", "missing_as_zero", "float64_as_float32", "topK")
_COUNTS = ("warm_up_epochs", "epoch_steps")
_WORDS = ("dist_option", "half")


def check_options(options: Mapping[str, Any]) -> None:
    """Raises TypeError or InvalidArgument for an option that is of another kind than it must be."""
    for name, value in options.items():
        if name in _NUMBERS:
            number(name, value)
        elif name in _FLAGS:
            flag(name, value)
        elif name in _COUNTS:
            whole(name, value, 0, 2**31 - 1)
        elif name in _WORDS:
            check_kind(name, value, (str,))


def joined(communicator: Optional[Communicator], nccl_id: Optional[NcclIdHolder],
           local_rank: Optional[int], world_size: Optional[int],
           timeout: Optional[float]) -> Communicator:
    """The ranks of a DistOpt: those of a communicator, those that hold a ticket, or a launcher's.
    The last two are waited for."""
    ticket = (nccl_id, local_rank, world_size)
    if timeout is not None:
        timeout = seconds("timeout", timeout)
    if communicator is not None:
        if not isinstance(communicator, Communicator):
            raise TypeError(f"communicator is a {name_of(communicator)}, but must be a "
                            "tutti.Communicator")
        if any(value is not None for value in (*ticket, timeout)):
            raise InvalidArgument("with communicator, nccl_id, local_rank, world_size and timeout "
                                  "must not be given")
        return communicator
    if nccl_id is None and local_rank is None and world_size is None:
        return Communicator(timeout=timeout)
    if nccl_id is None or local_rank is None or world_size is None:
        raise InvalidArgument("nccl_id, local_rank and world_size are given together, or none of them")
    check_kind("nccl_id", nccl_id, (NcclIdHolder,))
    for name, value in (("local_rank", local_rank), ("world_size", world_size)):
        whole(name, value, -2**31, 2**31 - 1)
    return Communicator(local_rank, world_size, nccl_id, timeout=timeout)
