"""Evaluation computes what training trained: PyTorch's transformers have other code for it, which is switched off here.

That code leaves out what a padding mask hides, so its outputs differ from those in training, and `vmap` cannot take it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def without_fast_paths() -> Iterator[None]:
    """Within this context `nn.MultiheadAttention` and transformer layers compute what they do in training."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
