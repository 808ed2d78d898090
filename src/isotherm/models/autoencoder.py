"""Deep autoencoder for flat images (Hinton & Salakhutdinov 2006)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import nn

from isotherm.errors import UserError, nearest

Units = Literal["tanh", "logistic"]
# Non-zero incoming weights per unit of the sparse initialisation (Martens 2010).
NUM_INCOMING = 15


def autoencoder(*, units: Units = "tanh", encoder_widths: Sequence[int] = (784, 1000, 500, 250, 30)) -> nn.Sequential:
    """Return an encoder and its mirror image as decoder: linear code, logistic output, all biases zero.

    Args:
        units: hidden units and their initialisation: 'tanh' with Glorot uniform weights, as in the paper, or 'logistic'
            with 15 incoming weights from N(0, 1) per unit and zeros otherwise.
        encoder_widths: from the input to the code.

    >>> sum(p.numel() for p in autoencoder().parameters())
    2837314
    """
    if units not in get_args(Units):
        raise UserError(f"unknown units {units!r}; {nearest(units, get_args(Units))}")
    if len(encoder_widths) < 2 or min(encoder_widths) < 1:
        raise UserError(
            f"encoder_widths={tuple(encoder_widths)} must list an input width and a code width, each at least 1"
        )
    widths = [*encoder_widths, *reversed(encoder_widths[:-1])]
    layers: list[nn.Module] = []
    for index, (num_in, num_out) in enumerate(pairwise(widths), start=1):
        linear = nn.Linear(num_in, num_out)
        nn.init.zeros_(linear.bias)
        if units == "tanh":
            nn.init.xavier_uniform_(linear.weight)
        else:
            _set_sparse(linear)
        layers.append(linear)
        if index == len(widths) - 1:
            layers.append(nn.Sigmoid())
        elif index != len(encoder_widths) - 1:  # the code is linear
            layers.append(nn.Tanh() if units == "tanh" else nn.Sigmoid())
    return nn.Sequential(*layers)


@torch.no_grad()
def _set_sparse(linear: nn.Linear) -> None:
    """Give every unit a few incoming weights from N(0, 1), at random positions."""
    num = min(NUM_INCOMING, linear.in_features)
    indices = torch.rand(linear.weight.shape).topk(num, dim=1).indices
    linear.weight.zero_().scatter_(1, indices, torch.randn(indices.shape))
