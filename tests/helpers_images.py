"""Small steps of convolutions and ghost batch norm, and passes run on them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from helpers_graph import Function, run_passes
from isotherm.engine.graph.pipeline import Pass
from isotherm.kernels.layout import with_channels_last
from isotherm.kernels.ops import convolution as convolution_ops
from isotherm.kernels.ops import ghost_norm as ghost_norm_ops

NUM_RUNS, NUM_CHANNELS, SIDE, GHOST, EPS = 2, 16, 8, 2, 1e-5
CONVOLVE, NORM, NORM_OF_SUM = convolution_ops.FORWARD, ghost_norm_ops.FORWARD, ghost_norm_ops.FORWARD_OF_SUM


def image_arguments(side: int = SIDE) -> list[Tensor]:
    """Return images, a gradient like them, two sets of filters, scales and shifts."""
    torch.manual_seed(0)
    x, dy = (torch.randn(NUM_RUNS, 4, NUM_CHANNELS, side, side, dtype=torch.float64) for _ in range(2))
    filters = [torch.randn(NUM_RUNS, NUM_CHANNELS, NUM_CHANNELS, 3, 3, dtype=torch.float64) for _ in range(2)]
    vectors = [1 + 0.2 * torch.randn(NUM_RUNS, NUM_CHANNELS, dtype=torch.float64) for _ in range(2)]
    return [with_channels_last(t) for t in (x, dy, *filters)] + vectors


def joined(step: Function, given: list[Tensor], *passes: Pass) -> tuple[Counter[Any], Counter[Any]]:
    """Run passes, check that nothing changed, and return the operations before and after."""
    module = make_fx(step)(*given)
    module.graph.eliminate_dead_code()
    expected = module(*given)
    before = Counter(node.target for node in module.graph.nodes)
    run_passes(module, *passes)
    for found, wanted in zip(module(*given), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    return before, Counter(node.target for node in module.graph.nodes)


def gradient_step(x: Tensor, dy: Tensor, first: Tensor, second: Tensor, scale: Tensor, shift: Tensor) -> Any:
    """A norm, read by two convolutions, and the way back."""
    y, mean, var = NORM(x, scale, shift, GHOST, EPS, True)
    results = [CONVOLVE(y, filters, 1, 1) for filters in (first, second)]
    back = [convolution_ops.INPUT_GRADIENT(dy, filters, None, *x.shape[3:], 1, 1) for filters in (first, second)]
    return *results, *ghost_norm_ops.BACKWARD(back[0] + back[1], x, mean, var, scale, shift, EPS, True, dy)
