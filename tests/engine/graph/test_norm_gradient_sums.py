"""The gradient of a norm is added to another by the kernel that makes it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers_images import EPS, GHOST, NORM, gradient_step, image_arguments, joined
from isotherm.engine.graph.convolution_gradient_sums import add_to_input_gradients
from isotherm.engine.graph.convolution_norm_sums import take_norm_sums
from isotherm.engine.graph.norm_gradient_sums import add_after_norm_gradients
from isotherm.kernels.ops import ghost_norm as ghost_norm_ops

BACKWARD = ghost_norm_ops.BACKWARD


def backward(dy: Tensor, x: Tensor, scale: Tensor, shift: Tensor) -> list[Tensor]:
    _, mean, var = NORM(x, scale, shift, GHOST, EPS, True)
    return list(BACKWARD(dy, x, mean, var, scale, shift, EPS, True, None))


@pytest.mark.parametrize("is_first", [True, False])
def test_the_pass_alone(is_first: bool) -> None:
    """It expects norms that have their ReLUs, and leaves one that adds what is known before it."""

    def step(x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        other = dy * 3
        dx, *rest = backward(dy, x, scale, shift)
        return dx + other if is_first else other + dx, *rest

    before, after = joined(step, image_arguments(), add_after_norm_gradients)
    assert (before[torch.ops.aten.add.Tensor], after[torch.ops.aten.add.Tensor]) == (1, 0)
    assert after[BACKWARD] == 1


def made_later(
    x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor
) -> tuple[Tensor, ...]:
    dx, *rest = backward(dy, x, scale, shift)
    return dx + dy * 3, *rest


def read_twice(
    x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor
) -> tuple[Tensor, ...]:
    dx, *rest = backward(dy, x, scale, shift)
    return dx + dy, dx * 2, *rest


def added_to_itself(
    x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor
) -> tuple[Tensor, ...]:
    dx, *rest = backward(dy, x, scale, shift)
    return dx + dx, *rest


@pytest.mark.parametrize("step", [made_later, read_twice, added_to_itself])
def test_other_sums_stay(step) -> None:
    before, after = joined(step, image_arguments(), add_after_norm_gradients)
    assert before == after


def test_norms_that_are_given_sums_already_are_refused() -> None:
    with pytest.raises(AssertionError, match="add_after_norm_gradients comes before take_norm_sums"):
        joined(gradient_step, image_arguments(), add_to_input_gradients, take_norm_sums, add_after_norm_gradients)
