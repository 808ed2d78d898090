from __future__ import annotations

import torch
from torch import nn

from isotherm.models.mlp import mlp


def test_layers_alternate_and_end_linear() -> None:
    kinds = [type(part) for part in mlp((4, 5, 6, 2))]
    assert kinds == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert mlp((4, 5, 6, 2))(torch.zeros(3, 4)).shape == (3, 2)
