"""What convolutions take along for the norms beside them: sums over parts of ghosts, by channel.

Shape suffixes: M runs, G ghosts of each, P parts of a ghost, C channels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

# What a kernel is told where nothing was normalised.
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
    """Means, and sums of squared distances from them, of equal parts of every ghost, shape (M, G, P, C) each."""

    means: Tensor
    squares: Tensor


class Normalised(NamedTuple):
    """What was normalised by ghosts, and how: the gradient of the result is about to be computed."""

    x: Tensor
    mean_MGC: Tensor
    var_MGC: Tensor
    weight_MC: Tensor
    bias_MC: Tensor
    eps: float
    relu: bool

    @property
    def ghost_size(self) -> int:
        """Examples of a ghost."""
        return self.x.shape[1] // self.mean_MGC.shape[1]

    def arguments(self, boxes: Any) -> dict[str, Any]:
        """Return what a kernel is told, with x as boxes that it is copied from."""
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
    """By channel, sums of the gradient behind the ReLU and of its product with the normalised x, (M, G, P, C) each."""

    gradients: Tensor
    products: Tensor


def by_part(images: Tensor, ghost_size: int, num_parts: int) -> tuple[Tensor, Tensor]:
    """Return two new tensors (M, G, P, C) for images (M, B, C, H, W)."""
    num_runs, num_images, num_channels = images.shape[:3]
    shape = num_runs, num_images // ghost_size, num_parts, num_channels
    first, second = (images.new_empty(shape, dtype=torch.float32) for _ in range(2))
    return first, second
