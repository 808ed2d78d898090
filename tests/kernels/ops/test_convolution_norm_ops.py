"""Convolutions fused with moments and sums, and the norms that use these, against the separate operations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from isotherm.kernels.layout import has_channels_last, with_channels_last
from isotherm.kernels.ops import convolution as convolution_ops
from isotherm.kernels.ops import ghost_norm as ghost_norm_ops
from isotherm.kernels.ops.convolution_norm import (
    NORM_BACKWARD_BY_SUMS,
    NORM_BY_MOMENTS,
    WITH_MOMENTS,
    WITH_SUMS,
    num_parts,
)

NUM_RUNS, NUM_IN, NUM_OUT, EPS = 2, 16, 32, 1e-5
# Batch, ghost, side of the images, taps, stride.
CASES = [(8, 4, 8, 3, 1), (8, 8, 8, 3, 2), (4, 2, 16, 1, 2), (2, 1, 16, 1, 1)]


def images(*shape: int) -> Tensor:
    return with_channels_last(torch.randn(shape, dtype=torch.float64))


def norm_parameters(num_channels: int) -> tuple[Tensor, Tensor]:
    scale, shift = (torch.randn(NUM_RUNS, num_channels, dtype=torch.float64) for _ in range(2))
    return 1 + 0.2 * scale, 0.3 * shift


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("adds", [False, True])
def test_a_norm_by_moments_is_the_norm_of_the_convolution(case: tuple[int, ...], adds: bool) -> None:
    batch, ghost, side, taps, stride = case
    x, filters = images(NUM_RUNS, batch, NUM_IN, side, side), images(NUM_RUNS, NUM_OUT, NUM_IN, taps, taps)
    y = convolution_ops.FORWARD(x, filters, stride, taps // 2)
    other = images(*y.shape) if adds else None
    total = y if other is None else with_channels_last(y + other)
    settings = (*norm_parameters(NUM_OUT), ghost, EPS, True)
    expected = ghost_norm_ops.FORWARD(total, *settings)
    ours, means, squares = WITH_MOMENTS(x, filters, other, stride, taps // 2, ghost)
    parts = num_parts(NUM_IN, y.shape, ghost)
    assert means.shape == squares.shape == (NUM_RUNS, batch // ghost, parts, NUM_OUT)
    torch.testing.assert_close(ours, total, rtol=1e-12, atol=1e-12)
    found = NORM_BY_MOMENTS(ours, means, squares, *settings[:2], EPS, True)
    for value, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-10, atol=1e-10)
    assert has_channels_last(ours)
    assert has_channels_last(found[0])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("adds", [False, True])
def test_a_gradient_by_sums_is_the_gradient_of_the_norm(case: tuple[int, ...], adds: bool) -> None:
    batch, ghost, side, taps, stride = case
    x, filters = images(NUM_RUNS, batch, NUM_IN, side, side), images(NUM_RUNS, NUM_OUT, NUM_IN, taps, taps)
    scale, shift = norm_parameters(NUM_IN)
    y, mean, var = ghost_norm_ops.FORWARD(x, scale, shift, ghost, EPS, True)
    dy = images(*convolution_ops.FORWARD(y, filters, stride, taps // 2).shape)
    added, other = (images(*x.shape) if adds else None for _ in range(2))
    gradient = convolution_ops.INPUT_GRADIENT(dy, filters, added, side, side, stride, taps // 2)
    norm = mean, var, scale, shift
    expected = ghost_norm_ops.BACKWARD(gradient, x, *norm, EPS, True, other)
    ours, sums, products = WITH_SUMS(dy, filters, added, x, *norm, EPS, True, stride, taps // 2)
    assert sums.shape[2] == num_parts(NUM_OUT, x.shape, ghost, stride=stride)
    torch.testing.assert_close(ours, gradient)
    found = NORM_BACKWARD_BY_SUMS(ours, x, *norm, sums, products, EPS, True, other)
    for value, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_what_is_known_without_values_is_so(dtype: torch.dtype) -> None:
    x, filters = images(NUM_RUNS, 4, NUM_IN, 8, 8).to(dtype), images(NUM_RUNS, NUM_OUT, NUM_IN, 3, 3).to(dtype)
    scale, shift = norm_parameters(NUM_IN)
    _, mean, var = ghost_norm_ops.FORWARD(x, scale, shift, 2, EPS, True)
    of_output = norm_parameters(NUM_OUT)
    made = WITH_MOMENTS(x, filters, None, 2, 1, 2)
    dy = with_channels_last(torch.randn(made[0].shape).to(dtype))
    norm = mean, var, scale, shift
    taken = WITH_SUMS(dy, filters, None, x, *norm, EPS, True, 2, 1)
    calls = [
        (WITH_MOMENTS, (x, filters, None, 2, 1, 2)),
        (NORM_BY_MOMENTS, (*made, *of_output, EPS, True)),
        (WITH_SUMS, (dy, filters, None, x, *norm, EPS, True, 2, 1)),
        (NORM_BACKWARD_BY_SUMS, (taken[0], x, *norm, *taken[1:], EPS, True, None)),
    ]
    for operation, arguments in calls:
        real = operation(*arguments)
        with FakeTensorMode() as mode:
            told = operation(*(mode.from_tensor(a) if isinstance(a, Tensor) else a for a in arguments))
        for value, fake in zip(real, told, strict=True):
            assert (value.shape, value.stride(), value.dtype) == (fake.shape, fake.stride(), fake.dtype)


def test_ghosts_that_tiles_do_not_fill_are_refused() -> None:
    x, filters = images(NUM_RUNS, 4, NUM_IN, 6, 6), images(NUM_RUNS, NUM_OUT, NUM_IN, 3, 3)
    assert num_parts(NUM_IN, x.shape, 2) is None
    with pytest.raises(ValueError, match="cannot be split into equal parts"):
        WITH_MOMENTS(x, filters, None, 1, 1, 2)
