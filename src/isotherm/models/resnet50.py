"""ResNet-50 for ImageNet as Goyal et al. (2017) trained it, with ghost batch normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotherm.models.ghost_batch_norm import GhostBatchNorm2d

EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, each normalised, and a shortcut; the 3x3 convolution carries the stride.

    The scale of the last normalisation starts at zero, so that the block initially equals its shortcut.
    """

    def __init__(self, num_in: int, num_inner: int, *, stride: int, ghost_size: int) -> None:
        super().__init__()
        num_out = EXPANSION * num_inner
        self.conv1 = nn.Conv2d(num_in, num_inner, 1, bias=False)
        self.norm1 = GhostBatchNorm2d(num_inner, ghost_size=ghost_size, activation="relu")
        self.conv2 = nn.Conv2d(num_inner, num_inner, 3, stride=stride, padding=1, bias=False)
        self.norm2 = GhostBatchNorm2d(num_inner, ghost_size=ghost_size, activation="relu")
        self.conv3 = nn.Conv2d(num_inner, num_out, 1, bias=False)
        self.norm3 = GhostBatchNorm2d(num_out, ghost_size=ghost_size)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or num_in != num_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(num_in, num_out, 1, stride=stride, bias=False),
                GhostBatchNorm2d(num_out, ghost_size=ghost_size),
            )
        nn.init.zeros_(self.norm3.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the rectified sum of shortcut and branch."""
        branch = self.norm2(self.conv2(self.norm1(self.conv1(x))))
        return torch.relu(self.norm3(self.conv3(branch)) + self.shortcut(x))


class BottleneckResNet(nn.Module):
    """Stem with max pooling, groups of bottlenecks that double the width, global average pooling, a linear layer."""

    def __init__(self, *, num_blocks: Sequence[int], width: int, num_classes: int, ghost_size: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.norm = GhostBatchNorm2d(width, ghost_size=ghost_size, activation="relu")
        groups = []
        num_in = width
        for group, num in enumerate(num_blocks):
            num_inner = width * 2**group
            blocks = []
            for index in range(num):
                stride = 2 if group > 0 and index == 0 else 1
                blocks.append(Bottleneck(num_in, num_inner, stride=stride, ghost_size=ghost_size))
                num_in = EXPANSION * num_inner
            groups.append(nn.Sequential(*blocks))
        self.groups = nn.Sequential(*groups)
        self.linear = nn.Linear(num_in, num_classes)
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
        nn.init.normal_(self.linear.weight, std=0.01)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, classes) of images (batch, 3, height, width)."""
        x = self.norm(self.stem(x))
        x = functional.max_pool2d(x, 3, stride=2, padding=1)
        logits: Tensor = self.linear(self.groups(x).mean(dim=(2, 3)))
        return logits


def resnet50(*, num_classes: int = 1000, ghost_size: int = 64) -> BottleneckResNet:
    """Return a ResNet-50 for 224 x 224 images; convolutions He normal by fan-out, last layer N(0, 0.01²).

    Args:
        num_classes: outputs.
        ghost_size: examples per ghost batch.
    """
    return BottleneckResNet(num_blocks=(3, 4, 6, 3), width=64, num_classes=num_classes, ghost_size=ghost_size)
