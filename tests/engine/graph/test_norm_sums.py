"""A residual sum is added by the norm that reads it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers_images import CONVOLVE, EPS, GHOST, NORM, NORM_OF_SUM, image_arguments, joined
from isotherm.engine.graph.convolution_moments import take_moments
from isotherm.engine.graph.norm_sums import add_before_norms


def residual(x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
    total = CONVOLVE(x, first, 1, 1) + dy
    y, mean, var = NORM(total, scale, shift, GHOST, EPS, True)
    return y, mean, var, total * 2


def test_the_pass_alone() -> None:
    """It expects norms that have their ReLUs, and leaves norms of sums."""
    before, after = joined(residual, image_arguments(), add_before_norms)
    assert (before[torch.ops.aten.add.Tensor], after[torch.ops.aten.add.Tensor]) == (1, 0)
    assert (after[NORM], after[NORM_OF_SUM]) == (0, 1)


def read_before(
    x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor
) -> tuple[Tensor, ...]:
    total = x + dy
    early = total * 2
    return early, *NORM(total, scale, shift, GHOST, EPS, True)


def of_other_layout(x: Tensor, dy: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    return tuple(NORM((x + dy.contiguous()), *others[2:], GHOST, EPS, True))


@pytest.mark.parametrize("step", [read_before, of_other_layout])
def test_other_sums_stay(step) -> None:
    before, after = joined(step, image_arguments(), add_before_norms)
    assert before == after


def test_convolutions_that_take_moments_already_are_refused() -> None:
    def step(x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        return tuple(NORM(CONVOLVE(x, first, 1, 1), scale, shift, GHOST, EPS, True))

    with pytest.raises(AssertionError, match="add_before_norms comes before take_moments"):
        joined(step, image_arguments(), take_moments, add_before_norms)
