"""MegEngine's distributed package: a launcher, groups of ranks, collectives that return arrays.

    import tutti.distributed as dist

    @dist.launcher(n_gpus=2)
    def main():
        dist.bcast_list_(net.parameters())
        dist.make_allreduce_cb("mean").attach(net.parameters())      # PyTorch's gradients
        total = dist.functional.all_reduce_sum(array)

Arrays are NumPy's or PyTorch's. docs/megengine.md sets MegEngine's scripts beside tutti's.
"""

from tutti.distributed import functional
from tutti.distributed._autograd import GradManager
from tutti.distributed._callbacks import AllreduceCallback, bcast_list_, make_allreduce_cb
from tutti.distributed._client import Client
from tutti.distributed._launcher import Launched, launcher
from tutti.distributed._world import (
    WORLD,
    Group,
    get_client,
    get_rank,
    get_world_size,
    group_barrier,
    init_process_group,
    is_distributed,
    new_group,
    override_backend,
    synchronized,
)
from tutti.errors import RankFailed

__all__ = [
    "WORLD",
    "AllreduceCallback",
    "Client",
    "GradManager",
    "Group",
    "Launched",
    "RankFailed",
    "bcast_list_",
    "functional",
    "get_client",
    "get_rank",
    "get_world_size",
    "group_barrier",
    "init_process_group",
    "is_distributed",
    "launcher",
    "make_allreduce_cb",
    "new_group",
    "override_backend",
    "synchronized",
]
