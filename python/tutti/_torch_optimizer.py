"""What PyTorch expects of an optimiser, of a DistOpt: param_groups, state_dict, and a
torch.optim.Optimizer for schedulers. PyTorch itself is never imported here."""

from __future__ import annotations

import sys
import weakref
from typing import Any, Dict, List, Mapping

import numpy

from tutti._core import Optimizer
from tutti._types import State
from tutti.errors import InvalidArgument


def _options_of(opt: Optimizer) -> Dict[str, Any]:
    """An optimiser's options, by name."""
    names = (name for kind in type(opt).__mro__ for name, value in vars(kind).items()
             if isinstance(value, property))
    return {name: getattr(opt, name) for name in dict.fromkeys(names)}


def _plain(value: Any) -> Any:
    """A number or a tuple of numbers, in Python's own types: not a tensor, say."""
    return tuple(map(float, value)) if isinstance(value, (tuple, list)) else float(value)


def _as_ours(value: Any) -> Any:
    """With the digits that an optimiser keeps."""
    return numpy.float32(_plain(value))


class Group(Dict[str, Any]):
    """The one group of a DistOpt's parameters: its options, of which the learning rate, momentum and
    betas can be written, and what else a scheduler keeps there."""

    def __init__(self, opt: Optimizer, parameters: List[Any]) -> None:
        options = _options_of(opt)
        super().__init__(params=parameters, **options)
        self._opt = opt
        self._options = frozenset(options)
        self.changeable = [name for name in options if getattr(type(opt), name).fset is not None]

    def __getitem__(self, key: str) -> Any:
        self.refresh()
        return super().__getitem__(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self.check(key, value)
        if key in self.changeable:
            value = _plain(value)
            setattr(self._opt, key, value)
        super().__setitem__(key, value)

    def update(self, *others: Any, **values: Any) -> None:
        """That of a dict, which itself would pass __setitem__ by; all or nothing."""
        wanted = dict(*others, **values)
        for key, value in wanted.items():
            self.check(key, value)
        options = {key: wanted.pop(key) for key in self.changeable if key in wanted}
        earlier = {key: self[key] for key in options}
        try:
            for key, value in options.items():
                self[key] = value  # which the optimiser itself may still refuse
        except BaseException:
            for key, value in earlier.items():
                self[key] = value
            raise
        for key, value in wanted.items():
            self[key] = value

    def __ior__(self, other: Any) -> Group:  # type: ignore[override,misc]
        self.update(other)
        return self

    def check(self, key: str, value: Any) -> None:
        """Refuses another value of an option that cannot change, and one of another kind."""
        if key not in self._options:
            return
        own = getattr(self._opt, key)
        try:
            wanted = _as_ours(value)
        except (TypeError, ValueError, OverflowError):
            wanted = None
        if wanted is None or numpy.shape(wanted) != numpy.shape(own):
            raise InvalidArgument(f"param_groups[0]['{key}'] is {own} and cannot become {value!r}, "
                                  "which is of another kind")
        if key not in self.changeable and not numpy.array_equal(wanted, _as_ours(own)):
            raise InvalidArgument(f"param_groups[0]['{key}'] is {own} and cannot become {value}: of this "
                                  f"DistOpt's options only {' and '.join(self.changeable)} can change")

    def refresh(self) -> None:
        """Has the options that were set otherwise. Those that were set here keep the digits that
        float32 does not have, since schedulers multiply them again and again."""
        for key in self.changeable:
            own = getattr(self._opt, key)
            if not numpy.array_equal(_as_ours(super().__getitem__(key)), _as_ours(own)):
                super().__setitem__(key, own)


def state_dict_of(state: State, group: Group) -> Dict[str, Any]:
    """A DistOpt's state() and options, as torch.save() takes them."""
    torch = sys.modules.get("torch")
    arrays = {name: array if torch is None else torch.from_numpy(array)
              for name, array in state["arrays"].items()}
    group.refresh()
    options = {key: value for key, value in group.items() if key != "params"}
    return {"state": {"arrays": arrays, "numbers": state["numbers"]}, "param_groups": [options]}


def load(dist: Any, state_dict: Any, group: Group) -> None:
    """Has a DistOpt go on from a state_dict(), or changes nothing."""
    if not isinstance(state_dict, Mapping) or set(state_dict) != {"state", "param_groups"}:
        raise InvalidArgument("state_dict is not one of a DistOpt: it must be a mapping of 'state' and "
                              "'param_groups'")
    groups = state_dict["param_groups"]
    if (not isinstance(groups, list) or len(groups) != 1 or not isinstance(groups[0], Mapping)
            or "lr" not in groups[0]):
        raise InvalidArgument("state_dict['param_groups'] must be a list of one dict with an 'lr'")
    options = {key: value for key, value in groups[0].items() if key != "params"}
    for key, value in options.items():
        group.check(key, value)
    earlier = {key: group[key] for key in group.changeable}
    group.update({key: options[key] for key in group.changeable if key in options})
    try:
        dist.load_state(state_dict["state"])
    except BaseException:
        group.update(earlier)
        raise
    group.update(options)


def make_optimizer(dist: Any, group: Group, parameters: List[Any]) -> Any:
    """A torch.optim.Optimizer that stands for `dist`, which holds it. It does not hold `dist`: one that is
    dropped goes at once, so that another may have its optimiser."""
    torch = sys.modules.get("torch")
    if torch is None or not parameters:
        raise InvalidArgument("torch_optimizer: no parameters of PyTorch are registered; call "
                              "register_parameters(model)")
    options = _options_of(dist.opt)
    reference = weakref.ref(dist)

    def living() -> Any:
        one = reference()
        if one is None:
            raise InvalidArgument("the DistOpt for which this optimiser stands is gone")
        return one

    class TorchOptimizer(torch.optim.Optimizer):  # type: ignore[misc,name-defined]
        """A DistOpt, for schedulers: they read and write its options."""

        def __init__(self) -> None:
            self._is_made = False
            super().__init__(parameters, options)
            self._is_made = True

        @property
        def param_groups(self) -> List[Any]:
            if not self._is_made:
                return self._first
            group.refresh()
            return [group]

        @param_groups.setter
        def param_groups(self, groups: List[Any]) -> None:
            self._first = groups

        def add_param_group(self, param_group: Dict[str, Any]) -> None:
            if self._is_made:
                raise InvalidArgument("add_param_group: a DistOpt has one group, of the parameters that were "
                                      "registered")
            super().add_param_group(param_group)  # as the constructor does

        def note_step(self) -> None:
            """The DistOpt has made a step: schedulers warn where they think that they come first."""
            self._opt_called = True
            self._step_count = getattr(self, "_step_count", 0) + 1  # before PyTorch 2.3

        def step(self, closure: Any = None) -> None:
            raise InvalidArgument("step: a DistOpt makes a step when it is called with the loss")

        def zero_grad(self, set_to_none: bool = True) -> None:
            living().zero_grad(set_to_none)

        def state_dict(self) -> Dict[str, Any]:
            return living().state_dict()  # type: ignore[no-any-return]

        def load_state_dict(self, state_dict: Any) -> None:
            living().load_state_dict(state_dict)

    return TorchOptimizer()
