"""Dense parameters on servers."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple, Union

import numpy

from tutti import _torch
from tutti._core import ps as core
from tutti._types import Array
from tutti.errors import InvalidArgument
from tutti.ps import _arrays
from tutti.ps._embedding import Rule


def _named(parameters: Any) -> Dict[str, Array]:
    """Parameters by name: of a module, a mapping, or an iterable of arrays or pairs."""
    if callable(getattr(parameters, "named_parameters", None)):
        return {name: tensor for name, tensor in parameters.named_parameters()
                if tensor.requires_grad}
    if isinstance(parameters, Mapping):
        return dict(parameters)
    named: Dict[str, Array] = {}
    for number, parameter in enumerate(parameters):
        name, array = parameter if isinstance(parameter, tuple) else (str(number), parameter)
        if name in named:
            raise InvalidArgument(f"two parameters have the name {name}")
        named[name] = array
    return named


class Dense:
    """Parameters of which servers hold the blocks, and workers have copies. Alike on all of them.

    parameters: a module of PyTorch (what requires gradients), a mapping of names to arrays, or an
        iterable of arrays or pairs (name, array): float32 in CPU memory, which pull() writes. The
        values of worker 0 are those that training begins with.
    optimizer: Sgd, Momentum, Adagrad or Adam; by default as an Embedding's.
    name: stands before the names of its parameters, where there are several of these.

    It is of use once ps.start(), or Paddle's fleet.init_worker(), has got it, on workers; these
    have then pulled it.
    """

    def __init__(self, parameters: Any, *, optimizer: Optional[Rule] = None, name: str = "") -> None:
        named = _named(parameters)
        self.parameters = {f"{name}.{of}" if name else of: array for of, array in named.items()}
        self.optimizer = optimizer
        self._fleet: Optional[core.Fleet] = None
        self._numbers: Dict[str, int] = {}
        for of, array in self.parameters.items():
            _arrays.writable(array, f"parameter {of}", tuple(array.shape))

    def __repr__(self) -> str:
        return f"<tutti.ps.Dense: {', '.join(self.parameters)}>"

    def spec(self, rule: Rule, with_values: bool) -> List[core.DenseParameter]:
        """What servers are told; `rule` is for parameters without an optimizer."""
        return [core.DenseParameter(
                    name, tuple(array.shape), self.optimizer or rule,
                    _arrays.writable(array, name, tuple(array.shape)) if with_values else None)
                for name, array in self.parameters.items()]

    def bind(self, fleet: Optional[core.Fleet]) -> None:
        """Ties it to a worker's part of a fleet, or to none."""
        self._numbers = {} if fleet is None else {name: fleet.parameter(name)
                                                  for name in self.parameters}
        self._fleet = fleet

    def _bound(self) -> core.Fleet:
        if self._fleet is None:
            raise InvalidArgument("dense parameters are of no worker: ps.start() gets them among "
                                  "its tables, and they are of use until that worker stops")
        return self._fleet

    def push(self, gradients: Optional[Union[Mapping[str, Array],
                                             Iterable[Tuple[Array, Array]]]] = None) -> None:
        """Adds gradients to the batch: a mapping of names to arrays, an iterable of pairs
        (parameter, gradient), or a loss of PyTorch's, whose backward pass this runs. Without any,
        what the .grad of PyTorch's parameters is. Copies."""
        fleet = self._bound()
        if gradients is None:
            gradients = {name: tensor.grad for name, tensor in self.parameters.items()
                         if getattr(tensor, "grad", None) is not None}
        if isinstance(gradients, Mapping):
            for name, gradient in gradients.items():
                if name not in self._numbers:
                    raise InvalidArgument(f"gradients has {name!r}, but the parameters are "
                                          f"{', '.join(self._numbers)}")
                self._push(fleet, name, gradient)
            return
        names = {_arrays.address_of(array): name for name, array in self.parameters.items()}

        def emit(parameter: Array, gradient: Array) -> None:
            name = names.get(_arrays.address_of(parameter))
            if name is None:
                raise InvalidArgument("a pair's first is none of the parameters "
                                      f"{', '.join(self.parameters)}")
            self._push(fleet, name, gradient)

        if _torch.is_loss(gradients):
            _torch.backward_of(gradients)(emit)
            return
        for parameter, gradient in gradients:
            emit(parameter, gradient)

    def _push(self, fleet: core.Fleet, name: str, gradient: Array) -> None:
        shape = numpy.shape(self.parameters[name])
        fleet.push_dense(self._numbers[name],
                         _arrays.floats_of(gradient, f"the gradient of {name}", shape))

    def pull(self) -> None:
        """Writes the values to the parameters, in place: as of the last step() in Sync mode, this
        worker's own copy in Geo mode, what servers have now otherwise. Blocks."""
        fleet = self._bound()
        for name, array in self.parameters.items():
            fleet.pull_dense(self._numbers[name],
                             _arrays.writable(array, f"parameter {name}", tuple(array.shape)))
