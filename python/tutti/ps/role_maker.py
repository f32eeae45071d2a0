"""What a process of a parameter server is, in Paddle's words: for fleet.init()."""

from __future__ import annotations

from typing import List, Optional, Sequence, Union

from tutti._core import ps as core
from tutti.errors import InvalidArgument
from tutti.ps import _roles
from tutti._checks import flag, integer, items, whole

__all__ = [
    "MPIRoleMaker",
    "MPISymetricRoleMaker",
    "PaddleCloudRoleMaker",
    "Role",
    "RoleMakerBase",
    "UserDefinedRoleMaker",
]


class Role:
    """What UserDefinedRoleMaker is told."""

    WORKER = 1
    SERVER = 2


class RoleMakerBase:
    """Knows what this process is, once fleet.init() or generate_role() has asked."""

    def __init__(self) -> None:
        self._roles: Optional[_roles.Roles] = None

    def _find(self) -> _roles.Roles:
        raise NotImplementedError

    def generate_role(self) -> _roles.Roles:
        """Finds out, once; of ranks that a launcher has started it is collective."""
        if self._roles is None:
            self._roles = self._find()
        return self._roles

    def is_worker(self) -> bool:
        """Whether this process trains."""
        return self.generate_role().placement.is_worker

    def is_server(self) -> bool:
        """Whether this process is a server."""
        return self.generate_role().placement.is_server

    def is_first_worker(self) -> bool:
        """Whether this is worker 0."""
        return self.worker_index() == 0

    def worker_index(self) -> int:
        """Which worker this is; -1 of a server."""
        return self.generate_role().placement.worker_index

    def server_index(self) -> int:
        """Which server this is; -1 of a worker."""
        return self.generate_role().placement.server_index

    def worker_num(self) -> int:
        """How many workers there are."""
        return self.generate_role().placement.workers

    def server_num(self) -> int:
        """How many servers there are."""
        return self.generate_role().placement.servers

    def get_pserver_endpoints(self) -> List[str]:
        """'host:port' of each server, as far as they have any."""
        return list(self.generate_role().placement.server_endpoints)


class PaddleCloudRoleMaker(RoleMakerBase):
    """What the environment says: the roles of tutti run --server_num N --worker_num N (or --servers
    and --workers), or of processes that somebody starts one by one TRAINING_ROLE (TRAINER or
    PSERVER), PADDLE_PSERVERS_IP_PORT_LIST, PADDLE_TRAINERS_NUM, of a worker PADDLE_TRAINER_ID, of a
    server POD_IP and PADDLE_PORT."""

    def __init__(self, is_collective: bool = False) -> None:
        super().__init__()
        if flag("is_collective", is_collective):
            raise InvalidArgument("is_collective=True is for jobs without servers: use "
                                  "tutti.opt.DistOpt, which joins what a launcher has started")

    def _find(self) -> _roles.Roles:
        return _roles.by_environment()


class MPIRoleMaker(RoleMakerBase):
    """Among the ranks that mpiexec, or another launcher, has started: the last `servers` are
    servers."""

    def __init__(self, servers: int = 1) -> None:
        super().__init__()
        self._servers = servers

    def _find(self) -> _roles.Roles:
        return _roles.among_ranks(self._servers)


class MPISymetricRoleMaker(RoleMakerBase):
    """Among the ranks that mpiexec, or another launcher, has started: the last of each host is a
    server. With two a host, as Paddle has it, each has a worker and a server."""

    def _find(self) -> _roles.Roles:
        return _roles.among_ranks("host")


class UserDefinedRoleMaker(RoleMakerBase):
    """What you say: this is worker or server number current_id, of worker_num workers and the
    servers that listen at server_endpoints, a list or a text with commas."""

    def __init__(self, current_id: int = 0, role: int = Role.WORKER, worker_num: int = 0,
                 server_endpoints: Union[str, Sequence[str], None] = None) -> None:
        super().__init__()
        role = integer("role", role)
        if role not in (Role.WORKER, Role.SERVER):
            raise InvalidArgument(f"role is {role}, but must be Role.WORKER, which is {Role.WORKER}, or "
                                  f"Role.SERVER, which is {Role.SERVER}")
        if not server_endpoints:
            raise InvalidArgument("server_endpoints is empty")
        self._id = whole("current_id", current_id, 0, 2**31 - 1)
        self._role, self._workers = role, whole("worker_num", worker_num, 0, 2**31 - 1)
        self._endpoints = (server_endpoints if isinstance(server_endpoints, str)
                           else ",".join(items("server_endpoints", server_endpoints, (str,))))

    def _find(self) -> _roles.Roles:
        make = core.Placement.server if self._role == Role.SERVER else core.Placement.worker
        return _roles.Roles(make(self._endpoints, self._id, self._workers))
