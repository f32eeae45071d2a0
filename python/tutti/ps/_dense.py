"""Dense parameters on servers."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union

import numpy
import numpy.typing as npt

from tutti import _torch
from tutti._core import ps as core
from tutti._types import Array
from tutti.errors import InvalidArgument
from tutti.ps import _arrays
from tutti._checks import flag, text
from tutti.ps._embedding import Rule, check_rule

_Gradient = Tuple[int, "npt.NDArray[numpy.float32]"]  # a parameter's number, and what is pushed


def _pair(name: str, value: Any, wanted: str) -> Tuple[Any, Any]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"{name} is {value!r:.80}, but must be a pair {wanted}")
    return value[0], value[1]


def named_arrays(parameters: Any) -> Dict[str, Array]:
    """Parameters by name: of a module, a mapping, or an iterable of arrays or pairs."""
    if callable(getattr(parameters, "named_parameters", None)):
        return {name: tensor for name, tensor in parameters.named_parameters()
                if tensor.requires_grad}
    if isinstance(parameters, Mapping):
        for name in parameters:
            text("a name in parameters", name)
        return dict(parameters)
    if not isinstance(parameters, Iterable) or isinstance(parameters, (str, bytes)):
        raise TypeError(f"parameters is {parameters!r}, but must be a module of PyTorch, a mapping of "
                        "names to arrays, or an iterable of arrays or pairs (name, array)")
    named: Dict[str, Array] = {}
    for number, parameter in enumerate(parameters):
        name, array = (_pair(f"parameters[{number}]", parameter, "(name, array)")
                       if isinstance(parameter, tuple) else (str(number), parameter))
        text("a name in parameters", name)
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
    shared: whether workers may read the parameters in the servers' memory, and write gradients where
        servers read them: see views() and gradients().

    It is of use once ps.start(), or Paddle's fleet.init_worker(), has got it, on workers; these
    have then pulled it.
    """

    def __init__(self, parameters: Any, *, optimizer: Optional[Rule] = None, name: str = "",
                 shared: bool = False) -> None:
        check_rule(optimizer)
        text("name", name)
        self.shared = flag("shared", shared)
        named = named_arrays(parameters)
        self.parameters = {f"{name}.{of}" if name else of: array for of, array in named.items()}
        self.optimizer = optimizer
        self._fleet: Optional[core.Fleet] = None
        self._numbers: Dict[str, int] = {}
        self._views: Dict[str, Array] = {}
        self._gradients: Dict[Tuple[str, int], Array] = {}  # by name and address
        for of, array in self.parameters.items():
            _arrays.writable(array, f"parameter {of}", _arrays.shape_of(array, f"parameter {of}"))

    def __repr__(self) -> str:
        return f"<tutti.ps.Dense: {', '.join(self.parameters)}>"

    def spec(self, rule: Rule, with_values: bool) -> List[core.DenseParameter]:
        """What servers are told; `rule` is for parameters without an optimizer."""
        return [core.DenseParameter(
                    name, tuple(array.shape), self.optimizer or rule,
                    _arrays.writable(array, name, tuple(array.shape)) if with_values else None,
                    self.shared)
                for name, array in self.parameters.items()]

    @property
    def is_bound(self) -> bool:
        """Whether a worker's part of a fleet has it."""
        return self._fleet is not None

    def bind(self, fleet: Optional[core.Fleet]) -> None:
        """Ties it to a worker's part of a fleet, or to none."""
        self._numbers = {} if fleet is None else {name: fleet.parameter(name)
                                                  for name in self.parameters}
        self._fleet = fleet
        for name in self._views:
            if self._is_view(name):
                tensor: Any = self.parameters[name]
                tensor.data = tensor.detach().clone()
        self._views = {}
        self._gradients = {}

    def _bound(self) -> core.Fleet:
        if self._fleet is None:
            raise InvalidArgument("dense parameters are of no worker: ps.start() gets them among "
                                  "its tables, and they are of use on workers, until they stop")
        return self._fleet

    def push(self, gradients: Optional[Union[Mapping[str, Array],
                                             Iterable[Tuple[Array, Array]]]] = None) -> None:
        """Adds gradients to the batch: a mapping of names to arrays, an iterable of pairs
        (parameter, gradient), or a loss of PyTorch's, whose backward pass this runs. Without any,
        what the .grad of PyTorch's parameters is, which stays as it is: zero_grad() comes before
        the next backward pass. Copies. What is refused leaves the batch as it was, but for the
        gradients that an iterator has given before."""
        fleet = self._bound()
        if gradients is None:
            gradients = self._gradients_of_tensors()
        if isinstance(gradients, Mapping):
            self._push_all(fleet, [self._checked(*pair) for pair in gradients.items()])
            return
        names = {_arrays.address_of(array): name for arrays in (self.parameters, self._views)
                 for name, array in arrays.items()}

        def checked(pair: Any) -> _Gradient:
            parameter, gradient = _pair("one of gradients", pair, "(parameter, gradient)")
            name = names.get(_arrays.address_of(parameter))
            if name is None:
                raise InvalidArgument("a pair's first is none of the parameters "
                                      f"{', '.join(self.parameters)}")
            return self._checked(name, gradient)

        if _torch.is_loss(gradients):
            _torch.backward_of(gradients)(
                lambda parameter, gradient: self._push_all(fleet, [checked((parameter, gradient))]))
        elif _arrays.is_tensor(gradients):
            loss: Any = gradients
            raise InvalidArgument(f"gradients is a tensor of shape {tuple(loss.shape)}, but a loss "
                                  "must be one number that requires a gradient")
        elif isinstance(gradients, Iterator):  # it may use a gradient's memory for the next one
            for pair in gradients:
                self._push_all(fleet, [checked(pair)])
        elif isinstance(gradients, Iterable) and not isinstance(gradients, (str, bytes)):
            self._push_all(fleet, [checked(pair) for pair in gradients])
        else:
            raise TypeError(f"gradients is {gradients!r}, but must be a mapping of names to arrays, an "
                            "iterable of pairs (parameter, gradient), or a loss of PyTorch's")

    def _gradients_of_tensors(self) -> Dict[str, Array]:
        found = {name: tensor.grad for name, tensor in self.parameters.items()
                 if getattr(tensor, "grad", None) is not None}
        if not found:
            raise InvalidArgument("gradients is None, but must be given: none of the parameters "
                                  f"{', '.join(self.parameters)} has a .grad of PyTorch's")
        return found

    def _checked(self, name: str, gradient: Array) -> _Gradient:
        if name not in self._numbers:
            raise InvalidArgument(f"gradients has {name!r}, but the parameters are "
                                  f"{', '.join(self._numbers)}")
        shape = numpy.shape(self.parameters[name])
        return (self._numbers[name],
                _arrays.floats_of(gradient, f"the gradient of {name}", shape))

    @staticmethod
    def _push_all(fleet: core.Fleet, gradients: Iterable[_Gradient]) -> None:
        for number, gradient in gradients:
            fleet.push_dense(number, gradient)

    def pull(self) -> None:
        """Writes the values to the parameters, in place: as of the last step() in Sync mode, this
        worker's own copy in Geo mode, what servers have now otherwise. A tensor whose .data is its
        view has them. Blocks."""
        fleet = self._bound()
        for name, array in self.parameters.items():
            if self._is_view(name):
                fleet.view_dense(self._numbers[name])  # the servers are there
            else:
                fleet.pull_dense(self._numbers[name],
                                 _arrays.writable(array, f"parameter {name}", tuple(array.shape)))

    def _is_view(self, name: str) -> bool:
        view = self._views.get(name)
        return (view is not None
                and _arrays.address_of(self.parameters[name]) == _arrays.address_of(view))

    def views(self) -> Dict[str, Array]:
        """The parameters by name where servers have them: no copies, the same arrays each time.
        They change within step() in Sync mode, and once this worker has stopped; otherwise at any
        time, an element at a time.

        Arrays are read-only. PyTorch knows nothing of that: a process that writes to a tensor ends
        by SIGSEGV. The memory stays as long as an array is there, after the servers, too, with the
        last values. A parameter of PyTorch's whose .data is its view gets memory of its own when
        the worker leaves. Raises InvalidArgument without shared=True, where a server is on another
        host, and in Geo mode; PeerLost for a server that has died."""
        fleet = self._bound()
        memory = {name: fleet.view_dense(number) for name, number in self._numbers.items()}
        if not self._views:
            self._views = {name: _arrays.view_of(memory[name], array)
                           for name, array in self.parameters.items()}
        return dict(self._views)

    def gradients(self) -> Dict[str, Array]:
        """Memory for the parameters' gradients by name, with anything in it: arrays, or tensors where
        the parameters are PyTorch's, which a backward pass writes (NumPy's out=) and push() gets.
        Servers read them where they lie, so push() copies nothing, with shared=True, of parameters
        of 4096 elements or more, if all servers are on this host; others push() copies.

        From push() on they are not to be written, and push() raises InvalidArgument for them, until
        servers have read them: in Sync mode within step(), so they are the same in each. Otherwise
        ask again after each step(): there are two of each in turns, and one that push() copies for
        when servers are behind. For one thread at a time."""
        fleet = self._bound()
        found: Dict[str, Array] = {}
        for name, number in self._numbers.items():
            memory: Any = fleet.gradient_memory(number)
            array = numpy.frombuffer(memory, numpy.float32)
            found[name] = self._gradients.setdefault((name, array.ctypes.data),
                                                     _arrays.array_of(array, self.parameters[name]))
        return found
