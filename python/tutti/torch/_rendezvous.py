"""How the ranks of a process group meet: by a ticket that travels through PyTorch's store, or
through MPI where they are on several hosts; and where that store is, if a launcher is to say."""

# mypy: disable-error-code="misc,import"

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any, Dict, Iterator, List, Optional, Tuple
from urllib.parse import parse_qs, urlsplit

import torch
import torch.distributed as dist

import tutti
from tutti.errors import BackendUnavailable, CommunicationError, InvalidArgument

_ALONE = "hosts"  # the verdict that there are several


def host_id() -> str:
    """Alike on processes that share memory: those of one boot, that see one /dev/shm."""
    told = os.environ.get("TUTTI_HOST_ID")
    if told:
        return told
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    where = os.stat("/dev/shm")
    return f"{boot}/{where.st_dev}/{where.st_ino}/{os.stat('/proc/self/ns/pid').st_ino}"


def _value(store: Any, key: str, whose: str, timeout: timedelta) -> str:
    try:
        store.wait([key], timeout)
        value: str = store.get(key).decode()
        return value
    except RuntimeError as error:
        raise CommunicationError(
            f"{whose} has not come to the process group within {timeout.total_seconds():g} s: "
            f"{error}") from error


def join(store: Any, rank: int, size: int, timeout: timedelta, seconds: float,
         members: List[int], world: Optional[Any]) -> Any:
    """The communicator of a group's ranks. `members`: their numbers in `world`, the communicator of
    all ranks, if there is one. `seconds`: how long waits may last from then on."""
    # A store may have served a group of this name before, which was destroyed.
    attempt = (store.add("joined", 1) - 1) // size
    store.set(f"{attempt}/host/{rank}", f"{host_id()} {os.uname().nodename}")
    if rank == 0:
        hosts: Dict[str, List[int]] = {}
        names: Dict[str, str] = {}
        for other in range(size):
            host, name = _value(store, f"{attempt}/host/{other}", f"rank {other}",
                                timeout).rsplit(" ", 1)
            hosts.setdefault(host, []).append(other)
            names[host] = name
        verdict = tutti.NcclIdHolder().text() if len(hosts) == 1 else f"{_ALONE} " + ", ".join(
            f"{names[host]} (" + ", ".join(map(str, ranks)) + ")" for host, ranks in hosts.items())
        store.set(f"{attempt}/verdict", verdict)
    verdict = _value(store, f"{attempt}/verdict", "rank 0", timeout)
    if world is not None:
        return world.group(members)
    if not verdict.startswith(_ALONE):
        ticket = tutti.NcclIdHolder.parse(verdict)
        return tutti.Communicator(rank, size, ticket, timeout=seconds)
    return _join_by_mpi(rank, size, verdict[len(_ALONE) + 1:], seconds)


def _join_by_mpi(rank: int, size: int, hosts: str, seconds: float) -> Any:
    launcher = tutti.launched_by()
    if launcher not in ("mpiexec", "tutti run"):
        raise BackendUnavailable(
            f"the ranks are on several hosts: {hosts}. Between hosts tutti needs MPI: start them "
            "by mpiexec, srun --mpi=pmix or tutti run --hosts" +
            (f" instead of {launcher}" if launcher else ""))
    comm = tutti.Communicator(timeout=seconds)
    if comm.world_size != size:
        raise InvalidArgument(
            f"the process group has {size} ranks, but {launcher} has started {comm.world_size}: "
            "where they are on several hosts, the first group is of all")
    if comm.global_rank == rank and size == 1:
        return comm
    return comm.split(0, rank)


def by_launcher(url: str, timeout: timedelta, **_: Any) -> Iterator[Tuple[Any, int, int]]:
    """The handler of init_method="tutti://": PyTorch's store, the rank and the number of ranks, as
    whatever has started them knows of them. Rank 0 serves the store. Collective."""
    with tutti.Communicator(timeout=timeout.total_seconds()) as everybody:
        rank, size = everybody.global_rank, everybody.world_size
        host = socket.gethostname() if everybody.local_size < size else "127.0.0.1"
        store = dist.TCPStore(host, 0, size, True, timeout, False) if rank == 0 else None
        port = torch.tensor([store.port if store else 0], device="cpu")
        name = torch.frombuffer(bytearray(host.encode().ljust(256)), dtype=torch.uint8)
        everybody.broadcast(port, 0)
        everybody.broadcast(name, 0)
        host = bytes(name.numpy()).decode().rstrip()
    for what, is_so in (("rank", rank), ("world_size", size)):
        said = parse_qs(urlsplit(url).query).get(what, [str(is_so)])[0]
        if said != str(is_so):
            raise InvalidArgument(f"{what} is {said}, but {is_so} for {tutti.launched_by()}")
    yield store or dist.TCPStore(host, int(port), size, False, timeout), rank, size
