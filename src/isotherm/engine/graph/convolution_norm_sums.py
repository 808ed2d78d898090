"""Sums for the gradient of ghost batch norm, taken by the convolution's gradient before it."""

from __future__ import annotations

from torch import fx

from isotherm.engine.graph.operands import ConvolutionInputGradient, GhostNormBackward
from isotherm.engine.graph.step_graph import StepGraph, call_with_results, has_one_user, replace_results, value_of
from isotherm.kernels.ops import convolution_norm as convolution_norm_ops


def take_norm_sums(step: StepGraph) -> None:
    """Where the gradient of a convolution's images goes to the ghost batch norm that made them, let it take the sums.

    Expects: gradients with all that is added to them (`norm_gradient_sums`, `convolution_gradient_sums`).
    Leaves: `isotherm::convolution_input_gradient_with_sums` and `isotherm::ghost_norm_backward_by_sums` where the
    kernels can.
    """
    for node in list(step.graph.nodes):
        norm = GhostNormBackward.of(node)
        if norm is None or not has_one_user(norm.dy, ConvolutionInputGradient.TARGET):
            continue
        gradient = ConvolutionInputGradient.of(norm.dy)
        assert gradient is not None
        if _can_be_tiled(norm, gradient):
            _take(step.graph, node, norm, gradient)


def _can_be_tiled(norm: GhostNormBackward, gradient: ConvolutionInputGradient) -> bool:
    images, num_ghosts = value_of(norm.x), value_of(norm.mean).shape[-2]
    num_inner, ghost_size = value_of(gradient.filters).shape[1], images.shape[1] // num_ghosts
    parts = convolution_norm_ops.num_parts(num_inner, images.shape, ghost_size, stride=gradient.stride)
    return parts is not None


def _take(graph: fx.Graph, node: fx.Node, norm: GhostNormBackward, gradient: ConvolutionInputGradient) -> None:
    statistics = norm.x, norm.mean, norm.var, norm.weight, norm.bias
    convolution = gradient.dy, gradient.filters, gradient.other
    settings = norm.eps, norm.relu, gradient.stride, gradient.padding
    with graph.inserting_before(node):
        dx, *sums = call_with_results(graph, convolution_norm_ops.WITH_SUMS, *convolution, *statistics, *settings)
        given = dx, *statistics, *sums, norm.eps, norm.relu, norm.other
        results = call_with_results(graph, convolution_norm_ops.NORM_BACKWARD_BY_SUMS, *given)
    replace_results(graph, node, results)
    graph.erase_node(norm.dy)
