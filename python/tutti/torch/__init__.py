"""PyTorch's distributed training over tutti: importing this registers the backend "tutti".

    import torch.distributed as dist
    import tutti.torch

    dist.init_process_group("tutti")        # where it said "gloo"

All of torch.distributed that takes a process group, and DistributedDataParallel,
FullyShardedDataParallel and ZeroRedundancyOptimizer with it, then work as over Gloo. tutti.torch.hooks
has DistributedDataParallel's gradients travel in the modes of tutti.opt.DistOpt, and
DistributedOptimizer averages them for any optimiser, as Horovod's does: docs/pytorch.md.
"""

# mypy: disable-error-code="import"

import torch

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 1):
    raise ImportError(f"tutti.torch needs PyTorch 2.1 or newer; this is {torch.__version__}")

from tutti.torch import hooks  # noqa: E402
from tutti.torch._backend import register  # noqa: E402
from tutti.torch._group import ProcessGroupTutti  # noqa: E402
from tutti.torch._ranks import average, broadcast_parameters  # noqa: E402
from tutti.torch._uncompiled import leave_alone  # noqa: E402
from tutti.torch.optimizer import DistributedOptimizer, broadcast_optimizer_state  # noqa: E402

register()
leave_alone(__name__)

__all__ = [
    "DistributedOptimizer",
    "ProcessGroupTutti",
    "average",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "hooks",
]
