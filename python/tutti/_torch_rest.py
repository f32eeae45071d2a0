"""What a PyTorch model has besides the parameters that are trained: frozen ones and buffers, such as the
statistics of BatchNorm. PyTorch itself is never imported here."""

from __future__ import annotations

import sys
from typing import Any, List, Tuple

from tutti import _agreement, _core
from tutti._torch_parameters import is_tensor

Rest = List[Tuple[str, Any]]


def rest_of(model: Any) -> Rest:
    """The frozen parameters, then the buffers, each in the model's order; without what has no plain
    memory, as sparse ones."""
    pairs = [(name, one) for name, one in model.named_parameters() if is_tensor(one) and not one.requires_grad]
    pairs += getattr(model, "named_buffers", list)()
    torch = sys.modules.get("torch")
    return [(name, one) for name, one in pairs if torch is not None and is_tensor(one)
            and one.layout == torch.strided and not one.is_meta and not one.is_quantized]


def compare(communicator: _core.Communicator, rest: Rest) -> None:
    """MismatchError unless all ranks have the same, in the same order. Collective and blocking."""
    _agreement.compare(communicator, "frozen parameter or buffer",
                       [_agreement.described(name, one) for name, one in rest])


def broadcast(communicator: _core.Communicator, rest: Rest) -> None:
    """Gives all ranks the values of rank 0, whatever their types and orders in memory. Collective and
    blocking."""
    for _, one in rest:
        if one.numel() == 0:
            continue
        target = one.detach()
        for axis, stride in enumerate(target.stride()):
            if stride == 0:  # expanded: all of the axis is one element
                target = target.narrow(axis, 0, 1)
        whole = target.contiguous().resolve_conj().resolve_neg()
        communicator.broadcast(whole.reshape(-1).view(sys.modules["torch"].uint8), 0)
        if whole is not target:
            target.copy_(whole)
