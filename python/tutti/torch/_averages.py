"""Where the gradients of a bucket are averaged in a mode: for DistributedOptimizer, and for the hook of
DistributedDataParallel."""

# mypy: disable-error-code="misc,import"

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch

from tutti import _core
from tutti.errors import CommunicationError, InvalidArgument, MismatchError
from tutti.opt import MODES
from tutti.torch import _sparse

Names = Tuple[str, ...]
Kept = Tuple[int, Dict[str, Dict[str, torch.Tensor]]]  # steps, and the rest by its name and parameter

_WITHOUT = "partialUpdate"  # averages parameters
_KEPT = ("residual", "velocity")


class Averages:
    """Averages buckets over the ranks of a communicator, and keeps what a mode keeps of each
    parameter, whatever bucket that is in: tutti's compressors do both.

    sizes: how many elements each parameter has, by its name. mode, options: as of tutti.opt.DistOpt,
    by its names. What travels in another mode than fp32 is float32, whatever the gradients are.
    """

    def __init__(self, communicator: Any, sizes: Mapping[str, int], mode: str,
                 options: Mapping[str, Any]) -> None:
        known = [name for name in MODES if name != _WITHOUT]
        if mode not in known:
            raise InvalidArgument(f"mode is {mode!r}, but must be {', '.join(known[:-1])} or "
                                  f"{known[-1]}")
        for option in options:
            if option not in MODES[mode].options:
                takes = ", ".join(MODES[mode].options) or "none"
                raise InvalidArgument(f"{option} is given, but the options of mode {mode!r} are: "
                                      f"{takes}")
        self.mode = mode
        self.steps = 0  # so far
        self._communicator = communicator
        self._sizes = dict(sizes)
        self._options = dict(options)
        self._buckets: Dict[Names, Any] = {}
        # What parameters have left that are in no bucket yet, or no more.
        self._kept: Dict[str, Dict[str, torch.Tensor]] = {what: {} for what in _KEPT}
        self._make([1], torch.zeros(1, device="cpu"))  # refuses bad options now rather than in the first step

    def settings(self) -> List[str]:
        """What all ranks must have alike, a line each."""
        return [f"mode '{self.mode}'",
                *(f"{name} {float(value)}" for name, value in sorted(self._options.items()))]

    @property
    def travels_as_it_is(self) -> bool:
        """Whether gradients travel in their own type."""
        return self.mode == "fp32"

    @property
    def keeps(self) -> bool:
        """Whether something of earlier gradients may come with later ones."""
        return self.mode.startswith("sparse")

    def average(self, names: Names, flat: torch.Tensor) -> None:
        """flat = the average of those of all ranks: the gradients of these parameters, one after
        the other. Collective and blocking. Where it fails here alone, the other ranks are told."""
        try:
            bucket = self._bucket(names, flat)
            if self.travels_as_it_is or flat.dtype == torch.float32:
                bucket.average(flat, self.steps)
                return
            wide = flat.float()
            bucket.average(wide, self.steps)
            flat.copy_(wide)
        except MismatchError as error:
            raise MismatchError(f"{error}: the gradients of {list_of(names)}") from error
        except CommunicationError:
            raise
        except BaseException as error:
            self._communicator.abort(f"gave up averaging the gradients of {list_of(names)}: "
                                     f"{type(error).__name__}: {error}")
            raise

    def average_sparse(self, gradient: torch.Tensor) -> None:
        """The same of one sparse gradient, of which all that there is travels in any mode."""
        _sparse.all_reduce(self._communicator, gradient, torch.distributed.ReduceOp.AVG)

    def _make(self, counts: List[int], like: torch.Tensor) -> Any:
        return _core.BucketAverage(self._communicator, counts, like, self.mode, **self._options)

    def _bucket(self, names: Names, flat: torch.Tensor) -> Any:
        bucket = self._buckets.get(names)
        if bucket is None:
            wanted = set(names)
            for others in [others for others in self._buckets if not wanted.isdisjoint(others)]:
                self._set_apart(others, self._buckets.pop(others))
            bucket = self._make([self._sizes[name] for name in names], flat)
            self._give_back(names, bucket)
            self._buckets[names] = bucket
        return bucket

    def _parts(self, names: Names, bucket: Any) -> Dict[str, Dict[str, torch.Tensor]]:
        counts = [self._sizes[name] for name in names]
        arrays = bucket.state()["arrays"]
        return {what: dict(zip(names, torch.from_numpy(array).split(counts)))
                for what, array in arrays.items()}

    def _set_apart(self, names: Names, bucket: Any) -> None:
        for what, parts in self._parts(names, bucket).items():
            self._kept[what].update(parts)

    def _give_back(self, names: Names, bucket: Any) -> None:
        if not self.keeps:
            return
        arrays = {}
        for what, kept in self._kept.items():
            if any(name in kept for name in names):
                arrays[what] = torch.cat([kept.pop(name, None) if name in kept else torch.zeros(
                    self._sizes[name], device="cpu") for name in names]).numpy()
        if arrays:
            bucket.load_state({"arrays": arrays, "numbers": {}})

    def know(self, sizes: Mapping[str, int]) -> None:
        """There may be more parameters."""
        self._sizes = dict(sizes)

    # The state.

    def state_dict(self) -> Dict[str, Any]:
        """What is kept from step to step, of this rank: by parameter, one flat tensor each, in the
        order of its memory."""
        kept = {what: dict(parts) for what, parts in self._kept.items()}
        for names, bucket in self._buckets.items():
            for what, parts in self._parts(names, bucket).items():
                kept[what].update({name: part.clone() for name, part in parts.items()})
        communicator = self._communicator
        return {"mode": self.mode, "steps": self.steps, "rank": communicator.global_rank,
                "ranks": communicator.world_size, **kept}

    def load_state_dict(self, state: Optional[Mapping[str, Any]]) -> None:
        """Goes on from a state_dict(), or begins anew from none. It changes nothing where it fails."""
        self.begin_with(self.checked(state))

    def checked(self, state: Optional[Mapping[str, Any]]) -> Kept:
        """What begin_with() takes, of a state_dict() or of none."""
        if state is None:
            return 0, {what: {} for what in _KEPT}
        if not isinstance(state, Mapping):
            raise InvalidArgument(f"the state of the gradients is a {type(state).__name__}, but must "
                                  "be a mapping")
        for key in ("steps", "rank", "ranks", *_KEPT):
            if key not in state:
                raise InvalidArgument(f"the state of the gradients has no {key!r}")
        steps = state["steps"]
        if not isinstance(steps, int) or steps < 0:
            raise InvalidArgument(f"the state's steps are {steps!r}, but must be a number of steps")
        place = (self._communicator.global_rank, self._communicator.world_size)
        if any(state[what] for what in _KEPT) and (state["rank"], state["ranks"]) != place:
            raise InvalidArgument(
                f"what a sparse mode keeps is each rank's own: the state is of rank "
                f"{state['rank']} of {state['ranks']}, this is rank {place[0]} of {place[1]}")
        return steps, {what: self._checked_parts(what, state[what]) for what in _KEPT}

    def _checked_parts(self, what: str, parts: Mapping[str, Any]) -> Dict[str, torch.Tensor]:
        flat = {}
        for name, part in parts.items():
            if not self.keeps:
                raise InvalidArgument(f"the state has the {what} of parameter {name!r}, which mode "
                                      f"{self.mode!r} does not keep")
            if name not in self._sizes:
                raise InvalidArgument(f"the state has the {what} of parameter {name!r}, which is not "
                                      "there")
            if not isinstance(part, torch.Tensor):
                raise InvalidArgument(f"the state's {what} of parameter {name!r} is a "
                                      f"{type(part).__name__}, but must be a tensor")
            if part.numel() != self._sizes[name]:
                raise InvalidArgument(
                    f"the state's {what} of parameter {name!r} has {part.numel()} elements, but the "
                    f"parameter {self._sizes[name]}")
            flat[name] = part.detach().to("cpu", torch.float32).flatten().clone()
        return flat

    def begin_with(self, kept: Kept) -> None:
        """Goes on from what was checked()."""
        self._buckets.clear()
        self.steps, self._kept = kept


def list_of(names: Names) -> str:
    """The first of them, for messages."""
    shown = ", ".join(f"'{name}'" for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more parameters"
