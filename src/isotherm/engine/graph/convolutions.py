"""Convolutions of many runs in a traced program: what can be done in the same pass over their results is done there."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from isotherm.engine.graph.matmuls import call, value_of
from isotherm.engine.graph.norms import is_plain_sum
from isotherm.kernels.ops import (
    convolution as convolution_ops,
)
from isotherm.kernels.ops import (
    convolution_norm as convolution_norm_ops,
)
from isotherm.kernels.ops import (
    ghost_norm as ghost_norm_ops,
)


def join_convolutions_and_norms(graph: fx.Graph) -> None:
    """Let convolutions add what is added to them, and take the sums that ghost batch norm begins with."""
    _add_to_input_gradients(graph)
    _take_moments(graph)
    _take_sums(graph)


def leaves_convolutions(graph: fx.Graph) -> bool:
    """Tell whether any convolution was left to PyTorch, which would compute those of all runs as groups."""
    return any(node.target is torch.ops.aten.convolution.default for node in graph.nodes)


def _add_to_input_gradients(graph: fx.Graph) -> None:
    """Where two convolutions read the same images, let the second gradient be added to the first as it is made."""
    for node in list(graph.nodes):
        if not is_plain_sum(node) or node.args[0] is node.args[1]:
            continue
        for other, gradient in (node.args, node.args[::-1]):
            if _is_alone(gradient, convolution_ops.INPUT_GRADIENT) and gradient.args[2] is None:
                with graph.inserting_before(node):
                    arguments = (*gradient.args[:2], other, *gradient.args[3:])
                    fused = call(graph, convolution_ops.INPUT_GRADIENT, *arguments)
                _replace(graph, node, fused)
                graph.erase_node(gradient)
                break


def _take_moments(graph: fx.Graph) -> None:
    """Where the result of a convolution, or a sum with it, is normalised, let it take the moments."""
    for node in list(graph.nodes):
        if node.target is ghost_norm_ops.FORWARD:
            convolution, other = node.args[0], None
            is_fit = isinstance(convolution, fx.Node) and convolution.target is convolution_ops.FORWARD
        elif node.target is ghost_norm_ops.FORWARD_OF_SUM:
            convolution, other = node.args[:2]
            if not _is_alone(convolution, convolution_ops.FORWARD):
                convolution, other = other, convolution
            is_fit = _is_alone(convolution, convolution_ops.FORWARD)
        else:
            continue
        weight, bias, ghost_size, eps, relu = node.args[-5:]
        if not is_fit or other is convolution or not _can_be_cut(convolution, ghost_size):
            continue
        x, filters, stride, padding = convolution.args
        # A convolution alone stays where it is, as others may read it before it is normalised.
        with graph.inserting_before(convolution if other is None else node):
            taken = _results(graph, convolution_norm_ops.WITH_MOMENTS, x, filters, other, stride, padding, ghost_size)
        with graph.inserting_before(node):
            normalised = _results(graph, convolution_norm_ops.NORM_BY_MOMENTS, *taken, weight, bias, eps, relu)
        _replace_results(graph, node, normalised if other is None else [taken[0], *normalised])
        _replace(graph, convolution, taken[0])


def _take_sums(graph: fx.Graph) -> None:
    """Where the gradient of a convolution's images goes to the ghost batch norm that made them, let it take sums."""
    for node in list(graph.nodes):
        if node.target is not ghost_norm_ops.BACKWARD:
            continue
        gradient, x, *norm, eps, relu, other = node.args
        if not _is_alone(gradient, convolution_ops.INPUT_GRADIENT):
            continue
        dy, filters, added, _, _, stride, padding = gradient.args
        images, num_ghosts = value_of(x), value_of(norm[0]).shape[-2]
        num_inner, ghost_size = value_of(filters).shape[1], images.shape[1] // num_ghosts
        if convolution_norm_ops.num_parts(num_inner, images.shape, ghost_size, stride=stride) is None:
            continue
        with graph.inserting_before(node):
            made_of = dy, filters, added, x, *norm, eps, relu, stride, padding
            taken = _results(graph, convolution_norm_ops.WITH_SUMS, *made_of)
            given = taken[0], x, *norm, *taken[1:], eps, relu, other
            results = _results(graph, convolution_norm_ops.NORM_BACKWARD_BY_SUMS, *given)
        _replace_results(graph, node, results)
        graph.erase_node(gradient)


def _is_alone(node: Any, target: Any) -> bool:
    """Tell whether a node is such a call, and only one other reads it."""
    return isinstance(node, fx.Node) and node.target is target and len(node.users) == 1


def _can_be_cut(convolution: fx.Node, ghost_size: int) -> bool:
    num_inner = value_of(convolution.args[1]).shape[2]
    return convolution_norm_ops.num_parts(num_inner, value_of(convolution).shape, ghost_size) is not None


def _results(graph: fx.Graph, target: Any, *arguments: Any) -> list[fx.Node]:
    """Return the results of a new call, with what is known of their values."""
    node = call(graph, target, *arguments)
    results = []
    for place, value in enumerate(node.meta["val"]):
        result = graph.call_function(operator.getitem, (node, place))
        result.meta["val"] = value
        results.append(result)
    return results


def _replace_results(graph: fx.Graph, node: fx.Node, results: list[fx.Node]) -> None:
    """Let those who read a result of a call read one of the others."""
    for user in list(node.users):
        _replace(graph, user, results[user.args[1]])  # type: ignore[index]
    graph.erase_node(node)


def _replace(graph: fx.Graph, node: fx.Node, by: fx.Node) -> None:
    node.replace_all_uses_with(by)
    graph.erase_node(node)
