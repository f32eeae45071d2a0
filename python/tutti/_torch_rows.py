"""Tables of which a pass gives few rows gradients, as torch.nn.Embedding(sparse=True) does. PyTorch itself
is never imported here."""

from __future__ import annotations

import math
import sys
from typing import Any, List

from tutti.errors import InvalidArgument


def is_sparse(gradient: Any) -> bool:
    """Whether this is a sparse tensor of PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(gradient, torch.Tensor) and bool(gradient.is_sparse)


def has_rows(gradient: Any, parameter: Any) -> bool:
    """Whether a sparse gradient is rows of a parameter that DistOpt takes as such."""
    return bool(gradient.sparse_dim() == 1 and gradient.shape == getattr(parameter, "shape", None)
                and _is_table(parameter))


def tables_of(model: Any) -> List[Any]:
    """The parameters of a model of PyTorch whose gradients are rows."""
    found = []
    for module in model.modules() if callable(getattr(model, "modules", None)) else ():
        weight = getattr(module, "weight", None)
        if getattr(module, "sparse", None) is True and _is_table(weight):
            found.append(weight)
    return found


def row_elements_of(parameter: Any, name: str) -> int:
    """How many elements a row of a table has."""
    shape = tuple(getattr(parameter, "shape", ()))
    if not shape or not getattr(parameter, "is_contiguous", lambda: True)():
        raise InvalidArgument(f"{name} is in sparse, but is no table whose rows lie one behind the other")
    return int(math.prod(shape[1:]))


def _is_table(parameter: Any) -> bool:
    torch = sys.modules.get("torch")
    return (torch is not None and isinstance(parameter, torch.Tensor) and parameter.dim() > 0
            and parameter.device.type == "cpu" and parameter.is_contiguous())


def sum_of(earlier: Any, gradient: Any) -> Any:
    """Of two gradients, either of which may be sparse, or the second None; `earlier` if it is dense."""
    if gradient is None:
        return earlier
    return gradient + earlier if earlier.is_sparse else earlier.add_(gradient)


def dense(gradient: Any, parameter: Any) -> Any:
    """A gradient that lies as its parameter does."""
    whole = gradient.to_dense() if gradient.is_sparse else gradient
    return (whole.contiguous() if parameter.is_contiguous() else whole).resolve_neg()


def rows(gradient: Any, dtype: Any) -> Any:
    """A sparse gradient as DistOpt takes it: the indices of its rows, and these."""
    if gradient.dtype != dtype:
        gradient = gradient.coalesce()  # what is there several times is added up in its own dtype
    values = gradient._values().to(dtype).contiguous().resolve_neg()
    return gradient._indices()[0].contiguous(), values
