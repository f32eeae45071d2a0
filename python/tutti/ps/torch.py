"""Embeddings as modules of PyTorch whose backward pass pushes."""

# mypy: ignore-errors=True
# Where PyTorch is not installed, its classes have no types.

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch

from tutti.errors import InvalidArgument
from tutti.ps import _embedding


class _Lookup(torch.autograd.Function):
    """Rows of a table; what comes back as their gradient is pushed."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, table: _embedding.Embedding,
                ids: torch.Tensor) -> torch.Tensor:
        ctx.table = table
        ctx.save_for_backward(ids)
        return table.lookup(ids)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[None, None, None]:
        if torch.is_grad_enabled():  # create_graph
            raise InvalidArgument(f"table {ctx.table.name} is pushed by its backward pass, which "
                                  "cannot be differentiated again: create_graph must be False")
        (ids,) = ctx.saved_tensors  # refuses what was changed in place, or used up
        ctx.table.push(ids, gradient)
        return None, None, None


class Embedding(torch.nn.Module):
    """Looks up rows of a table, as torch.nn.Embedding does of its weight.

    The backward pass pushes gradients to the batch that the fleet's next step() ends. The rows are
    no parameters of this module: the table's own optimizer trains them. In a backward pass with
    create_graph InvalidArgument is raised, and nothing pushed. half(), to(dtype) and the like change
    the type that the rows are given out in: those of the table stay float32.
    """

    def __init__(self, table: _embedding.Embedding) -> None:
        super().__init__()
        self.table = table
        # Something that requires a gradient, without which there would be no backward pass.
        self._anchor = (torch.empty(0, requires_grad=True),)
        self._dtype = torch.float32

    def _apply(self, fn: Any, *more: Any, **named: Any) -> Embedding:  # alone before PyTorch 2.1
        super()._apply(fn, *more, **named)
        self._dtype = fn(torch.empty(0, dtype=self._dtype)).dtype
        return self

    def extra_repr(self) -> str:
        return f"{self.table.name}, {self.table.dim}"

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows, of shape ids.shape + (dim,)."""
        return self._rows(ids).to(self._dtype)

    def _rows(self, ids: torch.Tensor) -> torch.Tensor:
        return _Lookup.apply(self._anchor[0], self.table, ids)


class EmbeddingBag(Embedding):
    """Sums or averages rows of a table, as torch.nn.EmbeddingBag does: the padding_idx of the table
    counts for nothing, and an empty bag is zeros.

    mode: "sum" or "mean".
    """

    def __init__(self, table: _embedding.Embedding, mode: str = "sum") -> None:
        super().__init__(table)
        if mode not in ("sum", "mean"):
            raise InvalidArgument(f"mode is {mode!r}, but must be 'sum' or 'mean'")
        self.mode = mode

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"

    def forward(self, ids: torch.Tensor, offsets: Optional[torch.Tensor] = None,
                per_sample_weights: Optional[torch.Tensor] = None) -> torch.Tensor:
        """One row a bag: ids has a bag a row, or one dimension, and offsets says where in it each
        bag begins. per_sample_weights, of the shape of ids, are for sums."""
        if ids.dim() == 1 and offsets is None or ids.dim() == 2 and offsets is not None:
            raise InvalidArgument(f"ids has {ids.dim()} dimensions: two are for bags of one length, "
                                  "one and offsets for bags of any")
        if ids.dim() not in (1, 2):
            raise InvalidArgument(f"ids has {ids.dim()} dimensions, but must have 1 or 2")
        rows = self._rows(ids)
        if per_sample_weights is not None:
            if self.mode != "sum" or per_sample_weights.shape != ids.shape:
                raise InvalidArgument("per_sample_weights must have the shape of ids, in mode 'sum'")
            rows = rows * per_sample_weights.unsqueeze(-1)
        bags = None if offsets is None else self._bags(offsets, ids)
        bag_num = len(ids) if offsets is None else len(offsets)
        sums = self._sum(rows, bags, bag_num)
        if self.mode == "sum":
            return sums.to(self._dtype)
        counted = torch.ones_like(ids) if self.table.padding_idx is None else (
            ids != self.table.padding_idx).to(ids.dtype)
        means = sums / self._sum(counted, bags, bag_num).clamp(min=1).unsqueeze(-1)
        return means.to(self._dtype)

    @staticmethod
    def _sum(values: torch.Tensor, bags: Optional[torch.Tensor], bag_num: int) -> torch.Tensor:
        """Of each bag."""
        if bags is None:
            return values.sum(1)
        return values.new_zeros(bag_num, *values.shape[1:]).index_add(0, bags, values)

    @staticmethod
    def _bags(offsets: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The bag of each id."""
        ends = torch.cat([offsets[1:], offsets.new_tensor([len(ids)])])
        lengths = ends - offsets
        if len(offsets) == 0 and len(ids) > 0 or len(offsets) > 0 and (
                int(offsets[0]) != 0 or bool((lengths < 0).any())):
            raise InvalidArgument("offsets must begin with 0, not fall, and end within ids")
        return torch.repeat_interleave(torch.arange(len(offsets), device=ids.device), lengths)
