"""The gradients of an optimiser's parameters while they are averaged over the ranks."""

# mypy: disable-error-code="misc,import,no-untyped-call"

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple

import torch

from tutti.errors import InvalidArgument
from tutti.torch import _buckets
from tutti.torch._averages import Averages
from tutti.torch._buckets import Bucket, Managed
from tutti.torch._ranks import agree, described, names_of, run
from tutti.torch._work import TuttiWork, start

_DENSE, _SPARSE = 1, 2  # kinds of gradients that some rank has of a parameter


class Gradients:
    """Takes the gradients that backward() makes, sends them in buckets, all ranks in the same order,
    and gives parameters the averages.

    optimizer, named, group: whose, and what errors call them. notify: called before the first bucket
    of a step. passes_per_step, most_bytes, mode, options: see DistributedOptimizer. Collective.
    """

    def __init__(self, optimizer: torch.optim.Optimizer,
                 named: Optional[Iterable[Tuple[str, torch.Tensor]]], group: Any,
                 notify: Callable[[], None], passes_per_step: int, most_bytes: float, mode: str,
                 options: Mapping[str, Any]) -> None:
        self._optimizer = optimizer
        self._named = list(named) if named is not None else None
        self._group = group
        self._notify_others = notify
        self._passes_per_step = passes_per_step
        self._most_bytes = most_bytes
        self.managed: List[Managed] = []
        self.is_held = False  # by no_sync()
        self._known: Dict[int, int] = {}  # the place in it, by id() of the parameter
        self._hooked: List[bool] = []
        self._handles: List[Any] = []
        self._buckets: List[Bucket] = []
        self._places: Dict[int, Tuple[Bucket, int]] = {}  # of parameters that have a bucket
        self._order: List[int] = []  # in which gradients of those that have none came
        self._passes: List[int] = []
        self.averages = Averages(group.communicator, {}, mode, options)
        self._wire = None if self.averages.travels_as_it_is else torch.float32
        self.adopt()
        self.begin()
        weakref.finalize(self, _remove, self._handles)

    def adopt(self) -> None:
        """Takes note of parameters that are new. Collective."""
        names = names_of(self._optimizer, self._named)
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in self._known or not parameter.numel():
                    continue
                name = names[id(parameter)]
                if not parameter.is_floating_point():
                    raise TypeError(f"parameter '{name}' has dtype {parameter.dtype}, of which there "
                                    "are no averages")
                self._known[id(parameter)] = len(self.managed)
                self.managed.append(Managed(name, parameter))
                self._hooked.append(False)
                self._passes.append(0)
        agree(self._group, "parameter", [described(*one) for one in self.managed])
        self.averages.know({name: parameter.numel() for name, parameter in self.managed})
        self._hook()

    def _hook(self) -> None:
        """Also those that were frozen before."""
        me = weakref.ref(self)
        for index, (_, parameter) in enumerate(self.managed):
            if self._hooked[index] or not parameter.requires_grad:
                continue

            def arrived(_: torch.Tensor, index: int = index) -> None:
                gradients = me()
                if gradients is not None:
                    gradients._arrived(index)

            self._handles.append(parameter.register_post_accumulate_grad_hook(arrived))
            self._hooked[index] = True

    # While backward() runs.

    def begin(self) -> None:
        """Nothing is under way."""
        self._passes = [0] * len(self.managed)
        self._works: List[TuttiWork] = []
        self._next = 0  # the first bucket that was not sent
        self.has_notified = False
        self.are_averaged = False
        for bucket in self._buckets:
            bucket.begin()

    @torch.no_grad()
    def _arrived(self, index: int) -> None:
        """backward() has made a gradient."""
        self.are_averaged = False
        place = self._places.get(index)
        if self.is_held:
            if place is not None and place[0].is_written(place[1]):
                raise InvalidArgument(
                    f"the gradient of parameter '{self.managed[index].name}' was computed inside "
                    "no_sync() after its last pass before step()")
            return
        self._passes[index] += 1
        if self._passes[index] < self._passes_per_step:
            return
        if self._passes[index] > self._passes_per_step:
            raise InvalidArgument(
                f"the gradient of parameter '{self.managed[index].name}' was computed "
                f"{self._passes[index]} times since the last step(), but backward_passes_per_step "
                f"is {self._passes_per_step}: pass a larger one, or use no_sync()")
        if place is None:
            self._order.append(index)
            return
        place[0].take(place[1])
        while self._next < len(self._buckets) and self._buckets[self._next].complete:
            self._send_next()

    def _send_next(self) -> None:
        """All ranks send the same buckets in the same order."""
        self._notify()
        bucket = self._buckets[self._next]
        self._next += 1
        self._start(lambda: self.averages.average(bucket.names, bucket.flat))

    def _start(self, call: Callable[[], Any]) -> None:
        self._works.append(start(self._group._lane, [], call))

    def _wait(self) -> None:
        works, self._works = self._works, []
        for work in works:
            work.wait()

    def exchange(self) -> None:
        """Sends what was not sent, waits, and gives parameters the averages. Collective."""
        self._hook()
        self._notify()
        for index, (bucket, place) in self._places.items():
            if not bucket.is_written(place) and self.managed[index].parameter.grad is not None:
                bucket.take(place)
        while self._next < len(self._buckets):
            self._buckets[self._next].fill()
            self._send_next()
        kinds = torch.tensor([self._kind(one.parameter) for one in self.managed],
                             dtype=torch.uint8)
        communicator = self._group.communicator
        if len(kinds):
            self._start(lambda: communicator.all_reduce(kinds, None, "bor"))
        self._wait()
        self._add_buckets([index for index, kind in enumerate(kinds.tolist())
                           if kind & _DENSE and index not in self._places])
        sparse = self._sum_sparse([index for index, kind in enumerate(kinds.tolist())
                                   if kind & _SPARSE])
        for index, kind in enumerate(kinds.tolist()):
            self._give(index, bool(kind & _DENSE), sparse.get(index))
        self.averages.steps += 1
        self.begin()
        self.are_averaged = True

    def _kind(self, parameter: torch.Tensor) -> int:
        gradient = parameter.grad
        if gradient is None:
            return 0
        if gradient.is_sparse and gradient.sparse_dim() != 1:
            parameter.grad = gradient.to_dense()  # only that of an embedding is as expected
            return _DENSE
        return _SPARSE if gradient.is_sparse else _DENSE

    def _add_buckets(self, newcomers: List[int]) -> None:
        """Cuts the buckets of parameters that have none, and whose gradients have come for the first
        time, in rank 0's order, and sends them."""
        if not newcomers:
            return
        waiting = set(newcomers)
        came = [index for index in dict.fromkeys(self._order) if index in waiting]
        order = torch.tensor(came + sorted(waiting.difference(came), reverse=True))
        communicator = self._group.communicator
        self._order = []
        run(self._group, lambda: communicator.broadcast(order, 0))
        for indices in _buckets.cut(order.tolist(), self.managed, self._most_bytes, self._wire):
            bucket = run(self._group, lambda: _buckets.make(communicator, indices, self.managed,
                                                           self._wire))
            self._buckets.append(bucket)
            for place, index in enumerate(indices):
                self._places[index] = (bucket, place)
                bucket.take(place)
            self._send_next()
        self._wait()

    def _sum_sparse(self, indices: List[int]) -> Dict[int, torch.Tensor]:
        """The averages of those of which some rank has a sparse gradient."""
        sums: Dict[int, torch.Tensor] = {}
        for index in indices:
            parameter = self.managed[index].parameter
            gradient = parameter.grad
            if gradient is None or not gradient.is_sparse:
                gradient = torch.sparse_coo_tensor(
                    torch.empty((1, 0), dtype=torch.int64, device=parameter.device),
                    torch.empty((0, *parameter.shape[1:]), dtype=parameter.dtype,
                                device=parameter.device), parameter.shape)
            sums[index] = gradient
            self._start(lambda gradient=gradient: self.averages.average_sparse(gradient))
        self._wait()
        return sums

    def _give(self, index: int, is_dense: bool, sparse: Optional[torch.Tensor]) -> None:
        """Gives a parameter its average."""
        parameter = self.managed[index].parameter
        place = self._places.get(index)
        if place is None or not (is_dense or self.averages.keeps):
            if sparse is not None:
                parameter.grad = sparse
            return
        place[0].give(place[1])
        if sparse is not None:
            parameter.grad.add_(sparse)

    def _notify(self) -> None:
        if not self.has_notified:
            self.has_notified = True
            self._notify_others()

    def drop(self) -> None:
        """Parameters have none any more."""
        for _, parameter in self.managed:
            parameter.grad = None

    def refuse_under_way(self, what: str) -> None:
        """Throws InvalidArgument if some are."""
        if self._works:
            raise InvalidArgument(f"{what} was called while gradients are under way: call step() or "
                                  "synchronize() first")


def _remove(handles: List[Any]) -> None:
    for handle in handles:
        handle.remove()
