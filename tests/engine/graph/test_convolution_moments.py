"""A convolution takes the moments of what is normalised after it."""

from __future__ import annotations

import pytest
from torch import Tensor

from helpers_images import CONVOLVE, EPS, GHOST, NORM, NORM_OF_SUM, image_arguments, joined
from isotherm.engine.graph.convolution_moments import take_moments
from isotherm.kernels.ops import convolution_norm as convolution_norm_ops


def test_a_convolution_takes_the_moments_of_what_is_normalised() -> None:
    def step(x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        y = CONVOLVE(x, first, 1, 1)
        early = y * 2  # somebody else reads it first
        return early, *NORM(y, scale, shift, GHOST, EPS, True)

    _, after = joined(step, image_arguments(), take_moments)
    assert after[convolution_norm_ops.WITH_MOMENTS] == after[convolution_norm_ops.NORM_BY_MOMENTS] == 1
    assert after[CONVOLVE] == after[NORM] == 0


@pytest.mark.parametrize("is_first", [True, False])
def test_a_convolution_adds_the_residual_sum(is_first: bool) -> None:
    def step(x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        y = CONVOLVE(x, first, 1, 1)
        pair = (y, dy) if is_first else (dy, y)
        total, *normalised = NORM_OF_SUM(*pair, scale, shift, GHOST, EPS, True)
        return total + 1, *normalised

    _, after = joined(step, image_arguments(), take_moments)
    assert after[convolution_norm_ops.WITH_MOMENTS] == after[convolution_norm_ops.NORM_BY_MOMENTS] == 1
    assert after[CONVOLVE] == after[NORM_OF_SUM] == 0


def test_of_two_convolutions_one_adds_the_other() -> None:
    def step(x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        made = CONVOLVE(x, first, 1, 1), CONVOLVE(dy, second, 1, 1)
        return tuple(NORM_OF_SUM(*made, scale, shift, GHOST, EPS, False))

    _, after = joined(step, image_arguments(), take_moments)
    assert after[convolution_norm_ops.WITH_MOMENTS] == after[CONVOLVE] == 1


def test_a_convolution_added_to_itself_takes_no_moments() -> None:
    def step(x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        y = CONVOLVE(x, first, 1, 1)
        return tuple(NORM_OF_SUM(y, y, scale, shift, GHOST, EPS, True))

    before, after = joined(step, image_arguments(), take_moments)
    assert before == after


def test_a_convolution_that_others_read_is_not_changed_by_a_sum() -> None:
    def step(x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        y = CONVOLVE(x, first, 1, 1)
        return y * 2, *NORM_OF_SUM(y, dy, scale, shift, GHOST, EPS, True)

    before, after = joined(step, image_arguments(), take_moments)
    assert before == after
