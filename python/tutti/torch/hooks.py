"""DistributedDataParallel's gradients in the modes of tutti.opt.DistOpt: its communication hook.

    from tutti.torch import hooks

    state = hooks.State(ddp, "sparseTopK", spars=0.01)
    ddp.register_comm_hook(state, hooks.hook)

What docs/numerics.md says of a mode holds, with DistributedDataParallel's buckets. Where momentum is
corrected, the optimiser has none.
"""

# mypy: disable-error-code="misc,import"

from typing import Any, Dict, Mapping

import torch
import torch.distributed as dist

from tutti.errors import InvalidArgument
from tutti.torch._averages import Averages
from tutti.torch._ranks import agree, group_of, run
from tutti.torch._work import keep, start

__all__ = ["State", "hook"]


class State:
    """How a model's gradients travel, and what is kept of them from step to step.

    ddp: the DistributedDataParallel, over a group of the backend "tutti". mode: "fp32", "fp16",
    "bf16", "sparseTopK" or "sparseThreshold". options: those of the mode, as of tutti.opt.DistOpt:
    clipping, clip_Value, spars, corr, momentum_correction, clip_norm, warm_up_epochs, epoch_steps.

    Collective and blocking: ranks that have another mode or option get a MismatchError. A sparse mode
    and find_unused_parameters do not go together: DistributedDataParallel takes no gradient for a
    parameter that no rank has used, and what of it had waited would be lost.
    """

    def __init__(self, ddp: torch.nn.parallel.DistributedDataParallel, mode: str,
                 **options: Any) -> None:
        if not isinstance(ddp, torch.nn.parallel.DistributedDataParallel):
            raise TypeError(f"ddp is a {type(ddp).__name__}, but must be a DistributedDataParallel")
        self._group = group_of(ddp.process_group)
        parameters = dict(ddp.module.named_parameters())
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._averages = Averages(
            self._group.communicator,
            {name: parameter.numel() * (2 if parameter.is_complex() else 1)  # its parts travel
             for name, parameter in parameters.items()}, mode, options)
        if self._averages.keeps and ddp.find_unused_parameters:
            raise InvalidArgument(f"mode is {mode!r}, but ddp has find_unused_parameters=True, with "
                                  "which it loses what a sparse mode sends later: use "
                                  "tutti.torch.DistributedOptimizer")
        agree(self._group, "setting", self._averages.settings())

    def state_dict(self) -> Dict[str, Any]:
        """What is kept, of this rank: for torch.save(). Local; waits for what is under way."""
        state: Dict[str, Any] = run(self._group, self._averages.state_dict)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state_dict() of this rank. Local, between two steps. It changes nothing where
        it fails."""
        run(self._group, lambda: self._averages.load_state_dict(state))

    def average(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Starts a bucket; the future of its average. See hook()."""
        buffer, is_last = bucket.buffer(), bucket.is_last()
        try:
            names = tuple(self._names[id(parameter)] for parameter in bucket.parameters())
        except KeyError:
            raise InvalidArgument("a bucket has a parameter that the model of this State has not: "
                                  "register it with the model that it was made for") from None

        def call() -> None:
            if buffer.is_sparse:
                self._averages.average_sparse(buffer)
            else:
                self._averages.average(names, buffer)
            if is_last:
                self._averages.steps += 1

        work = keep(start(self._group._lane, [buffer], call))
        future: torch.futures.Future[torch.Tensor] = work.get_future().then(
            lambda done: done.value()[0])
        return future


# PyTorch compares the annotations with types, not with their names.
def hook(state: State, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For DistributedDataParallel.register_comm_hook(state, hook)."""
    return state.average(bucket)
