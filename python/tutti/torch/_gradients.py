"""The gradients of an optimiser's parameters while they are averaged over the ranks."""

# mypy: disable-error-code="misc,import,no-untyped-call"

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import torch

from tutti._agreement import gather
from tutti.errors import InvalidArgument, MismatchError
from tutti.torch import _buckets
from tutti.torch._averages import Averages, list_of
from tutti.torch._buckets import Bucket, Managed, laid_out
from tutti.torch._ranks import Named, agree, names_of, pairs_of, run
from tutti.torch._work import TuttiWork, start

_DENSE, _SPARSE = 1, 2  # kinds of gradients that some rank has of a parameter
_LOSS, _NO_LOSS, _CHANGED = 1, 2, 4  # what some rank has, or has done, in a step


class Gradients:
    """Takes the gradients that backward() makes, sends them in buckets, all ranks in the same order,
    and gives parameters the averages.

    optimizer, named, group: whose, and what errors call them. notify: called before the first bucket
    of a step. passes_per_step, most_bytes, mode, options: see DistributedOptimizer. Collective.
    """

    def __init__(self, optimizer: torch.optim.Optimizer,
                 named: Optional[Named], group: Any,
                 notify: Callable[[], None], passes_per_step: int, most_bytes: float, mode: str,
                 options: Mapping[str, Any]) -> None:
        self._optimizer = optimizer
        self._named = pairs_of(named)
        self._are_named = named is not None
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
        self._passes: List[int] = []
        self.averages = Averages(group.communicator, {}, mode, options)
        agree(group, "setting", [*self.averages.settings(), f"bucket size {most_bytes:g} bytes"])
        self._wire = None if self.averages.travels_as_it_is else torch.float32
        self.adopt()
        self.begin()
        weakref.finalize(self, _remove, self._handles)

    def adopt(self, named: Optional[Named] = None) -> None:
        """Takes note of parameters that are new; named: what they are called. Collective. It changes
        nothing where it fails."""
        pairs = [*self._named, *pairs_of(named)]
        names = names_of(self._optimizer, pairs, self._are_named)
        known, managed = dict(self._known), list(self.managed)
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in known and parameter.numel():
                    known[id(parameter)] = len(managed)
                    managed.append(Managed(names[id(parameter)], parameter))
        agree(self._group, "parameter", [laid_out(one) for one in managed])
        for name, parameter in managed:
            if not parameter.is_floating_point():
                raise TypeError(f"parameter '{name}' has dtype {parameter.dtype}, of which there "
                                "are no averages")
        more = len(managed) - len(self.managed)
        self._named, self._known, self.managed = pairs, known, managed
        self._hooked += [False] * more
        self._passes += [0] * more
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
        self._order: List[int] = []  # in which gradients of those came that have no bucket
        self._came: Dict[int, Tuple[torch.Tensor, int]] = {}  # what these were, and their versions
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
        _densify(self.managed[index].parameter)
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
            gradient = self.managed[index].parameter.grad
            if gradient is not None and not gradient.is_sparse:
                self._came[index] = gradient, gradient._version
            return
        place[0].take(place[1])
        while self._next < len(self._buckets) and self._buckets[self._next].complete:
            self._send_next()

    def _send_next(self) -> None:
        """All ranks send the same buckets in the same order."""
        self._notify()
        bucket = self._buckets[self._next]
        self._next += 1
        bucket.note()
        self._start(lambda: self.averages.average(bucket.names, bucket.flat), bucket.flat)

    def _start(self, call: Callable[[], Any], *tensors: torch.Tensor) -> None:
        self._works.append(start(self._group._lane, [], call, tensors))

    def _wait(self) -> None:
        works, self._works = self._works, []
        for work in works:
            work.wait()

    def exchange(self, loss: Optional[float] = None, has_left: bool = False) -> Optional[float]:
        """Sends what was not sent, waits, and gives parameters the averages. loss: of a closure. The
        average of the losses of all ranks, if they have some; that of a rank that has left its loop
        is zero, as its gradients are. Collective."""
        self._hook()
        self._notify()
        changed = self._changed()
        for _, parameter in self.managed:
            _densify(parameter)
        for index, (bucket, place) in self._places.items():
            if not bucket.is_written(place) and self.managed[index].parameter.grad is not None:
                bucket.take(place)
        while self._next < len(self._buckets):
            self._buckets[self._next].fill()
            self._send_next()
        mine = (0 if has_left else _NO_LOSS if loss is None else _LOSS) | (_CHANGED if changed else 0)
        everybody = torch.tensor([mine, *(_kind(one.parameter) for one in self.managed)],
                                 dtype=torch.uint8, device="cpu")
        communicator = self._group.communicator
        self._start(lambda: communicator.all_reduce(everybody, None, "bor"))
        self._wait()
        found, *kinds = everybody.tolist()
        if found & _CHANGED:
            self._refuse_changed(changed)
        average = self._average_loss(found, loss)
        self._add_buckets([index for index, kind in enumerate(kinds)
                           if kind & _DENSE and index not in self._places])
        sparse = self._sum_sparse([index for index, kind in enumerate(kinds) if kind & _SPARSE])
        for index, kind in enumerate(kinds):
            self._give(index, bool(kind & _DENSE), sparse.get(index))
        self.averages.steps += 1
        self.begin()
        self.are_averaged = True
        return average

    def _changed(self) -> List[str]:
        """The names of gradients of which some were changed since they were complete."""
        names = [name for bucket in self._buckets[:self._next] if bucket.was_changed()
                 for name in bucket.names]
        for index, (gradient, version) in self._came.items():
            name, parameter = self.managed[index]
            if parameter.grad is not gradient or gradient._version != version:
                names.append(name)
        return names

    def _refuse_changed(self, changed: List[str]) -> None:
        """On all ranks, those where nothing was changed, too."""
        mine = list_of(tuple(changed)).encode()
        names = run(self._group, lambda: gather(self._group.communicator, mine))
        where = "; ".join(f"on rank {rank}, among those of {text.decode()}"
                          for rank, text in enumerate(names) if text)
        raise InvalidArgument(f"gradients were changed while they were under way: {where}. Use "
                              f"clip_grad_norm(), or call synchronize() first{self._loss_of_a_step}")

    @property
    def _loss_of_a_step(self) -> str:
        """What errors say that come when gradients have been sent."""
        return (f". What mode {self.averages.mode!r} has sent of this step is lost, and the rest comes with "
                "later ones") if self.averages.keeps and self._buckets else ""

    def _average_loss(self, found: int, loss: Optional[float]) -> Optional[float]:
        if not found & _LOSS:
            return None
        if found & _NO_LOSS:
            raise MismatchError("step() had a closure that returned one number on some ranks, but not "
                                f"on others{self._loss_of_a_step}")
        total = torch.tensor([loss or 0.0], dtype=torch.float64, device="cpu")
        run(self._group, lambda: self._group.communicator.all_reduce(total, None, "average"))
        return float(total)

    def _add_buckets(self, newcomers: List[int]) -> None:
        """Cuts the buckets of parameters that have none, and whose gradients have come for the first
        time, in rank 0's order, and sends them."""
        if not newcomers:
            return
        # They may have been converted since they were adopted.
        agree(self._group, "parameter", [laid_out(self.managed[index]) for index in newcomers])
        waiting = set(newcomers)
        came = [index for index in dict.fromkeys(self._order) if index in waiting]
        order = torch.tensor(came + sorted(waiting.difference(came), reverse=True), device="cpu")
        communicator = self._group.communicator
        run(self._group, lambda: communicator.broadcast(order, 0))
        for indices in _buckets.cut(order.tolist(), self.managed, self._most_bytes, self._wire):
            bucket = run(self._group, lambda: _buckets.make(communicator, indices, self.managed,
                                                           self._wire),
                         [self.managed[indices[0]].parameter])
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
                                device=parameter.device), parameter.shape,
                    device=parameter.device, check_invariants=False)
            sums[index] = gradient
            self._start(lambda gradient=gradient: self.averages.average_sparse(gradient), gradient)
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


def _densify(parameter: torch.Tensor) -> None:
    """Only the sparse gradient of an embedding, in which whole rows are left out, travels as one."""
    gradient = parameter.grad
    if gradient is not None and gradient.is_sparse and gradient.sparse_dim() != 1:
        parameter.grad = gradient.to_dense()


def _kind(parameter: torch.Tensor) -> int:
    gradient = parameter.grad
    if gradient is None:
        return 0
    return _SPARSE if gradient.is_sparse else _DENSE


def _remove(handles: List[Any]) -> None:
    for handle in handles:
        handle.remove()
