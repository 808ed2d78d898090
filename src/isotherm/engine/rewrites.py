"""Rewrites of a traced program that a GPU gains from. Each leaves the results as they are, up to rounding."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from isotherm.engine.convolutions import is_plain_sum, join_convolutions_and_norms
from isotherm.engine.products import Block, call, improve_products, take_halves, value_of
from isotherm.models import ghost_norm_ops
from isotherm.models.layout import has_channels_last

_aten = torch.ops.aten
_ZEROS = (_aten.new_zeros.default, _aten.zeros_like.default, _aten.zeros.default)


def rewrite_for_gpu(module: fx.GraphModule, blocks: Sequence[Block] = ()) -> list[int]:
    """Change a traced program in place; its nodes must carry what `make_fx` records of their values.

    Args:
        module: the program.
        blocks: what the first arguments hold.

    Returns:
        the places of arguments that are now to be given in half precision.
    """
    halved: list[int] = []
    if not any(node.target is _aten.as_strided.default for node in module.graph.nodes):  # it counts on the layout
        _allow_other_layouts(module.graph)
        _compare_instead_of_scattering(module.graph)
        _sum_in_order_of_memory(module.graph)
        halved = take_halves(module.graph, blocks)
        improve_products(module.graph)
    _rectify_while_normalising(module.graph)
    _add_before_normalising(module.graph)
    _add_after_normalising_backwards(module.graph)
    join_convolutions_and_norms(module.graph)
    module.graph.eliminate_dead_code()
    module.recompile()
    return halved


def _allow_other_layouts(graph: fx.Graph) -> None:
    """Let views be copies where values no longer lie in memory as they did."""
    for node in graph.nodes:
        if node.target in (_aten.view.default, _aten._unsafe_view.default):
            node.target = _aten.reshape.default


# -- the gradient of a cross entropy ------------------------------------------------------------------------------


def _compare_instead_of_scattering(graph: fx.Graph) -> None:
    """Where one value per row is put into zeros, compare every place with the index: this fuses, a scatter does not.

    The gradient of picking each label's log probability has this form; the zeros would be as large as the logits.
    """
    for node in list(graph.nodes):
        if node.target is not _aten.scatter_add.default:
            continue
        zeros, dim, index, source = node.args
        if not isinstance(zeros, fx.Node) or zeros.target not in _ZEROS or len(zeros.users) != 1:
            continue
        shape = value_of(zeros).shape
        if not shape:
            continue
        dim = dim % len(shape)
        one_per_row = torch.Size([*shape[:dim], 1, *shape[dim + 1 :]])
        if not value_of(index).shape == value_of(source).shape == one_per_row:
            continue
        with graph.inserting_before(node):
            places = call(graph, _aten.arange.default, shape[dim], device=value_of(zeros).device)
            places = call(graph, _aten.view.default, places, [-1 if d == dim else 1 for d in range(len(shape))])
            is_label = call(graph, _aten.eq.Tensor, places, index)
            picked = call(graph, _aten.where.ScalarOther, is_label, source, 0)
        node.replace_all_uses_with(picked)
        graph.erase_node(node)


# -- sums over images ---------------------------------------------------------------------------------------------


def _sum_in_order_of_memory(graph: fx.Graph) -> None:
    """Where all values of each run's images are summed, and channels come last, tell so: Inductor goes by the shape.

    The gradient of a scalar that multiplies images has this form.
    """
    for node in list(graph.nodes):
        if node.target is not _aten.sum.dim_IntList:
            continue
        images, dims, *_ = node.args
        value = value_of(images)
        if value.ndim != 5 or {dim % 5 for dim in dims} != {1, 2, 3, 4} or value.is_contiguous():
            continue
        if not has_channels_last(value):
            continue
        with graph.inserting_before(node):
            turned = call(graph, _aten.permute.default, images, [0, 1, 3, 4, 2])
            rows = call(graph, _aten.reshape.default, turned, [len(value), -1])
            total = call(graph, _aten.sum.dim_IntList, rows, [1], **node.kwargs)
            total = call(graph, _aten.reshape.default, total, list(value_of(node).shape))
        node.replace_all_uses_with(total)
        graph.erase_node(node)


# -- residual sums around ghost batch norm ------------------------------------------------------------------------


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
