"""Rewrites of a traced program that a GPU gains from. Each leaves the results as they are, up to rounding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

_aten = torch.ops.aten
# Tensor cores read rows in pieces of 16 bytes: 8 values of 2 bytes.
_ALIGNED = 8
_ZEROS = (_aten.new_zeros.default, _aten.zeros_like.default, _aten.zeros.default)


def rewrite_for_gpu(module: fx.GraphModule) -> None:
    """Change a traced program in place; its nodes must carry what `make_fx` records of their values."""
    _compare_instead_of_scattering(module.graph)
    _align_products(module.graph)
    module.graph.eliminate_dead_code()
    module.recompile()


def _value(node: Any) -> Tensor:
    value = node.meta["val"] if isinstance(node, fx.Node) else None
    assert isinstance(value, Tensor)
    return value


def _call(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """Add an operation and what is known of its value."""
    node = graph.call_function(target, args, kwargs)
    values = fx.map_arg(args, _shape_of)
    node.meta["val"] = target(*values, **{name: "meta" if name == "device" else v for name, v in kwargs.items()})
    return node


def _shape_of(node: fx.Node) -> Tensor:
    """Return a tensor without values like that of a node."""
    value = _value(node)
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


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
        shape, dim = _value(zeros).shape, dim % _value(zeros).ndim
        one_per_row = torch.Size([*shape[:dim], 1, *shape[dim + 1 :]])
        if not _value(index).shape == _value(source).shape == one_per_row:
            continue
        with graph.inserting_before(node):
            places = _call(graph, _aten.arange.default, shape[dim], device=_value(zeros).device)
            places = _call(graph, _aten.view.default, places, [-1 if d == dim else 1 for d in range(len(shape))])
            is_label = _call(graph, _aten.eq.Tensor, places, index)
            picked = _call(graph, _aten.where.ScalarOther, is_label, source, 0.0)
        node.replace_all_uses_with(picked)
        graph.erase_node(node)


# -- products of odd sizes ----------------------------------------------------------------------------------------


def _align_products(graph: fx.Graph) -> None:
    """Fill up the sides of half-precision products with zeros to multiples of 8, and cut the result."""
    for node in list(graph.nodes):
        if node.target not in (_aten.bmm.default, _aten.baddbmm.default) or node.kwargs:
            continue
        *bias, left, right = node.args
        if _value(node).element_size() != 2 or len(bias) > 1:
            continue
        num_rows, num_inner, num_columns = *_value(left).shape[1:], _value(right).shape[2]
        rows, inner, columns = (-(-size // _ALIGNED) * _ALIGNED for size in (num_rows, num_inner, num_columns))
        if (rows, inner, columns) == (num_rows, num_inner, num_columns):
            continue
        with graph.inserting_before(node):
            aligned = [_filled(graph, left, rows, inner), _filled(graph, right, inner, columns)]
            if bias:
                height = _value(bias[0]).shape[1]
                aligned.insert(0, _filled(graph, bias[0], rows if height == num_rows else height, columns))
            result = _call(graph, node.target, *aligned)
            if rows != num_rows:
                result = _call(graph, _aten.slice.Tensor, result, 1, 0, num_rows)
            if columns != num_columns:
                result = _call(graph, _aten.slice.Tensor, result, 2, 0, num_columns)
        for user in list(node.users):
            if user.target in (_aten.view.default, _aten._unsafe_view.default):  # the product was contiguous
                user.target = _aten.reshape.default
        node.replace_all_uses_with(result)
        graph.erase_node(node)


def _filled(graph: fx.Graph, matrix: fx.Node, rows: int, columns: int) -> fx.Node:
    """Return a matrix filled up with zeros; a transposed one is filled up before it is transposed."""
    if matrix.target is _aten.transpose.int and {d % 3 for d in matrix.args[1:]} == {1, 2}:  # type: ignore[operator]
        inner = matrix.args[0]
        assert isinstance(inner, fx.Node)
        return _call(graph, _aten.transpose.int, _filled(graph, inner, columns, rows), 1, 2)
    height, width = _value(matrix).shape[1:]
    if (height, width) == (rows, columns):
        return matrix
    return _call(graph, _aten.constant_pad_nd.default, matrix, [0, columns - width, 0, rows - height], 0.0)
