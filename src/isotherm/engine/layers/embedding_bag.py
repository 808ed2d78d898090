"""`nn.EmbeddingBag` of rows of tokens as an embedding and a reduction, which `vmap` can take."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor | None:
    """Return what `functional.embedding_bag` does for bags (B, T); None for calls of other kinds."""
    is_plain = max_norm is None and not scale_grad_by_freq and not sparse
    if input.ndim != 2 or offsets is not None or not is_plain or mode not in _REDUCTIONS:
        return None
    rows = functional.embedding(input, weight, padding_idx)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    kept = None if padding_idx is None else (input != padding_idx % len(weight)).unsqueeze(-1)
    return _REDUCTIONS[mode](rows, kept)


def _sum(rows: Tensor, kept: Tensor | None) -> Tensor:
    return rows.sum(1) if kept is None else (rows * kept).sum(1)


def _mean(rows: Tensor, kept: Tensor | None) -> Tensor:
    return rows.mean(1) if kept is None else (rows * kept).sum(1) / kept.sum(1).clamp(min=1)


def _max(rows: Tensor, kept: Tensor | None) -> Tensor:
    """Return the largest values; of a bag that holds nothing, zeros."""
    if kept is None:
        return rows.max(1).values
    largest = rows.masked_fill(~kept, -math.inf).max(1).values
    return torch.where(kept.any(1), largest, 0.0)


_REDUCTIONS: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {"sum": _sum, "mean": _mean, "max": _max}
