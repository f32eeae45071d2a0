"""Paddle's fleet: one object of the process that says what it is, and starts what it has to do."""

from __future__ import annotations

import os
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Union

from tutti._core import ps as core
from tutti.errors import Error, InvalidArgument
from tutti._checks import check_kind, items, path, sliceable, whole
from tutti.ps._config import DistributeTranspilerConfig
from tutti.ps._dense import Dense
from tutti.ps._dispatch import Slicing
from tutti.ps._embedding import Embedding
from tutti.ps._fleet import Fleet, Job, Mode
from tutti.ps._fluid import Nothing
from tutti.ps._rules import rule_of
from tutti.ps.role_maker import PaddleCloudRoleMaker, RoleMakerBase


class DistributedStrategy:
    """When workers push, and how parameters are spread over servers; made by StrategyFactory."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.slicing = Slicing()

    def set_program_config(self, config: DistributeTranspilerConfig) -> None:
        """Takes slice_var_up, split_method and min_block_size from it."""
        check_kind("config", config, (DistributeTranspilerConfig,))
        self.slicing = config.slicing()

    def set_trainer_runtime_config(self, config: Mapping[str, Any]) -> None:
        """Of an asynchronous strategy: {"communicator_max_merge_var_num": 20,
        "communicator_send_queue_size": 20}. Paddle's other keys are about its sender threads, which
        are not there: refused."""
        check_kind("config", config, (Mapping,))
        known = {"communicator_max_merge_var_num", "communicator_send_queue_size"}
        for key in config:
            if key not in known:
                raise InvalidArgument(f"trainer_runtime_config has {key!r}, but what there is to "
                                      f"choose is {', '.join(sorted(known))}")
        if not isinstance(self.mode, core.Async):
            raise InvalidArgument("trainer_runtime_config is for create_async_strategy()")
        counts = {"communicator_max_merge_var_num": self.mode.max_merge_var_num,
                  "communicator_send_queue_size": self.mode.send_queue_size, **config}
        most_merged, longest = (whole(name, count, 1, 2**31 - 1) for name, count in counts.items())
        self.mode = core.Async(most_merged, longest, self.mode.staleness, self.mode.divide_by_workers)


class StrategyFactory:
    """Makes strategies."""

    @staticmethod
    def create_sync_strategy() -> DistributedStrategy:
        """ps.Sync(): all workers' gradients of a batch are averaged and applied at once."""
        return DistributedStrategy(core.Sync())

    @staticmethod
    def create_async_strategy() -> DistributedStrategy:
        """ps.Async(): gradients are applied as they come."""
        return DistributedStrategy(core.Async())

    @staticmethod
    def create_half_async_strategy() -> DistributedStrategy:
        """ps.HalfAsync(): as they come, and each worker waits for its own."""
        return DistributedStrategy(core.HalfAsync())

    @staticmethod
    def create_geo_strategy(update_frequency: int = 100) -> DistributedStrategy:
        """ps.Geo(update_frequency): workers train by themselves, and exchange what has changed."""
        return DistributedStrategy(core.Geo(whole("update_frequency", update_frequency, 1, 2**31 - 1)))


def strategy_of(strategy: Union[DistributedStrategy, DistributeTranspilerConfig, None]
                ) -> DistributedStrategy:
    """A strategy, or what a config says of one."""
    if strategy is None:
        return StrategyFactory.create_sync_strategy()
    if isinstance(strategy, DistributedStrategy):
        return strategy
    if not isinstance(strategy, DistributeTranspilerConfig):
        raise TypeError(f"strategy is a {type(strategy).__name__}, but must be what StrategyFactory "
                        "makes, or a DistributeTranspilerConfig")
    made = DistributedStrategy(strategy.mode_of(strategy.sync_mode))
    made.set_program_config(strategy)
    return made


class DistributedOptimizer:
    """What fleet.distributed_optimizer() gives: knows what is trained, and makes steps."""

    def __init__(self, optimizer: Any, strategy: DistributedStrategy) -> None:
        self.rule = rule_of(optimizer)
        self.strategy = strategy
        self.dense: Optional[Dense] = None
        self.tables: Sequence[Embedding] = ()
        self.fleet: Optional[Fleet] = None

    def minimize(self, parameters: Any = (), embeddings: Iterable[Embedding] = ()) -> None:
        """Instead of a loss: the dense parameters to be trained, as ps.Dense takes them, and the
        Embeddings. The same on all workers and servers, before init_server() and init_worker()."""
        dense, tables = Dense(parameters), items("embeddings", embeddings, (Embedding,))
        self.dense = dense if dense.parameters else None
        self.tables = tables

    def __call__(self, gradients: Any = None) -> None:
        """A step: pushes the gradients of dense parameters, as Dense.push() takes them (without any,
        the .grad of PyTorch's), ends the batch, and pulls. Those of Embeddings were pushed before, or
        are by a loss's backward pass."""
        if self.fleet is None:
            raise InvalidArgument("fleet.init_worker() comes before the first step")
        if self.dense is not None:
            self.dense.push(gradients)
        self.fleet.step()
        if self.dense is not None:
            self.dense.pull()

    step = __call__


class MainProgram:
    """What a worker has to run: run(gradients) is a step, as calling the optimizer is."""

    def __init__(self, optimizer: DistributedOptimizer) -> None:
        self._optimizer = optimizer

    def run(self, gradients: Any = None) -> None:
        """A step."""
        self._optimizer(gradients)

    __call__ = run


class PaddleFleet:
    """Paddle's fleet, of which each process has one: tutti.ps.fleet."""

    def __init__(self) -> None:
        self._role: Optional[RoleMakerBase] = None
        self._optimizer: Optional[DistributedOptimizer] = None
        self._model_dir: Optional[str] = None
        self._fleet: Optional[Fleet] = None

    def init(self, role_maker: Optional[RoleMakerBase] = None, is_collective: bool = False,
             strategy: Any = None) -> None:
        """Says what this process is: by default PaddleCloudRoleMaker() does. Collective where the
        role maker asks a launcher's ranks. A job without servers (is_collective) is a DistOpt, and
        strategy is distributed_optimizer()'s."""
        if role_maker is None:
            role_maker = PaddleCloudRoleMaker(is_collective)
        elif is_collective:
            raise InvalidArgument("is_collective is True, but role_maker is for a job with servers")
        if strategy is not None:
            raise InvalidArgument("strategy is given, but what takes it is "
                                  "fleet.distributed_optimizer(optimizer, strategy)")
        if not isinstance(role_maker, RoleMakerBase):
            raise TypeError(f"role_maker is a {type(role_maker).__name__}, but must be one of "
                            "tutti.ps.role_maker's")
        if self._fleet is not None:
            raise InvalidArgument("fleet is at work: stop_worker() comes before another init()")
        role_maker.generate_role()
        self._role, self._optimizer, self._model_dir = role_maker, None, None

    def _roles(self) -> RoleMakerBase:
        if self._role is None:
            raise InvalidArgument("fleet.init(role_maker) comes first")
        return self._role

    def is_worker(self) -> bool:
        """Whether this process trains."""
        return self._roles().is_worker()

    def is_server(self) -> bool:
        """Whether this process is a server."""
        return self._roles().is_server()

    def is_first_worker(self) -> bool:
        """Whether this is worker 0."""
        return self._roles().is_first_worker()

    def worker_index(self) -> int:
        """Which worker this is; -1 of a server."""
        return self._roles().worker_index()

    def worker_num(self) -> int:
        """How many workers there are."""
        return self._roles().worker_num()

    def server_index(self) -> int:
        """Which server this is; -1 of a worker."""
        return self._roles().server_index()

    def server_num(self) -> int:
        """How many servers there are."""
        return self._roles().server_num()

    def server_endpoints(self, to_string: bool = False) -> Union[List[str], str]:
        """'host:port' of each server, as far as they have any; with to_string, with commas."""
        endpoints = self._roles().get_pserver_endpoints()
        return ",".join(endpoints) if to_string else endpoints

    def split_files(self, files: Sequence[str]) -> List[str]:
        """This worker's part of files: stretches that differ by one file at most."""
        files = sliceable("files", files)
        each, more = divmod(len(files), self.worker_num())
        index = self.worker_index()
        begin = each * index + min(index, more)
        return list(files[begin:begin + each + (index < more)])

    def distributed_optimizer(
        self,
        optimizer: Any,
        strategy: Union[DistributedStrategy, DistributeTranspilerConfig, None] = None,
    ) -> DistributedOptimizer:
        """What trains: its minimize() is told what, and calling it makes a step. optimizer: Sgd,
        Momentum, Adagrad, Adam, or tutti.opt's SGD, Adam, AdamW or Adagrad without what servers do
        not know (weight_decay), for all that has none of its own. strategy: by default
        create_sync_strategy()."""
        self._roles()
        self._optimizer = DistributedOptimizer(optimizer, strategy_of(strategy))
        return self._optimizer

    @property
    def startup_program(self) -> Nothing:
        """Nothing to be run: training begins with worker 0's values."""
        self._roles()
        return Nothing()

    @property
    def main_program(self) -> MainProgram:
        """What exe.run(fleet.main_program, gradients) runs on a worker: a step."""
        self._roles()
        if self._optimizer is None:
            raise InvalidArgument("fleet.distributed_optimizer(optimizer, strategy) comes first")
        return MainProgram(self._optimizer)

    def _start(self) -> Fleet:
        trained = self._optimizer
        if trained is None or (trained.dense is None and not trained.tables):
            raise InvalidArgument("fleet.distributed_optimizer(optimizer, strategy).minimize("
                                  "parameters, embeddings) comes first")
        tables: List[Union[Embedding, Dense]] = list(trained.tables)
        if trained.dense is not None:
            tables.append(trained.dense)
        job = Job(tables, mode=trained.strategy.mode, slicing=trained.strategy.slicing,
                  load=self._model_dir)
        return job.start(self._roles().generate_role(), trained.rule)

    def init_server(self, model_dir: Union[str, os.PathLike[str], None] = None) -> None:
        """On a server: it will begin with what save_persistables() has written to model_dir."""
        if not self.is_server():
            raise InvalidArgument("init_server() is for servers, and this is a worker")
        folder = None if model_dir is None else path("model_dir", model_dir)
        if folder is not None and not os.path.isdir(folder):
            raise InvalidArgument(f"model_dir is {folder!r}, which is no folder")
        self._model_dir = folder

    def run_server(self) -> None:
        """On a server: serves, and returns when all workers have stopped or are lost."""
        if not self.is_server():
            raise InvalidArgument("run_server() is for servers, and this is a worker")
        with self._start() as served:
            served.serve()

    def init_worker(self) -> None:
        """On a worker: waits for all servers and workers. PeerLost lists who is missing at the
        deadline."""
        if not self.is_worker():
            raise InvalidArgument("init_worker() is for workers, and this is a server")
        if self._fleet is not None:
            raise InvalidArgument("init_worker() was called before")
        self._fleet = self._start()
        if self._optimizer is not None:
            self._optimizer.fleet = self._fleet

    def _at_work(self) -> Fleet:
        if self._fleet is None:
            if self._role is not None and self._role.is_server():
                raise InvalidArgument("this is for workers, and this process is a server")
            raise InvalidArgument("fleet.init_worker() comes first")
        return self._fleet

    @property
    def workers(self) -> Any:
        """A communicator of the workers alone, as ps.Fleet.workers."""
        return self._at_work().workers

    def barrier_worker(self) -> None:
        """Blocks until all workers that live have called it."""
        self._at_work().barrier()

    def save_persistables(self, executor: Any = None, dirname: Any = None,
                          main_program: Any = None) -> None:
        """On one worker: has the servers write all tables and parameters to a folder, beside the
        training. save_persistables(dirname) will do: executor and main_program are Paddle's."""
        if dirname is None and isinstance(executor, (str, os.PathLike)):
            dirname = executor
        if dirname is None:
            raise InvalidArgument("dirname is None, but must be a folder")
        self._at_work().save(path("dirname", dirname))

    def stats(self) -> Dict[str, Any]:
        """What this worker has done, and its server in a thread, as ps.Fleet.stats()."""
        return self._at_work().stats()

    def stop_worker(self) -> None:
        """On a worker: pushes what is left, and leaves. What Ctrl-C leaves of it is for the next call."""
        worker = self._at_work()
        try:
            worker.leave()
        except (Error, MemoryError):
            if worker.has_stopped:
                self._fleet = None
            raise
        self._fleet = None


fleet = PaddleFleet()
