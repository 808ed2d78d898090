from __future__ import annotations

import pytest
import torch
from torch import nn

from isotherm.models import MODELS
from isotherm.models.mlp import mlp


def test_layers_alternate_and_end_linear() -> None:
    kinds = [type(part) for part in mlp((4, 5, 6, 2))]
    assert kinds == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert mlp((4, 5, 6, 2))(torch.zeros(3, 4)).shape == (3, 2)


@pytest.mark.parametrize("name", MODELS)
def test_every_named_model_is_built_and_differentiable(name: str) -> None:
    module = MODELS[name]()
    output = module(torch.zeros(2, 40))
    output.sum().backward()
    assert all(p.grad is not None for p in module.parameters())
