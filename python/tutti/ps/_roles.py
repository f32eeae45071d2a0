"""Who is a worker, who is a server, and what brings them together."""

from __future__ import annotations

import os
from typing import List, NamedTuple, NoReturn, Optional, Tuple, Union

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


def _of_environment() -> Optional[Tuple[int, int]]:
    """How many workers and servers the launcher has started as such; None if it has no servers."""
    def count(name: str) -> int:
        return len(list(filter(None, os.environ.get(name, "").split(","))))

    servers = count("PADDLE_PSERVERS_IP_PORT_LIST")
    trainers = os.environ.get("PADDLE_TRAINERS_NUM", "")
    if servers == 0 or "TRAINING_ROLE" not in os.environ or not trainers.isdecimal():
        return None
    return int(trainers) + count("PADDLE_HETER_TRAINER_IP_PORT_LIST"), servers


def _refuse(servers: Union[int, str], given: Tuple[int, int]) -> NoReturn:
    raise InvalidArgument(f"servers is {servers!r}, but the environment (TRAINING_ROLE) says that "
                          f"there are {given[0]} workers and {given[1]} servers: leave servers out")


def among_ranks(servers: Union[int, str], world: Optional[Communicator] = None,
                timeout: Optional[float] = None) -> Roles:
    """Roles among ranks that a launcher has started, or of a communicator; a process that nothing
    has launched is a worker alone, and only with servers in threads."""
    by_word = isinstance(servers, str) and servers in ("host", "thread")
    if not by_word and (isinstance(servers, bool) or not hasattr(servers, "__index__")
                        or int(servers) < 1):
        raise InvalidArgument(f"servers is {servers!r}, but must be a number above 0, 'host', "
                              "'thread', or None for what the environment says")
    given = _of_environment() if world is None else None
    if given is not None and servers != "host" and servers != given[1]:
        _refuse(servers, given)
    if world is None:
        alone = servers == "thread" and not _core.launched_by()
        world = (Communicator(0, 1, _core.NcclIdHolder(), timeout=timeout) if alone
                 else Communicator(timeout=timeout))
    if servers == "thread":
        return _among(core.Placement.threads(world))
    if servers == "host":
        placement = core.Placement.one_per_host(world)
        if given is not None and (placement.workers, placement.servers) != given:
            _refuse(servers, given)
        return _among(placement)
    return _among(core.Placement.last_ranks(world, int(servers)))
