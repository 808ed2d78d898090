"""Attention with dropout by plain tensor operations: PyTorch's kernels draw their masks themselves.

Shape suffixes: L queries, S keys.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def attention_with_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *,
    drop: Callable[[Tensor], Tensor],
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return what `functional.scaled_dot_product_attention` returns, with weights that `drop` has dropped from."""
    if enable_gqa:
        num = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(num, -3), value.repeat_interleave(num, -3)
    scores_LS = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores_LS.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores_LS = scores_LS.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores_LS = scores_LS + attn_mask
    # A query that may see no key gets zeros.
    weights_LS = scores_LS.softmax(-1) if attn_mask is None else torch._safe_softmax(scores_LS, -1)
    return drop(weights_LS) @ value
