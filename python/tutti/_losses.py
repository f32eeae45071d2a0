"""What may stand for a loss: pairs of parameters and gradients, or PyTorch's scalar."""

from __future__ import annotations

from typing import Any, Callable

from tutti import _torch
from tutti._torch_parameters import TorchParameters
from tutti._types import Emit


def name_of(thing: Any) -> str:
    """A thing's type for a message: "int", "torch.optim.adam.Adam"."""
    kind = type(thing)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def is_array(thing: Any) -> bool:
    """Whether this describes memory, in one of the ways that arrays do."""
    protocols = ("__array_interface__", "__cuda_array_interface__", "__dlpack__")
    return any(hasattr(thing, protocol) for protocol in protocols)


def backward_of(loss: Any, parameters: TorchParameters) -> Callable[[Emit], None]:
    """What calls emit(param, grad) for each pair that `loss` stands for."""
    if _torch.is_loss(loss):
        return parameters.backward_of(loss)
    wanted = "an iterable of (param, grad), or a PyTorch scalar that requires grad"
    if is_array(loss):  # its rows are no pairs, even where there are two numbers in each
        shape = getattr(loss, "shape", None)
        of_shape = "" if shape is None else f" of shape {tuple(shape)}"
        raise TypeError(f"loss is a {name_of(loss)}{of_shape}, but must be {wanted}")
    try:
        pairs = iter(loss)
    except TypeError:
        raise TypeError(f"loss is a {name_of(loss)}, but must be {wanted}") from None

    def run(emit: Emit) -> None:
        for pair in pairs:
            try:
                if not isinstance(pair, tuple) and is_array(pair):
                    raise TypeError
                param, grad = pair
            except (TypeError, ValueError):
                raise TypeError(
                    f"loss must yield pairs (param, grad), not a {name_of(pair)}"
                ) from None
            emit(param, grad)

    return run
