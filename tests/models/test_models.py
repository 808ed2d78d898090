"""Every model that has a name can be built and trained."""

from __future__ import annotations

import pytest
import torch

from isotherm.models import MODELS
from isotherm.tasks.model_check import call_model

SHAPES = {
    "mlp_40_100_100_10": (2, 40),
    "autoencoder_mnist": (2, 784),
    "wrn16x4_cifar10": (2, 3, 8, 8),
    "wrn16x4_skipinit_cifar10": (2, 3, 8, 8),
    "wrn28x10_cifar100": (2, 3, 8, 8),
    "wrn28x10_skipinit_cifar100": (2, 3, 8, 8),
    "resnet50_imagenet": (2, 3, 32, 32),
}


def example(name: str) -> tuple[torch.Tensor, int | None]:
    """Return a small input of a named model, and how many tokens it reads at once."""
    if name == "gpt_text":
        return torch.zeros(2, 3, dtype=torch.int64), None
    if name == "lstm_ptb":
        return torch.zeros(2, 3, dtype=torch.int64), 3
    assert name in SHAPES, f"say in {__file__} what the model {name} takes"
    return torch.zeros(SHAPES[name]), None


@pytest.mark.parametrize("name", MODELS)
def test_every_named_model_is_built_and_differentiable(name: str) -> None:
    module = MODELS[name]()
    x, unroll = example(name)
    output = call_model(module, x, unroll=unroll)
    output.sum().backward()
    assert all(p.grad is not None for p in module.parameters())
