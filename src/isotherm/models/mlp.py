"""Fully connected network with ReLU between its layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def mlp(widths: Sequence[int]) -> nn.Sequential:
    """Return a fully connected ReLU network, e.g. widths (40, 100, 100, 10), with PyTorch's default initialisation.

    >>> sum(p.numel() for p in mlp((40, 100, 100, 10)).parameters())
    15210
    """
    layers: list[nn.Module] = []
    for index, (num_in, num_out) in enumerate(pairwise(widths)):
        layers += [nn.ReLU()] if index else []
        layers.append(nn.Linear(num_in, num_out))
    return nn.Sequential(*layers)
