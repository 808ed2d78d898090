"""The hash of a tensor's content: what equal data have in common, in memory or on disk."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from isotherm.core.records import content_hash


def hash_of_tensor(dtype: torch.dtype, shape: Sequence[int], digest: str) -> str:
    """Return the hash of a tensor, given the sha256 of its values in their order."""
    return content_hash(["tensor", str(dtype), list(shape), digest])
