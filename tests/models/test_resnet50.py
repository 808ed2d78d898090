"""ResNet-50: layers, initialisation, and a small relative through the engines."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from helpers_models import (
    assert_differentiates_rightly,
    assert_same_under_vmap,
    assert_trains_as_a_fleet,
    colour_images,
    num_parameters,
    shaken,
)
from isotherm.models import MODELS
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.models.resnet50 import BottleneckResNet, resnet50
from isotherm.tasks.losses import cross_entropy
from isotherm.tasks.task import Task

small = partial(BottleneckResNet, num_blocks=(2, 1), width=4, num_classes=3, ghost_size=4)


@pytest.fixture(autouse=True)
def _same_start() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def full() -> BottleneckResNet:
    torch.manual_seed(0)
    module = MODELS["resnet50_imagenet"]()
    assert isinstance(module, BottleneckResNet)
    return module


def loss(output: Tensor) -> Tensor:
    return cross_entropy(output, torch.arange(len(output)) % 3)


def test_number_of_parameters(full):
    assert num_parameters(full) == 25_557_032
    with torch.device("meta"):
        assert num_parameters(resnet50(num_classes=10)) == 25_557_032 - 990 * 2049


def test_layout(full):
    assert [len(group) for group in full.groups] == [3, 4, 6, 3]
    assert (full.stem.kernel_size, full.stem.stride, full.stem.padding) == ((7, 7), (2, 2), (3, 3))
    for place, group in enumerate(full.groups):
        inner = 64 * 2**place
        for index, block in enumerate(group):
            stride = 2 if place > 0 and index == 0 else 1
            convolutions = (block.conv1, block.conv2, block.conv3)
            assert [conv.kernel_size[0] for conv in convolutions] == [1, 3, 1]
            assert [conv.stride[0] for conv in convolutions] == [1, stride, 1]
            assert [conv.out_channels for conv in convolutions] == [inner, inner, 4 * inner]
            assert isinstance(block.shortcut, nn.Sequential) == (index == 0)
            if index == 0:
                projection, norm = block.shortcut
                assert (projection.kernel_size[0], projection.stride[0]) == (1, stride)
                assert isinstance(norm, GhostBatchNorm2d)
    assert all(part.bias is None for part in full.modules() if isinstance(part, nn.Conv2d))
    norms = [part for part in full.modules() if isinstance(part, GhostBatchNorm2d)]
    assert len(norms) == len([part for part in full.modules() if isinstance(part, nn.Conv2d)]) == 53
    assert {norm.ghost_size for norm in norms} == {64}


def test_sizes(full):
    full.eval()
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    sizes = []
    with torch.no_grad():
        hidden = functional.max_pool2d(torch.relu(full.norm(full.stem(x))), 3, stride=2, padding=1)
        for group in full.groups:
            hidden = group(hidden)
            sizes.append(tuple(hidden.shape[1:]))
        assert full(x).shape == (1, 1000)
    assert sizes == [(256, 16, 16), (512, 8, 8), (1024, 4, 4), (2048, 2, 2)]


def test_initial_values(full):
    last = {f"groups.{place}.{index}.norm3" for place, num in enumerate((3, 4, 6, 3)) for index in range(num)}
    for name, part in full.named_modules():
        if isinstance(part, GhostBatchNorm2d):
            assert (part.weight == (0 if name in last else 1)).all(), name
            assert (part.bias == 0).all(), name
        if isinstance(part, nn.Conv2d):
            values = part.weight.detach().double()
            variance = 2 / (values.shape[0] * values[0, 0].numel())  # He normal by fan-out
            error = 5 * (2 / values.numel()) ** 0.5
            assert float(values.square().mean()) == pytest.approx(variance, rel=error), name
            assert float(values.abs().max()) > 2 * variance**0.5, name
    assert float(full.linear.weight.detach().std()) == pytest.approx(0.01, rel=0.01)
    assert full.linear.bias.count_nonzero() == 0


def test_starts_as_its_shortcuts():
    module = small().double()
    x = colour_images(8, size=16)[0]
    hidden = functional.max_pool2d(torch.relu(module.norm(module.stem(x))), 3, stride=2, padding=1)
    for group in module.groups:
        hidden = torch.relu(group[0].shortcut(hidden))  # the other blocks are the identity
    torch.testing.assert_close(module(x), module.linear(hidden.mean(dim=(2, 3))), rtol=1e-12, atol=1e-12)


# -- the definition, a second time ------------------------------------------------------------------------------


def conv_norm(state: dict[str, Tensor], conv: str, norm: str, x: Tensor, **settings) -> Tensor:
    """Return the convolution of x in batch normalisation by ghosts of four."""
    x = functional.conv2d(x, state[f"{conv}.weight"], **settings)
    weight, bias = state[f"{norm}.weight"], state[f"{norm}.bias"]
    return torch.cat([functional.batch_norm(chunk, None, None, weight, bias, training=True) for chunk in x.split(4)])


def network(state: dict[str, Tensor], x: Tensor, *, num_blocks: tuple[int, ...]) -> Tensor:
    """Return the logits in training mode."""
    x = functional.relu(conv_norm(state, "stem", "norm", x, stride=2, padding=3))
    x = functional.max_pool2d(x, kernel_size=3, stride=2, padding=1)
    for group, num in enumerate(num_blocks):
        for index in range(num):
            at = f"groups.{group}.{index}."
            stride = 2 if group and not index else 1
            h = functional.relu(conv_norm(state, f"{at}conv1", f"{at}norm1", x))
            h = functional.relu(conv_norm(state, f"{at}conv2", f"{at}norm2", h, stride=stride, padding=1))
            h = conv_norm(state, f"{at}conv3", f"{at}norm3", h)
            if index == 0:
                x = conv_norm(state, f"{at}shortcut.0", f"{at}shortcut.1", x, stride=stride)
            x = functional.relu(x + h)
    return functional.linear(x.mean(dim=(2, 3)), state["linear.weight"], state["linear.bias"])


def test_equals_the_definition():
    module = shaken(small())
    x = colour_images(8, size=16)[0]
    expected = network(dict(module.named_parameters()), x, num_blocks=(2, 1))
    torch.testing.assert_close(module(x), expected, rtol=1e-10, atol=1e-10)


# -- as the engines run it --------------------------------------------------------------------------------------


def test_gradients_equal_differences():
    assert_differentiates_rightly(shaken(small()), colour_images(8, size=16)[0], loss)


def test_gradients_are_the_same_under_vmap():
    assert_same_under_vmap([shaken(small(), seed=seed) for seed in range(2)], colour_images(8, size=16)[0], loss)


def test_trains_as_a_fleet(caplog):
    train, test = colour_images(24, size=16), colour_images(6, size=16, seed=1)
    assert_trains_as_a_fleet(Task(name="small", model=small, train=train, test=test))
    assert caplog.text == ""  # not one run at a time
