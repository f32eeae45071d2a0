"""A parameter server: embeddings and dense parameters on servers, which workers train together.

    from tutti import ps
    item = ps.Embedding("item", 16, optimizer=ps.Adagrad(lr=0.05))
    net = ps.Dense(model, optimizer=ps.Adam(lr=0.001))
    with ps.start([item, net], mode=ps.Async(), servers="thread") as fleet:
        for batch in batches(fleet.worker_index, fleet.worker_num):
            rows = item.lookup(batch.ids)
            ...
            item.push(batch.ids, gradients)
            net.push(loss)
            fleet.step()
            net.pull()

Paddle's names are here as well: fleet, role_maker, StrategyFactory, DistributeTranspiler.
docs/parameter-server.md sets Paddle's scripts beside tutti's.
"""

import importlib
from types import ModuleType

from tutti import _identity  # noqa: F401 - refuses another package's __init__.py
from tutti._core import ps as _core
from tutti.ps import role_maker
from tutti.ps._config import DistributeTranspilerConfig
from tutti.ps._dense import Dense
from tutti.ps._dispatch import HashName, PSDispatcher, RoundRobin, Slicing
from tutti.ps._embedding import Embedding
from tutti.ps._fleet import Fleet, start
from tutti.ps._fluid import (
    CompiledProgram,
    CPUPlace,
    CUDAPlace,
    Executor,
    ParallelExecutor,
    default_main_program,
    default_startup_program,
    memory_optimize,
    release_memory,
)
from tutti.ps._paddle import DistributedOptimizer, DistributedStrategy, StrategyFactory, fleet
from tutti.ps._transpiler import DistributeTranspiler, Program

Adagrad = _core.Adagrad
Adam = _core.Adam
AdmitAll = _core.AdmitAll
Async = _core.Async
Constant = _core.Constant
CountFilter = _core.CountFilter
Evict = _core.Evict
Geo = _core.Geo
HalfAsync = _core.HalfAsync
Momentum = _core.Momentum
Normal = _core.Normal
Probability = _core.Probability
Sgd = _core.Sgd
SGD = Sgd
ShowClick = _core.ShowClick
Sync = _core.Sync
Uniform = _core.Uniform

__all__ = [
    "Adagrad",
    "Adam",
    "AdmitAll",
    "Async",
    "CPUPlace",
    "CUDAPlace",
    "CompiledProgram",
    "Constant",
    "CountFilter",
    "Dense",
    "DistributeTranspiler",
    "DistributeTranspilerConfig",
    "DistributedOptimizer",
    "DistributedStrategy",
    "Embedding",
    "Evict",
    "Executor",
    "Fleet",
    "Geo",
    "HalfAsync",
    "HashName",
    "Momentum",
    "Normal",
    "PSDispatcher",
    "ParallelExecutor",
    "Probability",
    "Program",
    "RoundRobin",
    "SGD",
    "Sgd",
    "ShowClick",
    "Slicing",
    "StrategyFactory",
    "Sync",
    "Uniform",
    "default_main_program",
    "default_startup_program",
    "fleet",
    "memory_optimize",
    "release_memory",
    "role_maker",
    "start",
]


def __getattr__(name: str) -> ModuleType:
    if name == "torch":  # imports PyTorch
        return importlib.import_module("tutti.ps.torch")
    raise AttributeError(f"module 'tutti.ps' has no attribute {name!r}")
