"""Gradients that travel together: which do, and where they lie."""

# mypy: disable-error-code="misc,import"

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from tutti._agreement import described
from tutti.torch._memory import symmetric


class Managed(NamedTuple):
    """A parameter of an optimiser."""

    name: str
    parameter: torch.Tensor


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill a stretch of memory, in whatever order of the axes."""
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in
                               zip(tensor.shape, tensor.stride()) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def laid_out(one: Managed) -> str:
    """A line about a parameter that is alike on ranks whose gradients lie in the same order in a
    bucket, as they do not where one has channels_last."""
    name, tensor = one
    axes = [axis for axis, size in enumerate(tensor.shape) if size != 1]
    in_memory = sorted(axes, key=tensor.stride, reverse=True) if _is_dense(tensor) else axes
    order = "" if in_memory == axes else f", in memory by axes {', '.join(map(str, in_memory))}"
    return described(name, tensor) + order


class Bucket:
    """`flat` has the gradients of some parameters, one after the other; views[i] is that of the
    i-th, laid out as the parameter is."""

    def __init__(self, indices: List[int], managed: Sequence[Managed], flat: torch.Tensor) -> None:
        self.indices = indices
        self.names = tuple(managed[index].name for index in indices)
        self.flat = flat
        self.views: List[torch.Tensor] = []
        self._parameters = [managed[index].parameter for index in indices]
        self._sent: List[Tuple[torch.Tensor, torch.Tensor, int]] = []
        self._streams: List[Any] = []  # of a GPU, on which gradients were written
        self.begin()
        begin = 0
        for parameter in self._parameters:
            part = flat[begin:begin + parameter.numel()]
            begin += parameter.numel()
            self.views.append(part.as_strided(parameter.shape, parameter.stride())
                              if _is_dense(parameter) else part.view(parameter.shape))

    @property
    def complete(self) -> bool:
        """Whether all gradients are there."""
        return self._missing == 0

    def is_written(self, place: int) -> bool:
        """Whether a gradient is there."""
        return self._written[place]

    def take(self, place: int) -> None:
        """The gradient of a parameter is there: from now on it lies here, if it may. One that is
        sparse travels apart."""
        view, parameter = self.views[place], self._parameters[place]
        gradient = parameter.grad
        self._missing -= not self._written[place]
        self._written[place] = True
        if gradient is None or gradient.is_sparse:
            view.zero_()
        elif gradient.data_ptr() != view.data_ptr():
            view.copy_(gradient)
            if view.dtype == parameter.dtype:
                parameter.grad = view
        if view.is_cuda:
            stream = torch.cuda.current_stream(view.device)
            if stream not in self._streams:
                self._streams.append(stream)

    def fill(self) -> None:
        """What is not there is zero."""
        for view, written in zip(self.views, self._written):
            if not written:
                view.zero_()

    def note(self) -> None:
        """It is sent now, after what has written it: what is in it may not change any more."""
        for stream in self._streams:
            torch.cuda.current_stream(self.flat.device).wait_stream(stream)
        self._streams = []
        self._sent = [(parameter, parameter.grad, parameter.grad._version)
                      for parameter in self._parameters
                      if parameter.grad is not None and not parameter.grad.is_sparse]

    def was_changed(self) -> bool:
        """Whether somebody has written to a gradient, or replaced it, since it was sent. A view has
        the version of all that lies in its memory."""
        return any(parameter.grad is not gradient or gradient._version != version
                   for parameter, gradient, version in self._sent)

    def begin(self) -> None:
        """A step begins: no gradient is there."""
        self._sent = []
        self._written = [False] * len(self.indices)
        self._missing = len(self.indices)

    def give(self, place: int) -> None:
        """Makes what is here the gradient of a parameter."""
        view, parameter = self.views[place], self._parameters[place]
        if view.dtype == parameter.dtype:
            parameter.grad = view
        else:
            parameter.grad = view.to(parameter.dtype)


def cut(order: Sequence[int], managed: Sequence[Managed], most_bytes: float,
        wire: Optional[torch.dtype]) -> List[List[int]]:
    """Which gradients travel together, in the order in which they come: those of one type and
    device, of at most `most_bytes` unless one alone has more. wire: the type in which all travel, if
    not in their own. A bucket stands where its last gradient comes."""
    closed: List[List[int]] = []
    open_ones: Dict[Any, List[int]] = {}
    sizes: Dict[Any, int] = {}
    for index in order:
        parameter = managed[index].parameter
        dtype = wire or parameter.dtype
        kind = (dtype, parameter.device)
        size = parameter.numel() * torch.empty(0, dtype=dtype).element_size()
        if kind in open_ones and sizes[kind] + size > most_bytes:
            closed.append(open_ones.pop(kind))
        if kind not in open_ones:
            sizes[kind] = 0
        open_ones.setdefault(kind, []).append(index)
        sizes[kind] += size
    closed.extend(open_ones.values())
    when = {index: i for i, index in enumerate(order)}
    return sorted(closed, key=lambda indices: when[indices[-1]])


def make(communicator: Any, indices: List[int], managed: Sequence[Managed],
         wire: Optional[torch.dtype]) -> Bucket:
    """A bucket with its memory. Collective."""
    parameters = [managed[index].parameter for index in indices]
    count = sum(parameter.numel() for parameter in parameters)
    device = parameters[0].device
    flat = (symmetric(communicator, count, parameters[0].dtype, device) if wire is None else
            torch.empty(count, dtype=wire, device=device))
    return Bucket(indices, managed, flat)
