"""A traced program whose convolutions and norms are joined gives what it gave before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from isotherm.engine.graph.convolutions import join_convolutions_and_norms
from isotherm.kernels.layout import with_channels_last
from isotherm.kernels.ops import (
    convolution as convolution_ops,
)
from isotherm.kernels.ops import (
    convolution_norm as convolution_norm_ops,
)
from isotherm.kernels.ops import (
    ghost_norm as ghost_norm_ops,
)

NUM_RUNS, NUM_CHANNELS, SIDE, GHOST, EPS = 2, 16, 8, 2, 1e-5
CONVOLVE, NORM, NORM_OF_SUM = convolution_ops.FORWARD, ghost_norm_ops.FORWARD, ghost_norm_ops.FORWARD_OF_SUM
Step = Callable[..., tuple[Tensor, ...]]


def arguments(side: int = SIDE) -> list[Tensor]:
    torch.manual_seed(0)
    x, dy = (torch.randn(NUM_RUNS, 4, NUM_CHANNELS, side, side, dtype=torch.float64) for _ in range(2))
    filters = [torch.randn(NUM_RUNS, NUM_CHANNELS, NUM_CHANNELS, 3, 3, dtype=torch.float64) for _ in range(2)]
    vectors = [1 + 0.2 * torch.randn(NUM_RUNS, NUM_CHANNELS, dtype=torch.float64) for _ in range(2)]
    return [with_channels_last(t) for t in (x, dy, *filters)] + vectors


def joined(step: Step, given: list[Tensor]) -> tuple[Counter[Any], Counter[Any]]:
    """Join, check that nothing changed, and return the operations before and after."""
    module = make_fx(step)(*given)
    module.graph.eliminate_dead_code()
    expected = module(*given)
    before = Counter(node.target for node in module.graph.nodes)
    join_convolutions_and_norms(module.graph)
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()
    for found, wanted in zip(module(*given), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    return before, Counter(node.target for node in module.graph.nodes)


def test_a_convolution_takes_the_moments_of_what_is_normalised() -> None:
    def step(x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        y = CONVOLVE(x, first, 1, 1)
        early = y * 2  # somebody else reads it first
        return early, *NORM(y, scale, shift, GHOST, EPS, True)

    _, after = joined(step, arguments())
    assert after[convolution_norm_ops.WITH_MOMENTS] == after[convolution_norm_ops.NORM_BY_MOMENTS] == 1
    assert after[CONVOLVE] == after[NORM] == 0


@pytest.mark.parametrize("is_first", [True, False])
def test_a_convolution_adds_the_residual_sum(is_first: bool) -> None:
    def step(x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        y = CONVOLVE(x, first, 1, 1)
        pair = (y, dy) if is_first else (dy, y)
        total, *normalised = NORM_OF_SUM(*pair, scale, shift, GHOST, EPS, True)
        return total + 1, *normalised

    _, after = joined(step, arguments())
    assert after[convolution_norm_ops.WITH_MOMENTS] == after[convolution_norm_ops.NORM_BY_MOMENTS] == 1
    assert after[CONVOLVE] == after[NORM_OF_SUM] == 0


def test_of_two_convolutions_one_adds_the_other() -> None:
    def step(x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        made = CONVOLVE(x, first, 1, 1), CONVOLVE(dy, second, 1, 1)
        return tuple(NORM_OF_SUM(*made, scale, shift, GHOST, EPS, False))

    _, after = joined(step, arguments())
    assert after[convolution_norm_ops.WITH_MOMENTS] == after[CONVOLVE] == 1


def test_a_convolution_added_to_itself_takes_no_moments() -> None:
    def step(x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        y = CONVOLVE(x, first, 1, 1)
        return tuple(NORM_OF_SUM(y, y, scale, shift, GHOST, EPS, True))

    before, after = joined(step, arguments())
    assert before == after


def test_a_convolution_that_others_read_is_not_changed_by_a_sum() -> None:
    def step(x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        y = CONVOLVE(x, first, 1, 1)
        return y * 2, *NORM_OF_SUM(y, dy, scale, shift, GHOST, EPS, True)

    before, after = joined(step, arguments())
    assert before == after


def gradient_step(x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor) -> Any:
    """A norm, read by two convolutions, and the way back."""
    y, mean, var = NORM(x, scale, shift, GHOST, EPS, True)
    results = [CONVOLVE(y, filters, 1, 1) for filters in (first, second)]
    back = [convolution_ops.INPUT_GRADIENT(dy, filters, None, *x.shape[3:], 1, 1) for filters in (first, second)]
    return *results, *ghost_norm_ops.BACKWARD(back[0] + back[1], x, mean, var, scale, shift, EPS, True, dy)


def test_gradients_are_added_where_they_are_made_and_take_sums() -> None:
    before, after = joined(gradient_step, arguments())
    assert before[torch.ops.aten.add.Tensor] == 1
    assert after[torch.ops.aten.add.Tensor] == 0
    assert after[convolution_norm_ops.WITH_SUMS] == after[convolution_norm_ops.NORM_BACKWARD_BY_SUMS] == 1
    assert after[convolution_ops.INPUT_GRADIENT] == 1


def test_where_tiles_do_not_fill_ghosts_norms_begin_by_themselves() -> None:
    before, after = joined(gradient_step, arguments(side=6))
    assert after[convolution_norm_ops.WITH_SUMS] == after[convolution_norm_ops.WITH_MOMENTS] == 0
    assert after[ghost_norm_ops.BACKWARD] == before[ghost_norm_ops.BACKWARD] == 1
    assert after[torch.ops.aten.add.Tensor] == 0  # adding goes on


def test_a_gradient_that_others_read_takes_no_sums() -> None:
    def step(x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        _, mean, var = NORM(x, scale, shift, GHOST, EPS, True)
        back = convolution_ops.INPUT_GRADIENT(dy, first, None, *x.shape[3:], 1, 1)
        return back * 2, *ghost_norm_ops.BACKWARD(back, x, mean, var, scale, shift, EPS, True, None)

    before, after = joined(step, arguments())
    assert before == after


def test_a_gradient_added_to_itself_is_left_alone() -> None:
    def step(x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        back = convolution_ops.INPUT_GRADIENT(dy, first, None, *x.shape[3:], 1, 1)
        return (back + back,)

    before, after = joined(step, arguments())
    assert before == after
