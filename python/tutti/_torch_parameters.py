"""PyTorch's parameters as DistOpt has them: what stands in for those that it does not update where they
lie, and gradients of several passes. PyTorch itself is never imported here."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy
import numpy.typing as npt

from tutti import _torch, _torch_rows
from tutti._types import Emit
from tutti.errors import InvalidArgument


def is_tensor(thing: Any) -> bool:
    """Whether this is a tensor of PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.Tensor)


def _order_of(tensor: Any) -> Optional[List[int]]:
    """In which order of its dimensions the elements lie one after the other, as those of
    channels_last do; None if in C order, or in none."""
    if tensor.is_contiguous():
        return None
    strides = [-int(stride) for stride in tensor.stride()]
    order = sorted(range(len(strides)), key=strides.__getitem__)
    return order if tensor.permute(order).is_contiguous() else None


def layout_of(parameter: Any) -> str:
    """What ranks compare of a tensor whose elements do not lie in C order: its shape, and the order of its
    axes in memory. Empty of anything else, where the shape says it all."""
    order = _order_of(parameter) if is_tensor(parameter) else None
    if order is None:
        return ""
    axes = ", ".join(str(axis) for axis in order if parameter.shape[axis] != 1)
    return f"{tuple(parameter.shape)} with the axes in the order {axes}"


def _in_memory_order(tensor: Any) -> Any:
    order = _order_of(tensor)
    return tensor if order is None else tensor.permute(order)


class _Master(NamedTuple):
    """A parameter of another dtype than float32, and the copy that is updated."""

    parameter: Any
    copy: Any


class TorchParameters:
    """Those of one DistOpt."""

    def __init__(self, float64_as_float32: bool) -> None:
        self.registered: List[Any] = []
        # By its id: what is registered, and its name, as "parameter 'weight'".
        self.named: Dict[int, Tuple[Any, str]] = {}
        self._float64_as_float32 = float64_as_float32
        self._masters: Dict[int, _Master] = {}  # by the parameter's address
        # By its id: a parameter, and the sum of its gradients in passes of this step.
        self._accumulated: Dict[int, Tuple[Any, Any]] = {}
        # By its id: a parameter, in the order in which the first step that ended well emitted them.
        self._order: Dict[int, Any] = {}
        self._emitted: Dict[int, Any] = {}  # by a step that may become the first

    # --- What stands in for a parameter -----------------------------------------------------------

    def stand_in(self, parameter: Any, name: Optional[str] = None) -> Any:
        """What DistOpt updates for this one: itself, a view of it in C order, or a copy in
        float32."""
        if not is_tensor(parameter):
            return parameter
        torch = sys.modules["torch"]
        if parameter.dtype == torch.float32:
            in_c_order = _order_of(parameter) is None  # or in none, which is refused
            return parameter if in_c_order else _in_memory_order(parameter.detach())
        if parameter.dtype == torch.float64 and not self._float64_as_float32:
            name = name or f"a parameter of shape {tuple(parameter.shape)}"
            raise InvalidArgument(f"{name} is float64, and DistOpt updates float32: with "
                                  "float64_as_float32=True it trains copies in float32, and "
                                  "tutti.torch.DistributedOptimizer trains float64 as it is")
        if parameter.dtype not in (torch.float16, torch.bfloat16, torch.float64):
            return parameter  # which is refused
        if parameter.numel() == 0:
            return parameter.detach().float()
        master = self._masters.get(parameter.data_ptr())
        if master is None:
            master = _Master(parameter, parameter.detach().to(torch.float32))
            self._masters[parameter.data_ptr()] = master
        return _in_memory_order(master.copy)

    @contextlib.contextmanager
    def registering(self) -> Iterator[None]:
        """Has the copies of what is registered inside, and no others; on an error those of before."""
        earlier, self._masters = self._masters, {}
        try:
            yield
        except BaseException:
            self._masters = earlier
            raise

    def emitting(self, emit: Emit) -> Emit:
        """An emit that takes parameters and gradients as they are, in a step that begins."""
        self._emitted = {}

        def emit_pair(parameter: Any, gradient: Any) -> None:
            emit(*self._sparse_pair(parameter, gradient) if _torch_rows.is_sparse(gradient)
                 else self.pair(parameter, gradient))
            if not self._order and is_tensor(parameter):
                self._emitted[id(parameter)] = parameter

        return emit_pair

    def pair(self, parameter: Any, gradient: Any) -> Tuple[Any, Any]:
        """What DistOpt takes for a parameter and its gradient."""
        standing = self.stand_in(parameter)
        if standing is parameter:
            return parameter, gradient
        if not is_tensor(gradient):  # one of register_parameters(), say
            gradient = sys.modules["torch"].as_tensor(gradient)
        if gradient.shape != parameter.shape:
            _, name = self.named.get(id(parameter), (None, "the parameter"))
            raise InvalidArgument(f"gradient has shape {tuple(gradient.shape)}, but {name} has shape "
                                  f"{tuple(parameter.shape)}")
        if gradient.dtype == parameter.dtype:
            gradient = gradient.to(standing.dtype)
        order = _order_of(parameter)
        return standing, (gradient if order is None else gradient.permute(order)).contiguous()

    def _sparse_pair(self, parameter: Any, gradient: Any) -> Tuple[Any, Any]:
        """The same, of a sparse gradient."""
        if not _torch_rows.has_rows(gradient, parameter):
            return self.pair(parameter, _torch_rows.dense(gradient, parameter))
        standing = self.stand_in(parameter)
        return standing, _torch_rows.rows(gradient, standing.dtype)

    @staticmethod
    def as_parameter(gradients: Any, parameter: Any) -> Any:
        """An array for gradients in the shape of what stands in, in that of the parameter."""
        order = _order_of(parameter) if is_tensor(parameter) else None
        if order is None:
            return gradients
        back = sorted(range(len(order)), key=order.__getitem__)
        if isinstance(gradients, numpy.ndarray):
            return gradients.transpose(back)
        return sys.modules["torch"].from_dlpack(gradients).permute(back)

    def read(self) -> None:
        """Takes over what was written to parameters that have copies since write()."""
        for parameter, copy in self._masters.values():
            torch = sys.modules["torch"]
            now = parameter.detach()
            copy.copy_(torch.where(copy.to(now.dtype) == now, copy, now.to(copy.dtype)))

    def write(self) -> None:
        """Gives parameters that have copies the values of these, rounded."""
        for parameter, copy in self._masters.values():
            with sys.modules["torch"].no_grad():
                parameter.copy_(copy)

    def masters(self) -> Optional[npt.NDArray[numpy.float32]]:
        """The copies, one after the other, None if there are none."""
        if not self._masters:
            return None
        self.read()
        parts = [_in_memory_order(master.copy).reshape(-1).cpu().numpy()
                 for master in self._masters.values()]
        together: npt.NDArray[numpy.float32] = numpy.concatenate(parts)
        return together

    def check_masters(self, values: Any) -> None:
        """Refuses anything but what masters() would return."""
        wanted = sum(master.copy.numel() for master in self._masters.values())
        if values is not None and (getattr(values, "ndim", None) != 1
                                   or not str(values.dtype).endswith("float32")):
            raise InvalidArgument("the state's array 'dist.master' must be float32 of one dimension")
        count = 0 if values is None else len(values)
        if count != wanted:
            raise InvalidArgument(f"the state's array 'dist.master' has {count} elements, but the "
                                  f"float32 copies of parameters have {wanted}")

    def load_masters(self, values: Any) -> None:
        """Goes on from masters()."""
        torch = sys.modules.get("torch")
        begin = 0
        for master in self._masters.values():
            assert torch is not None
            end = begin + master.copy.numel()
            target = _in_memory_order(master.copy)
            part = numpy.array(values[begin:end], numpy.float32)
            target.copy_(torch.from_numpy(part).view(target.shape))
            begin = end
        self.write()

    # --- Backward passes --------------------------------------------------------------------------

    def _leaves_of(self, nodes: List[Any], hidden: bool) -> List[Any]:
        """What a pass over these nodes gives gradients."""
        if not hidden:
            return [node.variable for node in nodes]
        if not self.registered:
            raise InvalidArgument(
                "loss was computed under torch.utils.checkpoint with use_reentrant=True, which hides "
                "the parameters of its layers from the graph: pass use_reentrant=False, or call "
                "register_parameters(model) first")
        return self.registered[::-1]

    def backward_of(self, loss: Any) -> Callable[[Emit], None]:
        """Runs loss.backward(), and calls emit for each leaf when its gradient is complete, that of
        accumulate() included, and those that the first step emitted before it have gone out; at the
        end where the graph hides leaves."""
        nodes, hidden = _torch.accumulators(loss)
        leaves = self._leaves_of(nodes, hidden)

        def run(emit: Emit) -> None:
            rest = dict(self._accumulated)
            of_pass = {id(leaf) for leaf in leaves} | set(rest)
            waiting = [key for key in self._order if key in of_pass][::-1]  # the next is the last
            complete: Dict[int, Any] = {}  # and not emitted yet

            def complete_gradient(leaf: Any) -> None:
                earlier = rest.pop(id(leaf), None)
                if earlier is not None:
                    leaf.grad = _torch_rows.sum_of(earlier[1].clone(), leaf.grad)
                if leaf.grad is None:  # a function of the user's may give it none
                    return
                if id(leaf) not in self._order:
                    emit(leaf, _emittable(leaf))
                    return
                complete[id(leaf)] = leaf
                while waiting and waiting[-1] in complete:
                    emit_next()

            def emit_next() -> None:
                leaf = complete.pop(waiting.pop(), None)
                if leaf is not None:
                    emit(leaf, _emittable(leaf))

            with self._making_gradients(leaves + [leaf for leaf, _ in rest.values()]):
                if hidden:
                    loss.backward()
                    for leaf in leaves:
                        complete_gradient(leaf)
                else:
                    _torch.run_backward(loss, nodes, complete_gradient)
                for leaf, _ in list(rest.values()):
                    complete_gradient(leaf)
                while waiting:
                    emit_next()

        return run

    @contextlib.contextmanager
    def _making_gradients(self, leaves: List[Any]) -> Iterator[None]:
        """Passes inside start from no gradients. Those that a DistOpt has not left would be lost, and
        are refused."""
        for leaf in leaves:
            if leaf.grad is not None and not _is_left_over(leaf.grad):
                _, name = self.named.get(id(leaf), (None, f"a parameter of shape {tuple(leaf.shape)}"))
                raise InvalidArgument(f"{name} has a gradient of a backward pass that this DistOpt did not "
                                      "run, which the step would lose: call accumulate(loss) instead of "
                                      "loss.backward(), or zero_grad() if it is not wanted")
        for leaf in leaves:
            leaf.grad = None
        try:
            yield
        finally:
            for leaf in leaves:
                if leaf.grad is not None:
                    leaf.grad._tutti_version = leaf.grad._version

    def accumulate(self, loss: Any) -> None:
        """Runs loss.backward(), and keeps the gradients for the next step."""
        leaves = self._leaves_of(*_torch.accumulators(loss))
        with self._making_gradients(leaves):
            loss.backward()
            for leaf in leaves:
                if leaf.grad is None:
                    continue
                earlier = self._accumulated.get(id(leaf))
                if earlier is not None:
                    leaf.grad = _torch_rows.sum_of(earlier[1], leaf.grad)
                self._accumulated[id(leaf)] = leaf, leaf.grad

    def forget(self) -> None:
        """Drops what was accumulated."""
        self._accumulated.clear()

    def end_step(self) -> None:
        """A step has ended well."""
        self._order = self._order or self._emitted
        self.forget()
        self.write()


def _is_left_over(gradient: Any) -> bool:
    """Whether a gradient is as a step, or accumulate(), has left it, or zero."""
    if getattr(gradient, "_tutti_version", None) == gradient._version:
        return True
    return not bool((gradient._values() if gradient.is_sparse else gradient).any())


def _emittable(leaf: Any) -> Any:
    """Its gradient as a pass emits it."""
    return leaf.grad if leaf.grad.is_sparse else _torch_rows.dense(leaf.grad, leaf)
