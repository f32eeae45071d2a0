"""DistributedOptimizer: any optimiser of PyTorch's, with gradients averaged over the ranks."""

# mypy: disable-error-code="misc,import,no-untyped-call"

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional

import torch
from torch.distributed.algorithms.join import Join, Joinable, JoinHook, _JoinConfig

from tutti.errors import InvalidArgument
from tutti.torch._gradients import Gradients
from tutti.torch._ranks import Named, broadcast_parameters, broadcast_state_of, group_of, run

_MIB = 2**20


class DistributedOptimizer(torch.optim.Optimizer, Joinable):
    """Averages gradients over the ranks while backward() makes them, and lets `optimizer` make the
    step with the averages.

        optimizer = tutti.torch.DistributedOptimizer(optimizer, model.named_parameters())

    Everything else stays as it is, and it is an optimiser itself: schedulers take it. Its
    param_groups, state and all that is not said here are those of `optimizer`.

    step() averages `.grad` of each parameter over all ranks, after it has waited for what is under
    way: a parameter that has none on some ranks counts as zero there, one that has none on any rank
    keeps none, but in a sparse mode, where something of earlier steps may have waited. Gradients
    are sent in buckets of `bucket_cap_mb` MiB, in the order in which the first backward pass made
    them; they are sent once `backward_passes_per_step` passes were made, and are their sum. `.grad`
    lies in a bucket's memory from then on, and is overwritten by the next step. Gradients of
    embeddings that are sparse stay so.

    Between backward() and step() nothing may read or write `.grad` but after synchronize(), or by
    clip_grad_norm(): it may be under way. Where something has written to it meanwhile, step()
    raises InvalidArgument on all ranks. The step is left out then, but a sparse mode has sent a part of
    its gradients, and of what had waited: that part is lost, and the rest comes with later steps.

    named_parameters: what errors and states call parameters, as pairs or a mapping. group: one of
    the backend "tutti"; by default the default group. mode: "fp32", "fp16", "bf16", "sparseTopK" or
    "sparseThreshold", and options: of the mode, as of tutti.opt.DistOpt: clipping, clip_Value,
    spars, corr, momentum_correction, clip_norm, warm_up_epochs, epoch_steps.

    Collective and blocking, as are step(), synchronize(), clip_grad_norm(), add_param_group() and
    the end of join(): ranks on which parameters differ in name, shape, type
    or order in memory (channels_last), or that have another
    mode, option or bucket_cap_mb, get a MismatchError that names the first that does. It does not
    broadcast: call broadcast_parameters().
    """

    def __init__(self, optimizer: torch.optim.Optimizer,
                 named_parameters: Optional[Named] = None, *,
                 mode: str = "fp32", group: Optional[Any] = None,
                 backward_passes_per_step: int = 1, bucket_cap_mb: float = 25.0,
                 **options: Any) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"optimizer is a {type(optimizer).__name__}, but must be one of "
                            "torch.optim's")
        if backward_passes_per_step < 1:
            raise InvalidArgument(f"backward_passes_per_step is {backward_passes_per_step}, but "
                                  "must be at least 1")
        if not bucket_cap_mb > 0:
            raise InvalidArgument(f"bucket_cap_mb is {bucket_cap_mb}, but must be above 0")
        Joinable.__init__(self)
        self.optimizer = optimizer
        self.group = group_of(group)
        self._gradients = Gradients(
            optimizer, named_parameters, self.group, lambda me=weakref.proxy(self): (
                Join.notify_join_context(me)), backward_passes_per_step, bucket_cap_mb * _MIB, mode,
            options)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside add up gradients and send nothing; the next pass outside, or step(),
        sends the sum. They do not count as passes."""
        gradients = self._gradients
        before, gradients.is_held = gradients.is_held, True
        try:
            yield
        finally:
            gradients.is_held = before

    # The end of a step.

    @torch.no_grad()
    def synchronize(self) -> None:
        """Makes `.grad` of all parameters the average, which step() does otherwise: for what looks at
        gradients before it, such as GradScaler.unscale_()."""
        if not self._gradients.are_averaged:
            self._gradients.exchange()

    # What an optimiser has.

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Waits for the averages, and has the optimiser make its step. A closure computes the loss
        and its gradients anew, which are averaged each time: the optimiser sees the average of the
        ranks' losses, so that all of them go the same way, if each is one number."""
        if self._gradients.is_held:
            raise InvalidArgument("step() was called inside no_sync(), which sends nothing")
        if closure is None:
            self.synchronize()
            result = self.optimizer.step()
        else:
            result = self.optimizer.step(self._averaged(closure))
        self._gradients.are_averaged = False
        return result

    def _averaged(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def call() -> Any:
            loss = closure()
            if self._gradients.are_averaged:  # it has computed none
                return loss
            with torch.no_grad():
                average = self._gradients.exchange(_number_of(loss))
            if average is None:
                return loss
            return torch.full_like(loss, average) if isinstance(loss, torch.Tensor) else average

        return call

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """GradScaler is to look at the gradients itself. It asks before it does so, and what it then
        writes to them no version shows."""
        if not self._gradients.are_averaged:
            raise InvalidArgument("GradScaler.step() was called before synchronize(): it would look at "
                                  "gradients of this rank alone")
        return False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the optimiser does it. Not while gradients are under way: a backward pass is followed by
        step() or, where the step is to be left out on all ranks, by synchronize()."""
        self._gradients.refuse_under_way("zero_grad()")
        self._gradients.begin()
        self.optimizer.zero_grad(set_to_none)

    @torch.no_grad()
    def clip_grad_norm(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """As torch.nn.utils.clip_grad_norm_() of all parameters, after synchronize(): of the
        averages, so all ranks scale alike. The norm that they had."""
        self.synchronize()
        gradients = [parameter.grad for group in self.param_groups for parameter in group["params"]
                     if parameter.grad is not None]
        values = [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]
        if not values:
            return torch.tensor(0.0)
        norm = torch.linalg.vector_norm(torch.stack(
            [torch.linalg.vector_norm(value, norm_type).to(values[0].device) for value in values]),
            norm_type)
        scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for value in values:
            value.mul_(scale.to(value.device))
        return norm

    def add_param_group(self, param_group: Dict[str, Any],
                        named_parameters: Optional[Named] = None) -> None:
        """As the optimiser does it, on all ranks, between two steps. named_parameters: of those that
        the constructor's had not, if it was given some. It changes nothing where it fails."""
        self._gradients.refuse_under_way("add_param_group()")
        self.optimizer.add_param_group(param_group)
        try:
            self._gradients.adopt(named_parameters)
        except BaseException:
            self.param_groups.pop()
            raise

    def state_dict(self) -> Dict[str, Any]:
        """The optimiser's, and as "tutti" what a sparse mode keeps, of this rank alone."""
        state = dict(self.optimizer.state_dict())
        state["tutti"] = run(self.group, self._gradients.averages.state_dict)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from a state_dict(): of this rank, if a sparse mode keeps something, or of an
        optimiser that was not distributed, after which a sparse mode begins anew. It changes nothing
        where it fails."""
        state, averages = dict(state_dict), self._gradients.averages
        kept = averages.checked(state.pop("tutti", None))
        self.optimizer.load_state_dict(state)
        run(self.group, lambda: averages.begin_with(kept))

    @property
    def param_groups(self) -> List[Dict[str, Any]]:
        """The optimiser's."""
        groups: List[Dict[str, Any]] = self.optimizer.param_groups
        return groups

    @property
    def state(self) -> Any:
        """The optimiser's."""
        return self.optimizer.state

    @property
    def defaults(self) -> Dict[str, Any]:
        """The optimiser's."""
        defaults: Dict[str, Any] = self.optimizer.defaults
        return defaults

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # not there yet
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self._gradients.averages.mode}, {self.group!r}, {self.optimizer!r})"

    # Uneven data.

    def join(self) -> Join:
        """A context, entered by all ranks, for loops of different length: a rank that has left its
        loop counts with zero gradients in the others' steps, until all have. The average is over all
        ranks as before. In the end all have the parameters and the optimiser's state of a rank that
        made all steps."""
        return Join([self])

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """What torch.distributed.algorithms.Join asks for."""
        return _Joined(self)

    @property
    def join_device(self) -> torch.device:
        """What torch.distributed.algorithms.Join asks for."""
        managed = self._gradients.managed
        return managed[0].parameter.device if managed else torch.device("cpu")

    @property
    def join_process_group(self) -> Any:
        """What torch.distributed.algorithms.Join asks for."""
        return self.group


class _Joined(JoinHook):
    """What a rank does that has left its loop."""

    def __init__(self, optimizer: DistributedOptimizer) -> None:
        super().__init__()
        self._optimizer = optimizer

    @torch.no_grad()
    def main_hook(self) -> None:
        gradients = self._optimizer._gradients
        gradients.has_notified = True  # it makes no step of its own
        gradients.drop()
        gradients.exchange(has_left=True)

    def post_hook(self, is_last_joiner: bool) -> None:
        optimizer = self._optimizer
        # PyTorch leaves it as it was inside, and later steps would ask who has left.
        optimizer._join_config = _JoinConfig.construct_disabled_join_config()
        communicator = optimizer.group.communicator
        root = torch.tensor([communicator.global_rank if is_last_joiner else -1], device="cpu")
        run(optimizer.group, lambda: communicator.all_reduce(root, None, "max"))
        broadcast_parameters([(name, parameter.detach()) for name, parameter in optimizer._gradients.managed],
                             int(root), optimizer.group)
        broadcast_optimizer_state(optimizer, int(root), optimizer.group)


def _number_of(loss: Any) -> Optional[float]:
    if isinstance(loss, torch.Tensor):
        return float(loss) if loss.numel() == 1 and loss.is_floating_point() else None
    return float(loss) if isinstance(loss, (int, float)) else None


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root: int = 0,
                              group: Optional[Any] = None) -> None:
    """Gives all ranks the state_dict() of rank `root`'s optimiser, those that have none yet, too:
    after it has loaded a checkpoint, say. Error feedback is each rank's own and stays.

    Collective and blocking. Where rank `root` cannot save its state, all ranks get an error.
    """
    is_ours = isinstance(optimizer, DistributedOptimizer)
    broadcast_state_of(optimizer.optimizer if is_ours else optimizer, root, group)
