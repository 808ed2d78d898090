"""Convolutions of many runs as matmuls against PyTorch's own, with the batch norms between them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional

from isotherm.engine.graph.trace import has_plain_convolutions, trace
from isotherm.kernels.dispatch import by_matmuls
from isotherm.kernels.layout import has_channels_last
from isotherm.kernels.ops import unfolded_convolution as unfolded_ops

NUM_RUNS = 3
# Images (B, C, H, W), filters (O, C, Y, X), padding, stride.
CASES = {
    "3 x 3": ((2, 3, 6, 7), (5, 3, 3, 3), 1, 1),
    "one channel": ((2, 1, 8, 8), (4, 1, 3, 3), 1, 1),
    "5 x 5": ((1, 2, 8, 6), (3, 2, 5, 5), (2, 2), 1),
    "without padding": ((2, 2, 5, 7), (4, 2, 3, 5), 0, 1),
    "points": ((2, 4, 5, 5), (2, 4, 1, 1), "valid", 1),
    "every second pixel": ((2, 3, 8, 6), (4, 3, 3, 3), 1, 2),
    "every second of odd sides": ((2, 3, 7, 5), (4, 3, 3, 3), 0, (2, 2)),
    "pixels that no filter sees": ((2, 2, 8, 8), (3, 2, 1, 1), 0, 3),
}


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_pytorchs(name):
    images, filters, padding, stride = CASES[name]
    x, weight = normal(NUM_RUNS, *images, seed=0), normal(NUM_RUNS, *filters, seed=1)
    bias = normal(NUM_RUNS, filters[0], seed=2)

    def convolve(*given: Tensor) -> Tensor:
        return functional.conv2d(*given, padding=padding, stride=stride)

    ours, theirs = (of(vmap(convolve))(x, weight, bias) for of in (by_matmuls, lambda function: function))
    torch.testing.assert_close(ours, theirs)
    assert has_channels_last(ours)
    weights = normal(*theirs.shape[1:], seed=3)
    gradient = vmap(grad(lambda *given: (convolve(*given).square() * weights).sum(), argnums=(0, 1, 2)))
    for mine, expected in zip(by_matmuls(gradient)(x, weight, bias), gradient(x, weight, bias), strict=True):
        torch.testing.assert_close(mine, expected)
    program = trace(by_matmuls(gradient), x, weight, bias)
    assert not has_plain_convolutions(program.graph)


@pytest.mark.parametrize("is_affine", [True, False])
def test_batch_norm_is_pytorchs(is_affine):
    x = normal(NUM_RUNS, 4, 3, 2, 5, seed=0)
    weight, bias = (normal(NUM_RUNS, 3, seed=seed) if is_affine else None for seed in (1, 2))
    dims = (0, 0, 0, 0 if is_affine else None, 0 if is_affine else None)

    def normed(*given: Any) -> tuple[Tensor, ...]:
        mean, variance = (values.clone() for values in given[1:3])
        y = functional.batch_norm(given[0], mean, variance, *given[3:], training=True, momentum=0.3)
        return y, mean, variance

    statistics = normal(NUM_RUNS, 3, seed=3), normal(NUM_RUNS, 3, seed=4).square()
    given = x, *statistics, weight, bias
    ours = by_matmuls(vmap(normed, in_dims=dims))(*given)
    for mine, expected in zip(ours, vmap(normed, in_dims=dims)(*given), strict=True):
        torch.testing.assert_close(mine, expected)
    slope = vmap(grad(lambda *given: normed(*given)[0].sin().sum()), in_dims=dims)
    torch.testing.assert_close(by_matmuls(slope)(*given), slope(*given))


@pytest.mark.parametrize("options", [{"stride": (1, 2)}, {"dilation": 2}, {"groups": 2}, {"padding": 3}], ids=str)
def test_other_convolutions_are_left_to_pytorch(options, monkeypatch):
    monkeypatch.setattr(unfolded_ops, "_Convolution", None)
    x, weight = normal(NUM_RUNS, 2, 4, 6, 6, seed=0), normal(NUM_RUNS, 4, 4 // options.get("groups", 1), 3, 3, seed=1)
    ours = by_matmuls(vmap(lambda *given: functional.conv2d(*given, **options)))(x, weight)
    assert torch.equal(ours, vmap(lambda *given: functional.conv2d(*given, **options))(x, weight))


def test_images_that_all_runs_share_and_a_run_by_itself_are_left_to_pytorch(monkeypatch):
    monkeypatch.setattr(unfolded_ops, "_Convolution", None)
    x, weight = normal(2, 4, 6, 6, seed=0), normal(NUM_RUNS, 4, 4, 3, 3, seed=1)
    by_matmuls(vmap(functional.conv2d, in_dims=(None, 0)))(x, weight)
    by_matmuls(functional.conv2d)(x, weight[0])


@pytest.mark.parametrize("is_affine", [True, False])
def test_batch_norm_in_evaluation_never_asks_pytorch(is_affine, monkeypatch):
    """On a GPU PyTorch 2.11 refuses images with the channels last under `vmap`."""
    x = normal(NUM_RUNS, 4, 3, 2, 5, seed=0)
    mean, variance = normal(NUM_RUNS, 3, seed=3), normal(NUM_RUNS, 3, seed=4).square()
    weight, bias = (normal(NUM_RUNS, 3, seed=seed) if is_affine else None for seed in (1, 2))
    in_dims = (0, 0, 0, 0 if is_affine else None, 0 if is_affine else None)
    normed = vmap(lambda *given: functional.batch_norm(*given), in_dims=in_dims)
    expected = normed(x, mean, variance, weight, bias)
    monkeypatch.setattr(torch, "batch_norm", None)
    torch.testing.assert_close(by_matmuls(normed)(x, mean, variance, weight, bias), expected)


def test_batch_norm_of_one_value_and_without_statistics_is_pytorchs():
    x = normal(NUM_RUNS, 1, 2, 1, 1, seed=0)
    with pytest.raises(RuntimeError, match="running_mean"):
        by_matmuls(vmap(lambda each: functional.batch_norm(each, None, None)))(x)
    with pytest.raises(ValueError, match="more than 1 value"):
        by_matmuls(vmap(lambda each: functional.batch_norm(each, None, None, training=True)))(x)


SUITABLE = {
    "3 x 3": (nn.Conv2d(1, 4, 3, padding=1), True),
    "same": (nn.Conv2d(1, 4, 3, padding="same"), False),
    "valid": (nn.Conv2d(1, 4, 3, padding="valid"), True),
    "stride": (nn.Conv2d(1, 4, 3, stride=2), True),
    "two strides": (nn.Conv2d(1, 4, 3, stride=(1, 2)), False),
    "groups": (nn.Conv2d(4, 4, 3, groups=2), False),
    "circular": (nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular"), False),
    "more padding than taps": (nn.Conv2d(1, 4, 3, padding=3), False),
    "one dimension": (nn.Conv1d(1, 4, 3), False),
    "one of two": (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, dilation=2)), False),
    "no convolution": (nn.Linear(2, 2), True),
}


@pytest.mark.parametrize("name", SUITABLE)
def test_networks_that_suit(name):
    module, expected = SUITABLE[name]
    assert unfolded_ops.suits(module) == expected


def test_second_derivatives_are_refused():
    x, weight = normal(NUM_RUNS, 1, 2, 4, 4, seed=0), normal(NUM_RUNS, 2, 2, 3, 3, seed=1)

    def slope(weight: Tensor, x: Tensor) -> Tensor:
        return grad(lambda given: functional.conv2d(x, given).square().sum())(weight).square().sum()

    with pytest.raises(RuntimeError, match="no second derivative"):
        by_matmuls(vmap(grad(slope)))(weight, x)
