"""PyTorch's distributed training over tutti: importing this registers the backend "tutti".

    import torch.distributed as dist
    import tutti.torch

    dist.init_process_group("tutti")        # where it said "gloo"

All of torch.distributed that takes a process group, and DistributedDataParallel,
FullyShardedDataParallel and ZeroRedundancyOptimizer with it, then work as over Gloo:
docs/pytorch.md.
"""

from tutti.torch._backend import register
from tutti.torch._group import ProcessGroupTutti

register()

__all__ = ["ProcessGroupTutti"]
