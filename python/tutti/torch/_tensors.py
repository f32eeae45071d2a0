"""Tensors as the collectives take them: in one piece, of a type that tutti knows."""

# mypy: disable-error-code="misc,import"

from __future__ import annotations

from typing import Any, Callable, List, Sequence

import torch

from tutti.errors import InvalidArgument

_OPS = torch.distributed.ReduceOp.RedOpType
_NAMES = {
    _OPS.SUM: "sum", _OPS.AVG: "average", _OPS.PRODUCT: "product", _OPS.MIN: "min", _OPS.MAX: "max",
    _OPS.BAND: "band", _OPS.BOR: "bor", _OPS.BXOR: "bxor", _OPS.PREMUL_SUM: "sum",
}
# Of bools a sum says whether any is true, as with NCCL.
_OF_BOOLS = {"sum": "lor", "max": "lor", "bor": "lor", "product": "land", "min": "land",
             "band": "land", "bxor": "lxor"}
KNOWN = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64,
} | {getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)})


def reduction(op: Any, dtype: torch.dtype) -> str:
    """What tutti calls a ReduceOp, for elements of this type."""
    name = _NAMES.get(getattr(op, "op", op))
    if name is None:
        raise InvalidArgument(f"op is {op}, which tutti does not know")
    if dtype != torch.bool:
        return name
    if name not in _OF_BOOLS:
        raise InvalidArgument(f"op is {name}, which bools do not have")
    return _OF_BOOLS[name]


def factor_of(op: Any) -> Any:
    """The factor of a ReduceOp that is a sum of multiples; None for any other."""
    if getattr(op, "op", op) != _OPS.PREMUL_SUM:
        return None
    factor = op.factor if hasattr(op, "factor") else op.__getstate__()[1]
    return float(factor)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory without a history and without a class of its own."""
    tensor = tensor.detach()
    return tensor if type(tensor) is torch.Tensor else tensor.as_subclass(torch.Tensor)


def movable(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as elements that tutti can move, if not add: bytes where it knows
    no better."""
    tensor = plain(tensor)
    if tensor.dtype in KNOWN:
        return tensor
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    return tensor.view(torch.uint8)


def one(tensors: Sequence[Any], what: str) -> Any:
    """The only one of a list: PyTorch's interface takes several, one for each GPU of a process."""
    if len(tensors) != 1:
        raise InvalidArgument(f"{what} has {len(tensors)} tensors or lists, but must have one")
    return tensors[0]


def one_a_rank(tensors: Sequence[torch.Tensor], ranks: int, each: int, name: str) -> None:
    """Refuses a list that has not one tensor of `each` elements for each rank: only the elements of
    all together are counted on their way."""
    if len(tensors) != ranks:
        raise InvalidArgument(f"{name} has {len(tensors)} tensors, but there are {ranks} ranks")
    for rank, tensor in enumerate(tensors):
        if tensor.numel() != each:
            raise InvalidArgument(f"{name}[{rank}] has {tensor.numel()} elements, but the tensor of "
                                  f"this rank {each}")


def in_place(tensor: torch.Tensor, call: Callable[[torch.Tensor], Any]) -> None:
    """call() with the tensor, or with a copy in C order that is copied back."""
    if tensor.is_contiguous():
        call(tensor)
        return
    copy = tensor.contiguous()
    call(copy)
    tensor.copy_(copy)


def into(tensor: torch.Tensor, call: Callable[[torch.Tensor], Any]) -> None:
    """call() with where to write the tensor, whose elements it all writes."""
    if tensor.is_contiguous():
        call(tensor)
        return
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    call(copy)
    tensor.copy_(copy)


def _follow_each_other(tensors: Sequence[torch.Tensor]) -> bool:
    address = tensors[0].data_ptr()
    storage = tensors[0].untyped_storage().data_ptr()
    for tensor in tensors:
        if (not tensor.is_contiguous() or tensor.data_ptr() != address
                or tensor.untyped_storage().data_ptr() != storage):
            return False
        address += tensor.numel() * tensor.element_size()
    return True


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Their elements one after the other: a view where they lie so, else a copy."""
    if len(tensors) == 1:
        return tensors[0].reshape(-1)
    total = sum(tensor.numel() for tensor in tensors)
    if tensors[0].numel() and _follow_each_other(tensors):
        return tensors[0].as_strided((total,), (1,))
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def into_all(tensors: Sequence[torch.Tensor], call: Callable[[torch.Tensor], Any]) -> None:
    """call() with where to write the elements of all, one after the other."""
    if tensors[0].numel() and _follow_each_other(tensors):
        call(tensors[0].as_strided((sum(tensor.numel() for tensor in tensors),), (1,)))
        return
    counts = [tensor.numel() for tensor in tensors]
    flat = torch.empty(sum(counts), dtype=tensors[0].dtype, device=tensors[0].device)
    call(flat)
    for tensor, part in zip(tensors, flat.split(counts)):
        tensor.copy_(part.view(tensor.shape))


def by_type(tensors: Sequence[torch.Tensor]) -> List[List[torch.Tensor]]:
    """Groups of one type and device, in the order of their first."""
    groups: dict[Any, List[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(groups.values())


def lengths(tensor: torch.Tensor, splits: Sequence[int], ranks: int, name: str) -> List[int]:
    """How many elements each rank has of a tensor that is cut along its first axis."""
    rows = tensor.size(0) if tensor.dim() else 1
    if not splits:
        if rows % ranks:
            raise InvalidArgument(f"the first axis has {rows} rows, which {ranks} ranks cannot share "
                                  f"equally: pass {name}")
        splits = [rows // ranks] * ranks
    if len(splits) != ranks or sum(splits) != rows:
        raise InvalidArgument(f"{name} is {list(splits)}, but must have one number for each of "
                              f"{ranks} ranks, with the sum {rows}")
    each = tensor.numel() // rows if rows else 0
    return [split * each for split in splits]
