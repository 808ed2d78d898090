"""A ReLU after a norm is taken by the norm, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers_images import EPS, GHOST, NORM, NORM_OF_SUM, image_arguments, joined
from isotherm.engine.graph.norm_relus import take_relus_into_norms
from isotherm.kernels.ops import ghost_norm as ghost_norm_ops

_aten = torch.ops.aten


def rectified(x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
    y, mean, var = NORM(x, scale, shift, GHOST, EPS, False)
    positive = torch.relu(y)
    masked = _aten.threshold_backward.default(dy, positive, 0)
    return positive * 2, *ghost_norm_ops.BACKWARD(masked, x, mean, var, scale, shift, EPS, False, None)


def test_the_pass_alone() -> None:
    """It expects norms of one tensor, and leaves no ReLU behind them and no mask before their gradients."""
    before, after = joined(rectified, image_arguments(), take_relus_into_norms)
    gone = _aten.relu.default, _aten.threshold_backward.default
    assert [before[target] for target in gone] == [1, 1]
    assert [after[target] for target in gone] == [0, 0]
    assert (after[NORM], after[ghost_norm_ops.BACKWARD]) == (1, 1)


def read_unrectified(
    x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor
) -> tuple[Tensor, ...]:
    y, mean, var = NORM(x, scale, shift, GHOST, EPS, False)
    return torch.relu(y), y * 2, mean, var


def unmasked_gradient(
    x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor
) -> tuple[Tensor, ...]:
    y, mean, var = NORM(x, scale, shift, GHOST, EPS, False)
    return torch.relu(y), *ghost_norm_ops.BACKWARD(dy, x, mean, var, scale, shift, EPS, False, None)


def gradient_read_twice(
    x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor
) -> tuple[Tensor, ...]:
    y, mean, var = NORM(x, scale, shift, GHOST, EPS, False)
    positive = torch.relu(y)
    masked = _aten.threshold_backward.default(dy, positive, 0)
    return masked * 2, *ghost_norm_ops.BACKWARD(masked, x, mean, var, scale, shift, EPS, False, None)


@pytest.mark.parametrize("step", [read_unrectified, unmasked_gradient, gradient_read_twice])
def test_other_relus_stay(step) -> None:
    before, after = joined(step, image_arguments(), take_relus_into_norms)
    assert before == after


def test_norms_of_sums_are_refused() -> None:
    def step(x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        return tuple(NORM_OF_SUM(x, dy, scale, shift, GHOST, EPS, False))

    with pytest.raises(AssertionError, match="take_relus_into_norms comes before add_before_norms"):
        joined(step, image_arguments(), take_relus_into_norms)
