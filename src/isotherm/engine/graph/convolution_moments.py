"""Moments for ghost batch norm, taken by the convolution before it."""

from __future__ import annotations

from typing import NamedTuple

from torch import fx

from isotherm.engine.graph.operands import Convolution, GhostNorm, GhostNormOfSum
from isotherm.engine.graph.step_graph import (
    StepGraph,
    call_with_results,
    has_one_user,
    replace,
    replace_results,
    value_of,
)
from isotherm.kernels.ops import convolution_norm as convolution_norm_ops


class _Pair(NamedTuple):
    """A convolution, what is added to it, and the norm of that."""

    convolution: fx.Node
    other: fx.Node | None
    norm: GhostNorm | GhostNormOfSum


def take_moments(step: StepGraph) -> None:
    """Where the result of a convolution, or a sum with it, is normalised, let the convolution take the moments.

    Expects: norms with their ReLUs and residual sums (`norm_relus`, `norm_sums`).
    Leaves: `isotherm::convolution_with_moments` and `isotherm::ghost_norm_by_moments` where the kernels can.
    """
    for node in list(step.graph.nodes):
        pair = _pair(node)
        if pair is not None and pair.other is not pair.convolution and _can_be_tiled(pair):
            _take(step.graph, node, pair)


def _pair(node: fx.Node) -> _Pair | None:
    norm, norm_of_sum = GhostNorm.of(node), GhostNormOfSum.of(node)
    if norm is not None and Convolution.of(norm.x) is not None:
        return _Pair(convolution=norm.x, other=None, norm=norm)
    if norm_of_sum is not None:
        a, b = norm_of_sum.a, norm_of_sum.b
        for convolution, other in ((a, b), (b, a)):
            if has_one_user(convolution, Convolution.TARGET):
                return _Pair(convolution=convolution, other=other, norm=norm_of_sum)
    return None


def _can_be_tiled(pair: _Pair) -> bool:
    convolution = Convolution.of(pair.convolution)
    assert convolution is not None
    num_inner, shape = value_of(convolution.filters).shape[2], value_of(pair.convolution).shape
    return convolution_norm_ops.num_parts(num_inner, shape, pair.norm.ghost_size) is not None


def _take(graph: fx.Graph, node: fx.Node, pair: _Pair) -> None:
    given, norm = Convolution.of(pair.convolution), pair.norm
    assert given is not None
    # A convolution alone stays where it is, as others may read it before it is normalised.
    with graph.inserting_before(pair.convolution if pair.other is None else node):
        arguments = given.x, given.filters, pair.other, given.stride, given.padding, norm.ghost_size
        taken = call_with_results(graph, convolution_norm_ops.WITH_MOMENTS, *arguments)
    with graph.inserting_before(node):
        settings = norm.weight, norm.bias, norm.eps, norm.relu
        normalised = call_with_results(graph, convolution_norm_ops.NORM_BY_MOMENTS, *taken, *settings)
    replace_results(graph, node, normalised if pair.other is None else [taken[0], *normalised])
    replace(graph, pair.convolution, taken[0])
