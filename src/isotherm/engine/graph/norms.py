"""Ghost batch norm in a traced program: ReLUs and residual sums beside it are done by its kernels."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

from isotherm.engine.graph.matmuls import value_of
from isotherm.kernels.layout import has_channels_last
from isotherm.kernels.ops import ghost_norm as ghost_norm_ops

_aten = torch.ops.aten


def join_norms_with_neighbours(graph: fx.Graph) -> None:
    """Let ghost batch norm take the positive part behind it, and add what is added before it and to its gradient."""
    _rectify_while_normalising(graph)
    _add_before_normalising(graph)
    _add_after_normalising_backwards(graph)


def is_plain_sum(node: Any) -> bool:
    """Tell whether a node adds two tensors of equal shape, type and layout, as they are, with the channels last."""
    is_sum = isinstance(node, fx.Node) and node.target is _aten.add.Tensor
    if not is_sum or node.kwargs or len(node.args) != 2:
        return False
    values = [part.meta.get("val") for part in (node, *node.args) if isinstance(part, fx.Node)]
    tensors = [value for value in values if isinstance(value, Tensor)]
    return (
        len(tensors) == 3
        and len({(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors}) == 1
        and tensors[0].ndim >= 4
        and has_channels_last(tensors[0])
    )


def _rectify_while_normalising(graph: fx.Graph) -> None:
    """Where only the positive part of what is normalised is used, forward and backward, let the kernels take it."""
    for node in list(graph.nodes):
        if node.target is not ghost_norm_ops.FORWARD or node.args[-1]:
            continue
        results = {user.args[1]: user for user in node.users}
        readers = list(results[0].users) if 0 in results else []
        if len(readers) != 1 or readers[0].target is not _aten.relu.default:
            continue
        (rectified,) = readers
        backward = [user for user in results[1].users if user.target is ghost_norm_ops.BACKWARD] if 1 in results else []
        if not all(_is_behind(gradient.args[0], rectified) for gradient in backward):
            continue
        node.args = (*node.args[:-1], True)
        for gradient in backward:
            masked = gradient.args[0]
            gradient.args = (masked.args[0], *gradient.args[1:7], True, *gradient.args[8:])
            graph.erase_node(masked)
        rectified.replace_all_uses_with(results[0])
        graph.erase_node(rectified)


def _is_behind(gradient: Any, rectified: fx.Node) -> bool:
    """Tell whether a gradient, read once, is one of a positive part taken back to before it, in the kernels' layout."""
    return (
        isinstance(gradient, fx.Node)
        and gradient.target is _aten.threshold_backward.default
        and gradient.args[1:] == (rectified, 0)
        and len(gradient.users) == 1
        and value_of(gradient.args[0]).dtype == value_of(rectified).dtype
        and has_channels_last(value_of(gradient.args[0]))
    )


def _add_before_normalising(graph: fx.Graph) -> None:
    """Where a sum is normalised, let the kernel that reads it for its moments do the adding: one pass less."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.target is not ghost_norm_ops.FORWARD:
            continue
        total, *settings = node.args
        if not is_plain_sum(total) or any(place[user] < place[node] for user in total.users):
            continue
        with graph.inserting_before(node):
            fused = graph.call_function(ghost_norm_ops.FORWARD_OF_SUM, (*total.args, *settings))
            results = [graph.call_function(operator.getitem, (fused, index)) for index in range(4)]
        place[fused] = place[node]
        values = (value_of(total), *node.meta["val"])
        fused.meta["val"] = values
        for result, value in zip(results, values, strict=True):
            result.meta["val"] = value
        for user in list(node.users):
            user.replace_all_uses_with(results[1 + user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)
        total.replace_all_uses_with(results[0])
        graph.erase_node(total)


def _add_after_normalising_backwards(graph: fx.Graph) -> None:
    """Where the gradient of what was normalised is added to another, let the kernel that writes it add them."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.target is not ghost_norm_ops.BACKWARD or node.args[-1] is not None:
            continue
        gradients = [user for user in node.users if user.args[1] == 0]
        sums = [user for gradient in gradients for user in gradient.users]
        if len(gradients) != 1 or len(sums) != 1 or not is_plain_sum(sums[0]):
            continue
        others = [argument for argument in sums[0].args if argument is not gradients[0]]
        if len(others) != 1 or place[others[0]] > place[node]:
            continue
        node.args = (*node.args[:-1], others[0])
        sums[0].replace_all_uses_with(gradients[0])
        graph.erase_node(sums[0])
