"""Sums of PyTorch's sparse tensors."""

# mypy: disable-error-code="misc,import"

from __future__ import annotations

from typing import Any

import torch

from tutti.errors import InvalidArgument
from tutti.torch._tensors import reduction


def all_reduce(communicator: Any, tensor: torch.Tensor, op: Any) -> None:
    """tensor = the sum, or the average, of those of all ranks, added in rank order: what each of
    them holds goes to all."""
    name = reduction(op, tensor.dtype)
    if name not in ("sum", "average"):
        raise InvalidArgument(f"op is {name}, but of sparse tensors there are sum and average")
    mine = tensor.detach().coalesce()
    ranks = communicator.world_size
    held = torch.empty(ranks, dtype=torch.int64)
    communicator.all_gather(torch.tensor([mine._nnz()]), held)
    counts = held.tolist()
    width = mine.values()[:1].numel() if mine._nnz() else int(
        torch.Size(mine.shape[mine.sparse_dim():]).numel())
    axes = mine.sparse_dim()
    indices = torch.empty(sum(counts) * axes, dtype=torch.int64)
    communicator.all_gather(mine.indices().t().contiguous(), indices,
                            [count * axes for count in counts])
    values = torch.empty((sum(counts), *mine.shape[axes:]), dtype=mine.dtype)
    communicator.all_gather(mine.values().contiguous(), values, [count * width for count in counts])
    total = torch.sparse_coo_tensor(indices.view(-1, axes).t(), values, mine.shape).coalesce()
    if name == "average":
        total = total / ranks
    with torch.no_grad():
        tensor.copy_(total)
