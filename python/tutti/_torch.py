"""PyTorch's losses as backward passes, and gradients as they are made. PyTorch itself is never
imported here."""

from __future__ import annotations

import sys
from typing import Any, Callable, Iterable, List, Optional, Tuple

from tutti.errors import InvalidArgument


def is_loss(loss: Any) -> bool:
    """Whether this is a PyTorch scalar that requires grad."""
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and isinstance(loss, torch.Tensor)
        and loss.numel() == 1
        and loss.grad_fn is not None
    )


def accumulators(loss: Any) -> Tuple[List[Any], bool]:
    """The nodes of the graph that add to the .grad of a leaf, and whether it hides some, as that of
    torch.utils.checkpoint with use_reentrant=True does."""
    root = loss.grad_fn
    found, seen, stack, hidden = [], {root}, [root], False
    while stack:
        node = stack.pop()
        kind = type(node).__name__  # a node of the user's may have any attribute, "variable" too
        if kind == "AccumulateGrad":
            found.append(node)
        hidden = hidden or kind == "CheckpointFunctionBackward"
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return found, hidden


def run_backward(loss: Any, nodes: Iterable[Any], done: Callable[[Any], None]) -> None:
    """Runs loss.backward(), and calls done(leaf) for each of `nodes` as soon as leaf.grad is
    complete."""

    def hook_of(leaf: Any) -> Callable[[Any, Any], None]:
        return lambda inputs, outputs: done(leaf)

    handles = [node.register_hook(hook_of(node.variable)) for node in nodes]
    try:
        loss.backward()
    finally:
        for handle in handles:
            handle.remove()


def backward_of(loss: Any) -> Callable[[Callable[[Any, Any], None]], None]:
    """Runs loss.backward(), and calls emit for each leaf as soon as its gradient is complete."""
    nodes, hidden = accumulators(loss)
    if hidden:
        raise InvalidArgument(
            "loss was computed under torch.utils.checkpoint with use_reentrant=True, which "
            "hides the parameters of its layers from the graph: pass use_reentrant=False"
        )

    def run(emit: Callable[[Any, Any], None]) -> None:
        def emit_gradient(leaf: Any) -> None:
            if leaf.grad is not None:  # a function of the user's may give it none
                emit(leaf, leaf.grad.contiguous().resolve_neg())

        for node in nodes:
            node.variable.grad = None  # or this pass would add to that of the last step
        run_backward(loss, nodes, emit_gradient)

    return run


def _kind_of(thing: Any) -> str:
    """The type's name, and of which version of which package it is: PyTorch's may be too old."""
    package = type(thing).__module__.partition(".")[0]
    version = getattr(sys.modules.get(package), "__version__", "")
    return f"{type(thing).__name__} of {package} {version}" if version else type(thing).__name__


class GradientHooks:
    """Has callback(parameter, gradient) called in every backward pass, for each of some parameters
    as soon as its gradient is complete, and callback.flush(), if there is one, at the pass's end.

    The gradient is that of this pass alone: what .grad held before is added when the pass ends.
    A callback may return another one in its place.
    """

    def __init__(self, parameters: Iterable[Any], callback: Callable[[Any, Any], Any]) -> None:
        self._callback = callback
        self._earlier: List[Tuple[Any, Any]] = []  # parameters, and what .grad held before the pass
        self._pass: Optional[int] = None  # the number of the one that has not ended
        self._has_called = False  # whether the callback has had a gradient of it
        self._handles: List[Any] = []
        for parameter in parameters:
            if not hasattr(parameter, "register_post_accumulate_grad_hook"):
                raise InvalidArgument(f"a parameter is a {_kind_of(parameter)}, but must be a tensor of "
                                      "PyTorch, 2.1 or later")
            if not parameter.requires_grad:  # as those of frozen layers
                continue
            self._handles.append(parameter.register_hook(self._before(parameter)))
            self._handles.append(parameter.register_post_accumulate_grad_hook(self._after))

    def remove(self) -> None:
        """Ends it. Of a pass that has failed .grad is what it was before."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._put_back()

    def give_up(self) -> None:
        """Forgets a pass that has failed: .grad is what it was before."""
        self._pass = None
        self._has_called = False
        self._put_back()
        getattr(self._callback, "give_up", lambda: None)()

    def _put_back(self) -> None:
        earlier, self._earlier = self._earlier, []
        for parameter, gradient in earlier:
            parameter.grad = gradient

    def _before(self, parameter: Any) -> Callable[[Any], None]:
        def set_aside(gradient: Any) -> None:
            self._begin()
            if parameter.grad is not None:
                self._earlier.append((parameter, parameter.grad))
                parameter.grad = None

        return set_aside

    def _begin(self) -> None:
        torch = sys.modules["torch"]
        number = torch._C._current_graph_task_id()
        if number == self._pass:
            return
        if self._pass is not None:
            raise InvalidArgument(
                "a backward pass began before the last one had ended. If that one failed, remove() "
                "what attach() gave, and attach a new callback; if it goes on, this pass is inside of "
                "it, as torch.utils.checkpoint with use_reentrant=True has it: pass "
                "use_reentrant=False")
        self._pass = number
        torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _after(self, parameter: Any) -> None:
        self._has_called = True
        gradient = parameter.grad.contiguous().resolve_neg()
        replaced = self._callback(parameter, gradient)
        parameter.grad = gradient if replaced is None else replaced

    def _end(self) -> None:
        has_called, self._has_called, self._pass = self._has_called, False, None
        try:
            if has_called:
                getattr(self._callback, "flush", lambda: None)()
        except BaseException:
            self._put_back()
            raise
        earlier, self._earlier = self._earlier, []
        for parameter, gradient in earlier:  # torch.autograd.grad() leaves .grad alone
            parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)
