"""Wide residual networks (Zagoruyko & Komodakis 2016), with ghost batch normalisation or SkipInit.

SkipInit (De & Smith 2020) does not normalise: every residual branch ends in a learnable scalar that starts at zero,
convolutions have biases, and a dropout layer precedes the last layer.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from isotherm.errors import UserError, nearest
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d

Normalisation = Literal["ghost_batch_norm", "skip_init"]


class WideBlock(nn.Module):
    """Two 3x3 convolutions, each after normalisation and ReLU, and a shortcut.

    If the width changes, the shortcut is a 1x1 convolution of the activated input.
    """

    def __init__(
        self, num_in: int, num_out: int, *, stride: int, normalisation: Normalisation, ghost_size: int
    ) -> None:
        super().__init__()
        skip_init = normalisation == "skip_init"
        self.norm1 = _activated_norm(num_in, normalisation=normalisation, ghost_size=ghost_size)
        self.conv1 = nn.Conv2d(num_in, num_out, 3, stride=stride, padding=1, bias=skip_init)
        self.norm2 = _activated_norm(num_out, normalisation=normalisation, ghost_size=ghost_size)
        self.conv2 = nn.Conv2d(num_out, num_out, 3, padding=1, bias=skip_init)
        self.projection = None if num_in == num_out else nn.Conv2d(num_in, num_out, 1, stride=stride, bias=skip_init)
        # One-dimensional, so that L2 on the weights leaves it out.
        self.alpha = nn.Parameter(torch.zeros(1)) if skip_init else None

    def forward(self, x: Tensor) -> Tensor:
        """Return shortcut plus branch."""
        activated = self.norm1(x)
        branch: Tensor = self.conv2(self.norm2(self.conv1(activated)))
        if self.alpha is not None:
            branch = (self.alpha * branch).to(branch.dtype)  # in mixed precision only the scalar is float32
        shortcut: Tensor = x if self.projection is None else self.projection(activated)
        return shortcut + branch


class WideResNet(nn.Module):
    """Stem, three groups of blocks at widths 16k, 32k and 64k, global average pooling and a linear layer."""

    def __init__(
        self,
        *,
        num_blocks: int,
        width: int,
        num_classes: int,
        normalisation: Normalisation,
        ghost_size: int,
        drop_probability: float,
    ) -> None:
        super().__init__()
        skip_init = normalisation == "skip_init"
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=skip_init)
        blocks = []
        num_in = 16
        for group, num_out in enumerate((16 * width, 32 * width, 64 * width)):
            for index in range(num_blocks):
                stride = 2 if group > 0 and index == 0 else 1
                block = WideBlock(num_in, num_out, stride=stride, normalisation=normalisation, ghost_size=ghost_size)
                blocks.append(block)
                num_in = num_out
        self.blocks = nn.Sequential(*blocks)
        self.norm = _activated_norm(num_in, normalisation=normalisation, ghost_size=ghost_size)
        self.dropout = nn.Dropout(drop_probability) if skip_init else nn.Identity()
        self.linear = nn.Linear(num_in, num_classes)
        for part in self.modules():
            if isinstance(part, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(part.weight, mode="fan_in", nonlinearity="relu")
                if part.bias is not None:
                    nn.init.zeros_(part.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, classes) of images (batch, 3, height, width)."""
        activated = self.norm(self.blocks(self.stem(x)))
        logits: Tensor = self.linear(self.dropout(activated.mean(dim=(2, 3))))
        return logits


def _activated_norm(num_features: int, *, normalisation: Normalisation, ghost_size: int) -> nn.Module:
    """Return normalisation and ReLU as one layer; for SkipInit, the ReLU alone."""
    if normalisation == "skip_init":
        return nn.ReLU()
    return GhostBatchNorm2d(num_features, ghost_size=ghost_size, activation="relu")


def wide_resnet(
    *,
    depth: int = 16,
    width: int = 4,
    num_classes: int = 10,
    normalisation: Normalisation = "ghost_batch_norm",
    ghost_size: int = 64,
    drop_probability: float = 0.6,
) -> WideResNet:
    """Return a Wide-ResNet for 32 x 32 images; weights are He normal by fan-in, biases zero.

    Args:
        depth: 6n + 4 for n blocks in each of the three groups.
        width: the factor k on the widths 16, 32 and 64.
        num_classes: outputs.
        normalisation: 'ghost_batch_norm', or 'skip_init' for Regularized SkipInit.
        ghost_size: examples per ghost batch; ghost batch normalisation only.
        drop_probability: of the pooled features; SkipInit only.

    >>> sum(p.numel() for p in wide_resnet(depth=16, width=4).parameters())
    2748890
    """
    if depth < 10 or (depth - 4) % 6:
        lower = (depth - 4) // 6 * 6 + 4
        fitting = f"{lower} or {lower + 6}" if lower >= 10 else "10 or 16"
        raise UserError(f"depth={depth} is not of the form 6n + 4 (three groups of n blocks); use {fitting}")
    if width < 1 or num_classes < 1:
        raise UserError(f"width={width} and num_classes={num_classes} must both be at least 1; the paper uses 4 and 10")
    if normalisation not in get_args(Normalisation):
        raise UserError(f"unknown normalisation {normalisation!r}; {nearest(normalisation, get_args(Normalisation))}")
    if not 0 <= drop_probability < 1:
        raise UserError(f"drop_probability={drop_probability} is not in [0, 1); the paper's SkipInit networks use 0.6")
    return WideResNet(
        num_blocks=(depth - 4) // 6,
        width=width,
        num_classes=num_classes,
        normalisation=normalisation,
        ghost_size=ghost_size,
        drop_probability=drop_probability,
    )
