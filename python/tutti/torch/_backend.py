"""How torch.distributed makes groups of the backend "tutti", and what ends them."""

# mypy: disable-error-code="misc,import"

from __future__ import annotations

import atexit
import os
import weakref
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from tutti import _ends
from tutti.errors import InvalidArgument
from tutti.torch._group import ProcessGroupTutti
from tutti.torch._rendezvous import by_launcher, join

_groups: weakref.WeakSet[ProcessGroupTutti] = weakref.WeakSet()


def _seconds(timeout: timedelta) -> float:
    """How long an operation may wait: as PyTorch was told, or as TUTTI_TIMEOUT says where it was
    told nothing."""
    told = os.environ.get("TUTTI_TIMEOUT")
    if told and timeout == distributed_c10d.default_pg_timeout:
        try:
            return float(told)
        except ValueError:
            raise InvalidArgument(f"TUTTI_TIMEOUT is {told!r}, but must be a number of "
                                  "seconds") from None
    return timeout.total_seconds()


def _create(options: Any, _: Any) -> ProcessGroupTutti:
    members = list(options.global_ranks_in_group)
    default = distributed_c10d._world.default_pg if members else None
    world = default.communicator if isinstance(default, ProcessGroupTutti) else None
    seconds = _seconds(options.timeout)
    communicator = join(options.store, options.group_rank, options.group_size, options.timeout,
                        seconds, members, world)
    group = ProcessGroupTutti(communicator, seconds)
    _groups.add(group)
    return group


def register() -> None:
    """Makes "tutti" a backend of torch.distributed, and "tutti://" an init_method. Once."""
    if not hasattr(dist.Backend, "TUTTI"):
        dist.Backend.register_backend("tutti", _create, extended_api=True, devices=["cpu", "cuda"])
        dist.register_rendezvous_handler("tutti", by_launcher)
        atexit.register(_close_all, os.getpid())


def _close_all(process: int) -> None:
    """At the interpreter's exit: no thread may want the interpreter when that has gone. The other
    ranks are told of an exception that ends it."""
    if os.getpid() != process:
        return
    if _ends.what_ended() is not None:
        _ends.close_all(process)
    for group in list(_groups):
        group.shutdown()
