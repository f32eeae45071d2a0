"""Who is a worker, who is a server, and what brings them together."""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Union

import numpy

from tutti import _core
from tutti._core import Communicator
from tutti._core import ps as core
from tutti.errors import InvalidArgument


class Roles(NamedTuple):
    """What this process is, and the communicator of all ranks where they have one."""

    placement: core.Placement
    world: Optional[Communicator] = None
    workers: Optional[List[int]] = None  # their ranks in it


def _among(placement: core.Placement) -> Roles:
    world = placement.world()
    if world is None:
        return Roles(placement)
    flags = numpy.zeros(world.world_size, numpy.int32)
    world.all_gather(numpy.array([placement.is_worker], numpy.int32), flags)
    return Roles(placement, world, numpy.flatnonzero(flags).tolist())


def by_environment() -> Roles:
    """The roles that tutti run gives, or those of processes that somebody starts one by one."""
    return _among(core.Placement.environment())


def among_ranks(servers: Union[int, str], world: Optional[Communicator] = None,
                timeout: Optional[float] = None) -> Roles:
    """Roles among ranks that a launcher has started, or of a communicator; a process that nothing
    has launched is a worker alone, and only with servers in threads."""
    if servers not in ("host", "thread") and (isinstance(servers, (str, bool)) or servers < 1):
        raise InvalidArgument(f"servers is {servers!r}, but must be a number above 0, 'host', "
                              "'thread', or None for what the environment says")
    if world is None:
        alone = servers == "thread" and not _core.launched_by()
        world = (Communicator(0, 1, _core.NcclIdHolder(), timeout=timeout) if alone
                 else Communicator(timeout=timeout))
    if servers == "thread":
        return _among(core.Placement.threads(world))
    if servers == "host":
        return _among(core.Placement.one_per_host(world))
    return _among(core.Placement.last_ranks(world, int(servers)))
