"""Update rules of servers and optimisers of DistOpt: each as the other."""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Tuple, Type

from tutti import opt as _opt
from tutti._core import ps as core
from tutti._losses import name_of
from tutti.errors import InvalidArgument
from tutti.ps._embedding import RULES, Rule


class _AsRule(NamedTuple):
    """What servers cannot do of an optimiser, and its rule otherwise."""

    must_be_zero: Tuple[str, ...]
    make: Callable[[Any], Rule]


_OF_OPTIMIZERS: Dict[Type[_opt.Optimizer], _AsRule] = {  # an AdamW without weight_decay is an Adam
    _opt.SGD: _AsRule(("weight_decay", "dampening"), lambda sgd: (
        core.Momentum(sgd.lr, sgd.momentum, sgd.nesterov) if sgd.momentum else core.Sgd(sgd.lr))),
    _opt.Adam: _AsRule(("weight_decay",), lambda adam: core.Adam(
        adam.lr, adam.betas[0], adam.betas[1], adam.eps)),
    _opt.Adagrad: _AsRule(("weight_decay", "lr_decay"), lambda adagrad: core.Adagrad(
        adagrad.lr, adagrad.eps, adagrad.initial_accumulator_value)),
}
_OPTIMIZERS: Dict[Type[Any], Callable[[Any], _opt.Optimizer]] = {
    core.Sgd: lambda rule: _opt.SGD(rule.lr),
    core.Momentum: lambda rule: _opt.SGD(rule.lr, rule.momentum, nesterov=rule.nesterov),
    core.Adam: lambda rule: _opt.Adam(rule.lr, (rule.beta1, rule.beta2), rule.eps),
    core.Adagrad: lambda rule: _opt.Adagrad(
        rule.lr, initial_accumulator_value=rule.initial_accumulator, eps=rule.eps),
}


def _neither(optimizer: Any) -> TypeError:
    return TypeError(f"optimizer is a {name_of(optimizer)}, but must be one of tutti.ps's Sgd, "
                     "Momentum, Adagrad and Adam, or tutti.opt's SGD, Adam, AdamW and Adagrad")


def rule_of(optimizer: Any) -> Rule:
    """An update rule as it is, and that of an optimiser of DistOpt, if it has one that servers
    know."""
    if isinstance(optimizer, RULES):
        return optimizer
    for kind, (must_be_zero, make) in _OF_OPTIMIZERS.items():
        if not isinstance(optimizer, kind):
            continue
        for name in must_be_zero:
            if getattr(optimizer, name):
                raise InvalidArgument(f"{name} is {getattr(optimizer, name):g}, but servers know none: "
                                      "it must be 0")
        return make(optimizer)
    raise _neither(optimizer)


def optimizer_of(rule: Any) -> _opt.Optimizer:
    """An optimiser for DistOpt as it is, and what does the same as an update rule."""
    if isinstance(rule, _opt.Optimizer):
        return rule
    if not isinstance(rule, RULES):
        raise _neither(rule)
    if getattr(rule, "row_wise", False):
        raise InvalidArgument("row_wise is True, but is for tables: it must be False")
    return _OPTIMIZERS[type(rule)](rule)
