"""The ranks that train together, as this process sees them: the world, and groups in it."""

from __future__ import annotations

import atexit
import functools
import hashlib
import multiprocessing.util
import os
import socket
import sys
from typing import (Any, Callable, Iterable, List, NoReturn, Optional, Sequence, Tuple, TypeVar, Union,
                    cast)

from tutti import _core
from tutti._checks import check_kind, integer
from tutti.distributed._client import Client
from tutti.distributed._mail import Mail
from tutti.errors import BackendUnavailable, CommunicationError, InvalidArgument, SystemError

_Function = TypeVar("_Function", bound=Callable[..., Any])


class World:
    """One rank's place among all. `alone`: nobody has started several."""

    def __init__(self, communicator: _core.Communicator, alone: bool = False) -> None:
        self.communicator = communicator
        self.rank = communicator.global_rank
        self.size = communicator.world_size
        self.alone = alone
        self.mail = Mail(communicator)
        self._client: Union[Client, SystemError]
        try:
            self._client = Client(communicator)
        except SystemError as error:  # on all ranks; most programs do not need it
            self._client = error

    @property
    def client(self) -> Client:
        """Throws SystemError where the ranks cannot have one, behind a firewall for example."""
        if isinstance(self._client, SystemError):
            raise self._client
        return self._client


class Helped(World):
    """What a process that works for a rank, and is none itself, knows of that one's world."""

    def __init__(self, place: Optional[Tuple[int, int]]) -> None:
        self.alone = False
        if place is not None:
            self.rank, self.size = place

    def __getattr__(self, name: str) -> NoReturn:
        raise CommunicationError("this process works for a rank, and is none itself: it knows that "
                                 "one's number, if that has joined the others, and nothing more")


_current: Optional[World] = None


def place() -> Optional[Tuple[int, int]]:
    """This rank and the number of ranks, if it has joined any. Local."""
    return None if _current is None or _current.alone else (_current.rank, _current.size)


def help_rank(place: Optional[Tuple[int, int]]) -> None:
    """This process works for the rank there: it does not join the others as another of that
    number, whatever the environment says."""
    global _current
    if _current is None and (place is not None or is_started()):
        _current = Helped(place)


def is_started() -> bool:
    """Whether a launcher has started this process as one of several, or it has joined some."""
    if _current is not None:
        return not _current.alone
    return _core.launched_by() != ""


def _finish(world: World) -> None:
    """What this process has sent goes on until it is received, unless an exception ends it."""
    if getattr(sys, "last_value", None) is None and sys.exc_info()[1] is None:
        world.mail.finish()


def enter(world: World) -> None:
    """Makes `world` that of this process."""
    global _current
    _current = world
    atexit.register(_finish, world)
    # A process of multiprocessing runs no exit handlers. Before its communicators are closed:
    multiprocessing.util.Finalize(None, _finish, args=(world,), exitpriority=110)


def join() -> World:
    """The world of this process. Where a launcher has started it (tutti run, mpiexec, ...), the
    first call joins the others, and blocks until they have come; otherwise it is a world of one."""
    if _current is None:
        alone = not is_started()
        enter(World(_core.Communicator(0, 1, _core.NcclIdHolder()) if alone
                    else _core.Communicator(), alone))
    return cast(World, _current)


def _is_here(address: str) -> bool:
    """Whether an address is one of this machine's."""
    try:
        for family, kind, protocol, _, place in socket.getaddrinfo(address, 0,
                                                                   type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as one:
                one.bind(place)
                return True
    except (OSError, UnicodeError):
        pass
    return False


def ticket_of(master_ip: str, port: int, world_size: int) -> _core.NcclIdHolder:
    """The ticket of ranks that were told the same place to meet, and run on that machine."""
    port = integer("port", port)
    if not 0 < port < 65536:
        raise InvalidArgument(f"port is {port}, but must be the same number from 1 to 65535 for all "
                              "ranks: it tells them from those of other programs")
    check_kind("master_ip", master_ip, (str,))
    if not _is_here(master_ip):
        raise InvalidArgument(
            f"master_ip is {master_ip!r}, which is no address of this machine: between machines "
            "ranks talk over MPI. Start the program by tutti run --ips, by tutti run --hosts, or by "
            "mpiexec; it then needs no other change")
    text = f"tutti.distributed {os.getuid()} {port} {world_size}"
    return _core.NcclIdHolder.parse(hashlib.shake_256(text.encode()).hexdigest(128))


def init_process_group(
    master_ip: str,
    port: int,
    world_size: int,
    rank: int,
    device: Optional[int] = None,
    backend: Optional[str] = None,
    device_type: Optional[str] = None,
    *,
    timeout: Optional[float] = None,
) -> None:
    """Joins the other ranks, once in a process that launcher() has not started.

    The ranks of one machine, however they were started, meet by being given the same port and
    world_size. Those of a launcher (tutti run, mpiexec) join what it has started, and world_size
    and rank are compared with that. master_ip: an address of this machine, or anything under a
    launcher. device: MegEngine's; which GPU a rank has, its tensors say. backend, device_type: its
    own, too, and not to be given; see override_backend(). timeout: seconds that any wait may last;
    TUTTI_TIMEOUT, or else 300. Blocks until all ranks have come.
    """
    check_choices(device_type, backend)
    world_size, rank = integer("world_size", world_size), integer("rank", rank)
    if world_size < 1:
        raise InvalidArgument(f"world_size is {world_size}, but must be at least 1")
    if not 0 <= rank < world_size:
        raise InvalidArgument(f"rank is {rank}, but the ranks are 0 to {world_size - 1}")
    if _current is not None and not _current.alone:
        raise InvalidArgument(f"rank {_current.rank} of {_current.size} has joined before: "
                              "init_process_group is called once in a process, and not by ranks "
                              "that launcher() has started")
    if not is_started():
        ticket = ticket_of(master_ip, port, world_size)
        enter(World(_core.Communicator(rank, world_size, ticket, timeout=timeout)))
        return
    communicator = _core.Communicator(timeout=timeout)
    found = (communicator.global_rank, communicator.world_size)
    if found != (rank, world_size):
        communicator.abort(f"it was told to be rank {rank} of {world_size}")
        raise InvalidArgument(f"rank is {rank} and world_size {world_size}, but the launcher has "
                              f"started this process as rank {found[0]} of {found[1]}")
    enter(World(communicator))


def is_distributed() -> bool:
    """Whether this process is one of the ranks of a launcher, or has joined some. Local."""
    return is_started()


def get_rank() -> int:
    """This rank among all; 0 where is_distributed() is false. Blocks as WORLD's first use does."""
    return join().rank if is_started() else 0


def get_world_size() -> int:
    """How many ranks there are; 1 where is_distributed() is false. Blocks as WORLD's first use."""
    return join().size if is_started() else 1


def check_peer(name: str, rank: int) -> None:
    """Refuses what is no other rank; `name` is that of the argument."""
    world = join()
    if not 0 <= integer(name, rank) < world.size or rank == world.rank:
        raise InvalidArgument(f"{name} is {rank}, but must be another of the ranks 0 to "
                              f"{world.size - 1} than this one, {world.rank}")


def get_client() -> Client:
    """The key-value store that all ranks share."""
    return join().client


class Group:
    """Some ranks of the world, in an order of their own: the first is the root of what has one.

    Made by its members alone, all of them with the same list: MismatchError otherwise. Two ranks
    that are together in several make these in the same order. Collective over them and blocking;
    throws InvalidArgument for ranks that are repeated or not there, and on a rank that is not a
    member. ranks: their numbers in the world. WORLD is the group of all, which the first use joins.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        world = join()
        if not isinstance(ranks, Iterable) or isinstance(ranks, str):
            raise TypeError(f"ranks is {ranks!r}, but must be a list of ranks")
        self._ranks = [integer(f"ranks[{number}]", rank) for number, rank in enumerate(ranks)]
        if len(set(self._ranks)) != len(self._ranks):
            raise InvalidArgument(f"ranks is {self._ranks}, in which one is repeated")
        if any(not 0 <= rank < world.size for rank in self._ranks):
            raise InvalidArgument(f"ranks is {self._ranks}, but the ranks are 0 to {world.size - 1}")
        if world.rank not in self._ranks:
            raise InvalidArgument(f"ranks is {self._ranks}, of which this rank, {world.rank}, is "
                                  "none: a group is made by its members alone")
        self._communicator = world.communicator.group(self._ranks)

    @property
    def communicator(self) -> _core.Communicator:
        """What its collectives run on, with ranks counted in the group."""
        return self._communicator

    @property
    def proc_ranks(self) -> List[int]:
        """The numbers of its ranks in the world, in its order."""
        return list(self._ranks)

    @property
    def size(self) -> int:
        """How many ranks it has."""
        return self.communicator.world_size

    @property
    def rank(self) -> int:
        """This rank's number in it."""
        return self.communicator.global_rank

    @property
    def is_single_machine(self) -> bool:
        """Whether all of its ranks share a machine."""
        return self.communicator.local_size == self.size


class _All(Group):
    """The group of all ranks, whatever the world of the process is when it is used."""

    def __init__(self) -> None:
        pass

    @property
    def communicator(self) -> _core.Communicator:
        return join().communicator

    @property
    def proc_ranks(self) -> List[int]:
        return list(range(join().size))


WORLD: Group = _All()


def communicator_of(group: Group) -> _core.Communicator:
    """What the collectives of a group run on. Raises TypeError if an argument is no group."""
    check_kind("group", group, (Group,))
    return group.communicator


def new_group(proc_ranks: Sequence[int]) -> Group:
    """Group(proc_ranks), as MegEngine's scripts write it."""
    return Group(proc_ranks)


def group_barrier(group: Group = WORLD) -> None:
    """Blocks until all ranks of the group have called it, or the deadline passes: PeerLost."""
    communicator_of(group).barrier()


def synchronized(function: _Function) -> _Function:
    """A decorator: the function returns once all ranks have come to its end."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        group_barrier()
        return result

    return cast(_Function, wrapped)


def refuse_choice(said: str) -> NoReturn:
    """For what MegEngine lets its caller choose."""
    raise BackendUnavailable(
        f"{said} is not there: what carries the bytes follows from where they lie. Leave it out, and "
        "write x.to('cuda') before the call for NCCL, x.cpu() for shared memory and MPI")


def override_backend(new_backend: str) -> None:
    """MegEngine's; refused, since there is nothing to choose."""
    refuse_choice(f"override_backend({new_backend!r})")


def check_choices(device_type: Optional[str], backend: Optional[str]) -> None:
    """Refuses parameters of MegEngine's; its own defaults say nothing, either."""
    if device_type not in (None, "xpu"):
        refuse_choice(f"device_type={device_type!r}")
    if backend not in (None, "auto"):
        refuse_choice(f"backend={backend!r}")
