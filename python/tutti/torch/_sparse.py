"""Sums of PyTorch's sparse tensors."""

# mypy: disable-error-code="misc,import"

from __future__ import annotations

from typing import Any

import torch

from tutti.errors import InvalidArgument, MismatchError
from tutti.torch._tensors import reduction


def all_reduce(communicator: Any, tensor: torch.Tensor, op: Any) -> None:
    """tensor = the sum, or the average, of those of all ranks, added in rank order: what each of
    them holds goes to all."""
    name = reduction(op, tensor.dtype)
    if name not in ("sum", "average"):
        raise InvalidArgument(f"op is {name}, but of sparse tensors there are sum and average")
    mine = tensor.detach().coalesce()
    ranks = communicator.world_size
    held = torch.empty((ranks, 1 + mine.dim()), dtype=torch.int64, device="cpu")
    communicator.all_gather(torch.tensor([mine._nnz(), *mine.shape], device="cpu"), held)
    for rank, (_, *shape) in enumerate(held.tolist()):
        if shape != held[0, 1:].tolist():
            raise MismatchError(f"all_reduce of a sparse tensor of shape {held[0, 1:].tolist()} on rank "
                                f"0, but of {shape} on rank {rank}")
    counts = held[:, 0].tolist()
    width = mine.values()[:1].numel() if mine._nnz() else int(
        torch.Size(mine.shape[mine.sparse_dim():]).numel())
    axes = mine.sparse_dim()
    indices = torch.empty(sum(counts) * axes, dtype=torch.int64, device=mine.device)
    communicator.all_gather(mine.indices().t().contiguous(), indices,
                            [count * axes for count in counts])
    values = torch.empty((sum(counts), *mine.shape[axes:]), dtype=mine.dtype, device=mine.device)
    communicator.all_gather(mine.values().contiguous(), values, [count * width for count in counts])
    if mine.dtype in (torch.float16, torch.bfloat16):  # rounded once
        values = values.float()
    total = torch.sparse_coo_tensor(indices.view(-1, axes).t(), values, mine.shape,
                                    device=values.device, check_invariants=False).coalesce()
    if name == "average":
        total = total / ranks
    with torch.no_grad():
        tensor.copy_(total.to(mine.dtype))
