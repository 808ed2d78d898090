from __future__ import annotations

import pytest
import torch
from torch import nn

from isotherm.models import MODELS
from isotherm.models.mlp import mlp
from isotherm.tasks.model_check import call_model


def test_layers_alternate_and_end_linear() -> None:
    kinds = [type(part) for part in mlp((4, 5, 6, 2))]
    assert kinds == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert mlp((4, 5, 6, 2))(torch.zeros(3, 4)).shape == (3, 2)


def example(name: str) -> tuple[torch.Tensor, int | None]:
    """Return a small input of a named model, and how many tokens it reads at once."""
    shapes = {"mlp_40_100_100_10": (2, 40), "autoencoder_mnist": (2, 784), "resnet50_imagenet": (2, 3, 32, 32)}
    if name == "lstm_ptb":
        return torch.zeros(2, 3, dtype=torch.int64), 3
    return torch.zeros(shapes.get(name, (2, 3, 8, 8))), None


@pytest.mark.parametrize("name", MODELS)
def test_every_named_model_is_built_and_differentiable(name: str) -> None:
    module = MODELS[name]()
    x, unroll = example(name)
    output = call_model(module, x, unroll=unroll)
    output.sum().backward()
    assert all(p.grad is not None for p in module.parameters())
