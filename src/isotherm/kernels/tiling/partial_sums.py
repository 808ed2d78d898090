"""Sums that convolution kernels accumulate for the norms next to them: by channel, over parts of ghost batches.

Shape suffixes: M runs, G ghost batches of each, P parts of a ghost batch, C channels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

# A kernel's arguments without a norm.
NOT_NORMALISED: dict[str, Any] = {
    "normalised": None,
    "mean_ptr": None,
    "var_ptr": None,
    "weight_ptr": None,
    "bias_ptr": None,
    "eps": 0.0,
    "ghosts_of_run": 1,
}


class Moments(NamedTuple):
    """Means and sums of squared deviations of equal parts of every ghost batch, shape (M, G, P, C) each."""

    means: Tensor
    squares: Tensor


class Normalised(NamedTuple):
    """The input, statistics and parameters of a ghost batch norm whose gradient is needed next."""

    x: Tensor
    mean_MGC: Tensor
    var_MGC: Tensor
    weight_MC: Tensor
    bias_MC: Tensor
    eps: float
    relu: bool

    @property
    def ghost_size(self) -> int:
        """Examples per ghost batch."""
        return self.x.shape[1] // self.mean_MGC.shape[1]

    def arguments(self, boxes: Any) -> dict[str, Any]:
        """Return a kernel's arguments, with x as a descriptor."""
        return {
            "normalised": boxes,
            "mean_ptr": self.mean_MGC,
            "var_ptr": self.var_MGC,
            "weight_ptr": self.weight_MC,
            "bias_ptr": self.bias_MC,
            "eps": self.eps,
            "ghosts_of_run": self.mean_MGC.shape[1],
        }


class Sums(NamedTuple):
    """Sums by channel of the gradient before the ReLU and of its product with the normalised x, (M, G, P, C) each."""

    gradients: Tensor
    products: Tensor


def by_part(images: Tensor, ghost_size: int, num_parts: int) -> tuple[Tensor, Tensor]:
    """Return two uninitialised tensors (M, G, P, C) for images (M, B, C, H, W)."""
    num_runs, num_images, num_channels = images.shape[:3]
    shape = num_runs, num_images // ghost_size, num_parts, num_channels
    first, second = (images.new_empty(shape, dtype=torch.float32) for _ in range(2))
    return first, second
