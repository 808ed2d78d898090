"""The gradient of a convolution takes the sums that the gradient of a norm begins with."""

from __future__ import annotations

import torch
from torch import Tensor

from helpers_images import EPS, GHOST, NORM, gradient_step, image_arguments, joined
from isotherm.engine.graph.convolution_gradient_sums import add_to_input_gradients
from isotherm.engine.graph.convolution_norm_sums import take_norm_sums
from isotherm.kernels.ops import convolution as convolution_ops
from isotherm.kernels.ops import convolution_norm as convolution_norm_ops
from isotherm.kernels.ops import ghost_norm as ghost_norm_ops


def test_the_pass_alone() -> None:
    """It expects gradients with all that is added to them, and leaves two calls that share a pass over the images."""
    _, after = joined(gradient_step, image_arguments(), add_to_input_gradients, take_norm_sums)
    assert after[convolution_norm_ops.WITH_SUMS] == after[convolution_norm_ops.NORM_BACKWARD_BY_SUMS] == 1
    assert after[convolution_ops.INPUT_GRADIENT] == 1
    assert after[ghost_norm_ops.BACKWARD] == 0


def test_where_tiles_do_not_fill_ghosts_norms_begin_by_themselves() -> None:
    before, after = joined(gradient_step, image_arguments(side=6), add_to_input_gradients, take_norm_sums)
    assert after[convolution_norm_ops.WITH_SUMS] == 0
    assert after[ghost_norm_ops.BACKWARD] == before[ghost_norm_ops.BACKWARD] == 1
    assert after[torch.ops.aten.add.Tensor] == 0  # adding goes on


def test_a_gradient_that_others_read_takes_no_sums() -> None:
    def step(x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        _, mean, var = NORM(x, scale, shift, GHOST, EPS, True)
        back = convolution_ops.INPUT_GRADIENT(dy, first, None, *x.shape[3:], 1, 1)
        return back * 2, *ghost_norm_ops.BACKWARD(back, x, mean, var, scale, shift, EPS, True, None)

    before, after = joined(step, image_arguments(), take_norm_sums)
    assert before == after
