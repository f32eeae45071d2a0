"""Parameters and gradients of all ranks: equal starts, and sums while the backward pass goes on."""

from __future__ import annotations

import zlib
from typing import Any, Dict, Iterable, List, Literal, Mapping, Optional, Tuple, Union

import numpy

from tutti import _torch, helpers, opt
from tutti._checks import check_kind
from tutti._core import Stream
from tutti._types import Array
from tutti.distributed import _arrays, _world
from tutti.distributed._world import WORLD, Group, communicator_of
from tutti.errors import InvalidArgument, MismatchError

_SHORT = ("float16", "bfloat16")
_PACK_BYTES = 10 << 20  # MegEngine's: what has as many bytes travels at once


def bcast_list_(inps: Union[Mapping[str, Array], Iterable[Array]], group: Group = WORLD) -> None:
    """Gives every rank of the group the arrays of its first one, in place: net.parameters() say, in
    the same order on all ranks. Collective and blocking."""
    helpers.broadcast_parameters(inps, communicator_of(group))


class _Pack:
    """Gradients of one dtype, on one device, that will travel together."""

    def __init__(self) -> None:
        self.gradients: List[Any] = []
        self.bytes = 0


class AllreduceCallback:
    """Sums gradients over the ranks of a group while others are still being made; see
    make_allreduce_cb()."""

    def __init__(
        self,
        reduce_method: Literal["sum", "mean"],
        group: Group = WORLD,
        backend: Optional[str] = None,
    ) -> None:
        if reduce_method not in ("sum", "mean"):
            raise InvalidArgument(f"reduce_method is {reduce_method!r}, but must be 'sum' or 'mean'")
        _world.check_choices(None, backend)
        check_kind("group", group, (Group,))
        self._mean = reduce_method == "mean"
        self._group = group
        self._sums: Optional[opt.DistOpt] = None
        self._stream: Optional[Stream] = None  # of averages
        self._averages: List[Tuple[List[Any], Any]] = []  # under way: gradients, and these as they travel
        self._packs: Dict[Tuple[str, str], _Pack] = {}
        self._under_way: List[Any] = []
        # Attached parameters and their numbers, by id(), which others get once they are gone.
        self._numbers: Dict[int, Tuple[Any, int]] = {}
        self._order: List[int] = []  # of this pass: these numbers; of others negative lengths

    def __call__(self, param: Array, grad: Array) -> Any:
        """Takes a gradient, whose sum or mean over the ranks is in the same memory once flush() has
        returned; until then it is left alone. All ranks of the group pass the same gradients in the
        same order. Starts to send as soon as 10 MiB have come."""
        gradient = _arrays.as_array(grad, "grad")
        dtype = _arrays.dtype_name(gradient)
        if self._mean and "float" not in dtype:
            raise InvalidArgument(f"grad has dtype {dtype}, of which there is no mean: "
                                  "use make_allreduce_cb('sum')")
        unknown = (param, -int(numpy.prod(gradient.shape)))
        self._order.append(self._numbers.get(id(param), unknown)[1])
        device = str(gradient.device) if _arrays.is_tensor(gradient) else "cpu"
        pack = self._packs.setdefault((dtype, device), _Pack())
        pack.gradients.append(gradient)
        pack.bytes += gradient.nbytes
        if pack.bytes >= _PACK_BYTES:
            self._send(self._packs.pop((dtype, device)))
        return gradient

    def _send(self, pack: _Pack) -> None:
        if self._mean and _arrays.dtype_name(pack.gradients[0]) in _SHORT:
            self._send_average(pack.gradients)
        else:
            self._send_sum(pack)
        self._under_way += pack.gradients

    def _send_average(self, gradients: List[Any]) -> None:
        """A sum of 16 bits may be too large where the mean is not, and would be rounded before it."""
        if self._stream is None:
            self._stream = Stream()
        together = _arrays.flat(gradients)
        self._group.communicator.all_reduce(together, op="average", stream=self._stream)
        self._averages.append((gradients, together))

    def _send_sum(self, pack: _Pack) -> None:
        if self._sums is None:
            self._sums = opt.DistOpt(communicator=self._group.communicator)
        if len(pack.gradients) == 1:
            self._sums.all_reduce(pack.gradients[0])
        else:
            self._sums.fused_all_reduce(pack.gradients, send=False)
            self._sums.fused_all_reduce(pack.gradients)

    def flush(self) -> None:
        """Ends it: sends what is left, and blocks until all sums are there. Collective. Called by
        itself at the end of a backward pass of PyTorch's. Where it fails, nothing is under way."""
        try:
            for key in sorted(self._packs):
                self._send(self._packs.pop(key))
            order = self._order[:20]
            is_same = self._is_order_the_same()
            self._wait()
        except BaseException:
            self.give_up()
            raise
        if not is_same:
            raise MismatchError(
                "the ranks made their gradients in different orders, or not of the same parameters; "
                f"this rank: {order} (numbers of attached ones, negative lengths of others)")

    def _wait(self) -> None:
        if self._sums is not None:
            self._sums.wait()
        if self._stream is not None:
            self._stream.synchronize()
        for gradients, together in self._averages:
            _arrays.assign_parts(gradients, together)
        self._averages.clear()
        gradients, self._under_way = self._under_way, []
        for gradient in gradients:
            if self._mean and _arrays.dtype_name(gradient) not in _SHORT:
                gradient /= self._group.size

    def _is_order_the_same(self) -> bool:
        """On all ranks. Gradients of equal length that came in different orders would be mixed up
        unseen."""
        order, self._order = self._order, []
        if self._sums is None and self._stream is None:  # nothing was ever sent
            return True
        mine = zlib.crc32(numpy.array(order, numpy.int64).tobytes())
        both = numpy.array([mine, -mine], numpy.int64)
        self._group.communicator.all_reduce(both, op="max")
        return bool(both[0] == -both[1])

    def give_up(self) -> None:
        """Forgets the gradients of a pass that has failed. If some are on their way, the other
        ranks are told: PeerLost."""
        if self._under_way:
            self._group.communicator.abort("its backward pass failed when gradients had been sent")
        self._packs.clear()
        self._under_way.clear()
        self._averages.clear()
        self._order.clear()

    def attach(self, parameters: Iterable[Any]) -> _torch.GradientHooks:
        """PyTorch: from now on loss.backward() itself sums the gradients of these parameters, the
        same on all ranks in the same order, and ends with the sums in .grad. What .grad held before
        is added after that. remove() of what this returns ends it. Local."""
        listed = list(parameters)
        self.number(listed)
        return _torch.GradientHooks(listed, self)

    def number(self, parameters: Iterable[Any]) -> None:
        """Of these parameters, alike on all ranks, the order of gradients is compared by what they
        are, not only by their lengths. Local; attach() does it."""
        for parameter in parameters:
            self._numbers.setdefault(id(parameter), (parameter, len(self._numbers)))


def make_allreduce_cb(
    reduce_method: Literal["sum", "mean"], group: Group = WORLD, backend: Optional[str] = None
) -> AllreduceCallback:
    """What makes the gradients of all ranks their sum, or their mean.

        gm = GradManager().attach(net.parameters(), callbacks=[make_allreduce_cb("mean")])
        make_allreduce_cb("mean").attach(net.parameters())      # or, with PyTorch: loss.backward()
        cb(param, grad) for each gradient, then cb.flush()      # or, with NumPy

    They travel in packs of 10 MiB through DistOpt's fused sums, while later ones are being made.
    group: whose gradients are summed. backend: not to be given; see override_backend(). Local.
    """
    return AllreduceCallback(reduce_method, group, backend)
