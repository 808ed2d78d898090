"""Rewrites of a traced program that a GPU gains from. Each leaves the results as they are, up to rounding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from isotherm.engine.graph.convolutions import join_convolutions_and_norms
from isotherm.engine.graph.matmuls import Block, call, improve_products, take_halves, value_of
from isotherm.engine.graph.norms import join_norms_with_neighbours
from isotherm.kernels.layout import has_channels_last

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
    join_norms_with_neighbours(module.graph)
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
        is_of_runs = value.ndim == 5 and {dim % 5 for dim in dims} == {1, 2, 3, 4}
        if not is_of_runs or value.is_contiguous() or not has_channels_last(value):
            continue
        with graph.inserting_before(node):
            turned = call(graph, _aten.permute.default, images, [0, 1, 3, 4, 2])
            rows = call(graph, _aten.reshape.default, turned, [len(value), -1])
            total = call(graph, _aten.sum.dim_IntList, rows, [1], **node.kwargs)
            total = call(graph, _aten.reshape.default, total, list(value_of(node).shape))
        node.replace_all_uses_with(total)
        graph.erase_node(node)
