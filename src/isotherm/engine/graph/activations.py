"""Units between two products: what a compiler makes of them is slow for many rows, so they become our operations.

A compiler computes a hyperbolic tangent with more instructions than a GPU has time for while it reads the next value,
and it reads the gradient of the units a second time for that of the biases.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch import fx

from isotherm.engine.graph.matmuls import HALVES, LOOKS, call, value_of
from isotherm.kernels.ops import activation as activation_ops
from isotherm.kernels.ops import row_sums as row_sums_ops

_aten = torch.ops.aten
_KINDS: dict[Any, activation_ops.Kind] = {
    _aten.tanh.default: "tanh",
    _aten.sigmoid.default: "sigmoid",
    _aten.relu.default: "relu",
}
_GRADIENTS: dict[Any, activation_ops.Kind] = {
    _aten.tanh_backward.default: "tanh",
    _aten.sigmoid_backward.default: "sigmoid",
    _aten.threshold_backward.default: "relu",
}


class _Units(NamedTuple):
    """Units, filled up, and how many count."""

    node: fx.Node
    num: int
    kind: activation_ops.Kind


def join_units(graph: fx.Graph) -> None:
    """Let units of many rows that are multiplied be made by one operation, and their gradients with sums by another.

    Products are filled up by now, and sums are products with ones (`products.improve_products`). Where rows are filled
    up too, as those of a batch that is no multiple of 8 are, units stay as they are.
    """
    found: dict[fx.Node, _Units] = {}
    for node in list(graph.nodes):
        if node.target in _KINDS:
            units = _joined(graph, node)
            if units is not None:
                found[node] = units
        elif node.target in _GRADIENTS:
            _join_gradient(graph, node, found)
    for node, units in found.items():
        with graph.inserting_after(units.node):
            _replace(graph, node, units.node, units.num)
    graph.eliminate_dead_code()


def _joined(graph: fx.Graph, node: fx.Node) -> _Units | None:
    """Put the operation in front of units that are a product plus biases; their users stay for now."""
    value = value_of(node)
    total: Any = node.args[0]
    if value.ndim != 3 or value.dtype not in HALVES or value.shape[1] <= row_sums_ops.MOST_ROWS:
        return None
    if total.target is not _aten.add.Tensor or total.kwargs or len(total.args) != 2 or len(total.users) != 1:
        return None
    products, biases = _whole(total.args[0], value), _biases(total.args[1], value)
    if products is None or biases is None or not _is_multiplied(node):
        return None
    kind = _KINDS[node.target]
    with graph.inserting_before(node):
        units = call(graph, activation_ops.UNITS, products, biases, kind)
    return _Units(node=units, num=value.shape[2], kind=kind)


def _join_gradient(graph: fx.Graph, node: fx.Node, found: dict[fx.Node, _Units]) -> None:
    """Replace a gradient of units, if it is summed, and what it is filled up to."""
    dy, y, *limits = node.args
    units, whole = found.get(y) if isinstance(y, fx.Node) else None, _whole(dy, value_of(node))
    if units is None or whole is None or units.kind != _GRADIENTS[node.target] or any(limits):
        return
    if value_of(whole).shape != value_of(units.node).shape:
        return
    filled = [node, *(user for user in node.users if _fills_to(user, units.node))]
    sums = [total for each in filled for user in each.users if (total := _sum_of(user, each, units.num)) is not None]
    if len(sums) != 1:
        return
    with graph.inserting_before(node):
        both = call(graph, activation_ops.UNITS_GRADIENT, whole, units.node, units.num, units.kind)
        gradient, total = (graph.call_function(operator.getitem, (both, place)) for place in range(2))
    for place, piece in enumerate((gradient, total)):
        piece.meta["val"] = both.meta["val"][place]
    sums[0].replace_all_uses_with(total)
    with graph.inserting_after(total):
        _replace(graph, node, gradient, units.num)


def _replace(graph: fx.Graph, old: fx.Node, new: fx.Node, num: int) -> None:
    """Let what read values read new ones, which are filled up."""
    for user in list(old.users):
        if user is not new and _fills_to(user, new):
            user.replace_all_uses_with(new)
    if value_of(new).shape == value_of(old).shape:
        old.replace_all_uses_with(new)
    elif old.users:
        old.replace_all_uses_with(call(graph, _aten.slice.Tensor, new, 2, 0, num))


def _whole(node: Any, value: torch.Tensor) -> fx.Node | None:
    """Return the product that a node with values like these is, or is cut from at the end of its rows."""
    if not isinstance(node, fx.Node) or value_of(node).shape != value.shape:
        return None
    whole: fx.Node = node.meta.get("uncut", node)
    is_product = whole.target is _aten.bmm.default and value_of(whole).shape[:2] == value.shape[:2]
    return whole if is_product else None


def _biases(node: Any, value: torch.Tensor) -> fx.Node | None:
    """Return the vectors (M, N), unrounded, that are added to all rows (M, B, N) of a run."""
    num_runs, _, num = value.shape
    looks = (*LOOKS, _aten.unsqueeze.default)
    if not isinstance(node, fx.Node) or node.target not in looks or value_of(node).shape != (num_runs, 1, num):
        return None
    rounded: Any = node.args[0]
    if rounded.target is not _aten._to_copy.default or value_of(rounded).dtype != value.dtype:
        return None
    vectors: fx.Node = rounded.args[0]
    is_vectors = value_of(vectors).shape == (num_runs, num) and value_of(vectors).stride(1) == 1
    return vectors if is_vectors else None


def _is_multiplied(node: fx.Node) -> bool:
    """Tell whether values are read by a product, perhaps filled up or turned."""
    passing = (_aten.constant_pad_nd.default, _aten.transpose.int)
    return any(
        user.target is _aten.bmm.default or (user.target in passing and _is_multiplied(user)) for user in node.users
    )


def _fills_to(node: fx.Node, whole: fx.Node) -> bool:
    """Tell whether a node fills up rows with zeros to the size of something."""
    if node.target is not _aten.constant_pad_nd.default or value_of(node).shape != value_of(whole).shape:
        return False
    padding: Any = node.args[1]
    return not padding[0] and not any(padding[2:]) and not any(node.args[2:])


def _sum_of(node: fx.Node, rows: fx.Node, num: int) -> fx.Node | None:
    """Return what becomes of a product of ones with rows: their sums (M, N) in float32, or None if it is not that."""
    if node.target is not _aten.bmm.default or node.args[1] is not rows:
        return None
    ones: Any = node.args[0]
    if ones.target is not _aten.full.default or ones.args[1] != 1.0:
        return None
    shape = value_of(rows).shape[0], num
    while value_of(node).shape != shape or value_of(node).dtype != torch.float32:
        if len(node.users) != 1:
            return None
        (node,) = node.users
        if node.target is not _aten._to_copy.default and node.target not in LOOKS:
            return None
    return node
