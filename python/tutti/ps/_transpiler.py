"""Fluid's DistributeTranspiler: what a process of a parameter server has to run."""

from __future__ import annotations

import copy
from types import TracebackType
from typing import Any, Iterable, List, NamedTuple, Optional, Tuple, Type, Union

from tutti import opt as _opt
from tutti._core import Communicator
from tutti._core import ps as core
from tutti._log import logger
from tutti.errors import Error, InvalidArgument
from tutti.ps import _roles
from tutti._checks import check_kind, endpoints, flag, items, whole
from tutti.ps._config import DistributeTranspilerConfig
from tutti.ps._dense import Dense, named_arrays
from tutti.ps._dispatch import PSDispatcher, choose
from tutti.ps._embedding import Embedding
from tutti.ps._fleet import Fleet, Job
from tutti.ps._fluid import Nothing, default_main_program
from tutti.ps._rules import optimizer_of, rule_of


class Program(NamedTuple):
    """What is trained, where Fluid has a graph: the dense parameters as ps.Dense takes them, the
    Embeddings, and the optimizer of what has none of its own."""

    parameters: Any = ()
    embeddings: Iterable[Embedding] = ()
    optimizer: Any = core.Sgd()


class PserverProgram:
    """What a server runs."""

    serves = True

    def __init__(self, job: DistributeTranspiler, index: int) -> None:
        self._job, self._index = job, index

    def run(self) -> None:
        """Serves, and returns when all trainers have stopped or are lost."""
        with self._job.start(core.Placement.server, self._index) as served:
            served.serve()


class TrainerProgram:
    """What a trainer has: a step is program(gradients), where gradients are pairs (parameter,
    gradient), a mapping, or a loss of PyTorch's. A context manager, at whose end the trainer
    stops."""

    def __init__(self, job: DistributeTranspiler) -> None:
        self._job = job
        self._fleet: Optional[Fleet] = None
        self.stopped = False

    @property
    def trainer_id(self) -> int:
        """Which trainer this is."""
        return self._job.trainer_id

    @property
    def trainer_num(self) -> int:
        """How many trainers there are."""
        return self._job.trainer_num

    @property
    def fleet(self) -> Fleet:
        """The worker. The first use waits for the servers. Raises InvalidArgument once the trainer has
        stopped: the others would not join it again."""
        if self.stopped:
            raise InvalidArgument("this trainer has stopped: its program and its tables are of use on "
                                  "trainers, until they stop")
        if self._fleet is None:
            self._fleet = self._job.start(core.Placement.worker, self._job.trainer_id)
        return self._fleet

    def run(self, gradients: Any = None) -> None:
        """A step: pushes the gradients of dense parameters (without any, the .grad of PyTorch's),
        ends the batch, and pulls. Those of Embeddings were pushed before, or are by a loss's
        backward pass."""
        fleet = self.fleet
        dense = self._job.dense
        if dense is not None:
            dense.push(gradients)
        fleet.step()
        if dense is not None:
            dense.pull()

    __call__ = run

    def stop(self) -> None:
        """Pushes what is left, and leaves, for good. Nothing if it has stopped, or not joined. What
        Ctrl-C leaves of it is for the next call."""
        fleet = self._fleet  # another thread may be about to set it to None
        try:
            if fleet is not None:
                fleet.leave()
        except (Error, MemoryError):
            if fleet is not None and fleet.has_stopped:
                self._fleet, self.stopped = None, True
            raise
        self._fleet, self.stopped = None, True

    def __enter__(self) -> TrainerProgram:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        fleet, self._fleet, self.stopped = self._fleet, None, True
        if fleet is not None:
            fleet.__exit__(kind, error, traceback)


class CollectiveProgram:
    """What a trainer has in the modes without servers: a step of DistOpt, which is `opt`."""

    def __init__(self, dist_opt: _opt.DistOpt) -> None:
        self.opt = dist_opt

    @property
    def trainer_id(self) -> int:
        """Which trainer this is."""
        return self.opt.global_rank

    @property
    def trainer_num(self) -> int:
        """How many trainers there are."""
        return self.opt.world_size

    def run(self, gradients: Any) -> None:
        """A step: averages the gradients of all trainers, and updates."""
        self.opt(gradients)

    __call__ = run

    def stop(self) -> None:
        """Leaves."""
        self.opt.communicator.close()

    def __enter__(self) -> CollectiveProgram:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.opt.communicator.__exit__(kind, error, traceback)


class DistributeTranspiler:
    """Turns a program into those of servers and trainers, which are started by hand with endpoints
    as arguments."""

    def __init__(self, config: Optional[DistributeTranspilerConfig] = None) -> None:
        if config is not None:
            check_kind("config", config, (DistributeTranspilerConfig,))
        self.config = config or DistributeTranspilerConfig()
        self.trainer_id = 0
        self.dense: Optional[Dense] = None
        self._program: Optional[Program] = None
        self._endpoints: List[str] = []
        self.trainer_num = 0
        self.trainer: Union[TrainerProgram, CollectiveProgram, None] = None
        self._mode: Any = None

    def transpile(
        self,
        trainer_id: int,
        program: Optional[Program] = None,
        pservers: str = "127.0.0.1:6174",
        trainers: Union[int, str] = 1,
        sync_mode: bool = True,
        startup_program: Any = None,
        current_endpoint: str = "127.0.0.1:6174",
        slice_var_up: Optional[bool] = None,
        split_method: Optional[Type[PSDispatcher]] = None,
    ) -> None:
        """trainer_id: this trainer's number; a server's does not matter. program: what is trained.
        pservers: the servers' 'host:port', with commas. trainers: how many there are. sync_mode:
        False for asynchronous training. slice_var_up and split_method count before the config's.

        In mode "nccl2" trainers is the list of their endpoints, current_endpoint this one's, and
        the trainers join here: collective over them and blocking.
        """
        if not isinstance(program, Program):
            raise InvalidArgument(f"program is a {type(program).__name__}, but must be a ps.Program("
                                  "parameters, embeddings, optimizer): there is no graph to take "
                                  "them from")
        if startup_program is not None:
            raise InvalidArgument("startup_program is given, but what parameters begin with is what "
                                  "those of trainer 0 are")
        if self._program is not None:
            raise InvalidArgument("transpile() was called before")
        self.config = copy.copy(self.config)
        for name, value in (("slice_var_up", slice_var_up), ("split_method", split_method)):
            if value is not None:
                setattr(self.config, name, value)
        sync_mode = flag("sync_mode", sync_mode)
        trainer_id = whole("trainer_id", trainer_id, 0, 2**31 - 1)
        program = program._replace(embeddings=items("embeddings", program.embeddings, (Embedding,)))
        if self.config.mode == "pserver":
            self._set_servers(program, pservers, trainers, sync_mode)
        else:
            self._join(program, trainer_id, trainers, sync_mode, current_endpoint)
        self.trainer_id = trainer_id
        self._program = program
        default_main_program().become(self)

    def _set_servers(self, program: Program, pservers: str, trainers: Union[int, str],
                     sync_mode: bool) -> None:
        if isinstance(trainers, str):
            raise InvalidArgument(f"trainers is {trainers!r}, but must be how many there are; a list "
                                  "of endpoints is for mode 'nccl2'")
        trainers = whole("trainers", trainers, 1, 2**31 - 1)
        if self.config.collective_mode is not None:
            raise InvalidArgument(f"collective_mode is {self.config.collective_mode!r}, but mode "
                                  "'pserver' has servers")
        rule_of(program.optimizer)
        dense = Dense(program.parameters)
        self.dense = dense if dense.parameters else None
        self._endpoints = endpoints("pservers", pservers)
        self.trainer_num = trainers
        self._mode = self.config.mode_of(sync_mode and self.config.sync_mode)

    def _join(self, program: Program, trainer_id: int, trainers: Union[int, str], sync_mode: bool,
              current_endpoint: str) -> None:
        if not isinstance(trainers, str):
            raise InvalidArgument(f"trainers is {trainers!r}, but must be the list of their endpoints "
                                  f"in mode {self.config.mode!r}")
        found = endpoints("trainers", trainers)
        if not 0 <= trainer_id < len(found) or found[trainer_id] != current_endpoint:
            raise InvalidArgument(f"current_endpoint is {current_endpoint!r}, but must be number "
                                  f"{trainer_id} (trainer_id) of trainers, {trainers}")
        self.config.check_no_servers()
        if not (sync_mode and self.config.sync_mode):
            raise InvalidArgument(f"sync_mode is False, but mode {self.config.mode!r} is synchronous")
        if program.embeddings:
            raise InvalidArgument(f"program has embeddings, but mode {self.config.mode!r} has no "
                                  "servers, where these lie")
        optimizer = optimizer_of(program.optimizer)
        parameters = named_arrays(program.parameters)
        communicator = Communicator.from_endpoints(found, trainer_id)
        try:
            dist_opt = _opt.DistOpt(optimizer, communicator=communicator)
            dist_opt.register_parameters(parameters.items())
        except BaseException:
            communicator.close()
            raise
        self.trainer = CollectiveProgram(dist_opt)

    def _servers(self) -> Program:
        if self._program is None:
            raise InvalidArgument("transpile() comes first")
        if isinstance(self.trainer, CollectiveProgram):
            raise InvalidArgument(f"mode {self.config.mode!r} has no servers")
        return self._program

    def start(self, place: Any, index: int) -> Fleet:
        """Meets the others, as server or as worker number `index`."""
        program = self._servers()
        tables: List[Union[Embedding, Dense]] = list(program.embeddings)
        if self.dense is not None:
            tables.append(self.dense)
        rule = rule_of(program.optimizer)
        if self.config.print_log and self.dense is not None:
            blocks = choose(self.config.slicing(), self.dense.spec(rule, False),
                            len(self._endpoints), self._endpoints)
            for block, server in blocks.items():
                logger.info("%s: %d elements on %s", block.name, block.count,
                            self._endpoints[server])
        roles = _roles.Roles(place(",".join(self._endpoints), index, self.trainer_num))
        return Job(tables, mode=self._mode, slicing=self.config.slicing()).start(roles, rule)

    def get_pserver_program(self, endpoint: str) -> PserverProgram:
        """What the server that listens at `endpoint` runs."""
        self._servers()
        if endpoint not in self._endpoints:
            raise InvalidArgument(f"endpoint is {endpoint!r}, but pservers are "
                                  f"{', '.join(self._endpoints)}")
        return PserverProgram(self, self._endpoints.index(endpoint))

    def get_pserver_programs(self, endpoint: str) -> Tuple[PserverProgram, Nothing]:
        """The same, with what runs before."""
        return self.get_pserver_program(endpoint), Nothing()

    def get_startup_program(self, endpoint: str, pserver_program: Optional[PserverProgram] = None,
                            startup_program: Any = None) -> Nothing:
        """What runs before a server's program: nothing, since parameters begin with trainer 0's
        values."""
        self._servers()
        return Nothing()

    def get_trainer_program(self, wait_port: bool = True) -> Union[TrainerProgram, CollectiveProgram]:
        """What a trainer has. With wait_port, here and in the config, returns when all servers and
        trainers are there; PeerLost lists who is missing at the deadline. Otherwise the first step, or
        the first use of an Embedding, waits. The same program in each call, also when it has stopped."""
        if isinstance(self.trainer, CollectiveProgram):
            return self.trainer
        program = self._servers()
        trainer = self.trainer = self.trainer or TrainerProgram(self)
        if trainer.stopped:
            return trainer
        if wait_port and self.config.wait_port:
            trainer.fleet  # noqa: B018 - meets the others
        else:
            for table in program.embeddings:
                table.join_at_first_use(lambda: trainer.fleet)
        return trainer
