"""PyTorch's losses as backward passes. PyTorch itself is never imported here."""

from __future__ import annotations

import sys
from typing import Any, Callable, List

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


def _accumulators(root: Any) -> List[Any]:
    """The nodes of the graph that add to the .grad of a leaf."""
    found, seen, stack = [], {root}, [root]
    while stack:
        node = stack.pop()
        kind = type(node).__name__  # a node of the user's may have any attribute, "variable" too
        if kind == "AccumulateGrad":
            found.append(node)
        elif kind == "CheckpointFunctionBackward":
            raise InvalidArgument(
                "loss was computed under torch.utils.checkpoint with use_reentrant=True, which "
                "hides the parameters of its layers from the graph: pass use_reentrant=False"
            )
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return found


def backward_of(loss: Any) -> Callable[[Callable[[Any, Any], None]], None]:
    """Runs loss.backward(), and calls emit for each leaf as soon as its gradient is complete."""
    nodes = _accumulators(loss.grad_fn)

    def run(emit: Callable[[Any, Any], None]) -> None:
        def emit_of(leaf: Any) -> Callable[[Any, Any], None]:
            return lambda inputs, outputs: emit(leaf, leaf.grad.contiguous().resolve_neg())

        for node in nodes:
            node.variable.grad = None  # or this pass would add to that of the last step
        handles = [node.register_hook(emit_of(node.variable)) for node in nodes]
        try:
            loss.backward()
        finally:
            for handle in handles:
                handle.remove()

    return run
