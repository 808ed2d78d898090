"""Of two gradients of the same images one is added to the other as it is made."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers_images import gradient_step, image_arguments, joined
from isotherm.engine.graph.convolution_gradient_sums import add_to_input_gradients
from isotherm.engine.graph.convolution_norm_sums import take_norm_sums
from isotherm.kernels.ops import convolution as convolution_ops


def test_the_pass_alone() -> None:
    """It expects convolutions without sums, and leaves one that adds the gradient of the other."""
    before, after = joined(gradient_step, image_arguments(), add_to_input_gradients)
    assert (before[torch.ops.aten.add.Tensor], after[torch.ops.aten.add.Tensor]) == (1, 0)
    assert after[convolution_ops.INPUT_GRADIENT] == 2


def test_gradients_that_take_sums_already_are_refused() -> None:
    with pytest.raises(AssertionError, match="add_to_input_gradients comes before take_norm_sums"):
        joined(gradient_step, image_arguments(), add_to_input_gradients, take_norm_sums, add_to_input_gradients)


def test_a_gradient_added_to_itself_is_left_alone() -> None:
    def step(x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        back = convolution_ops.INPUT_GRADIENT(dy, first, None, *x.shape[3:], 1, 1)
        return (back + back,)

    before, after = joined(step, image_arguments(), add_to_input_gradients)
    assert before == after
