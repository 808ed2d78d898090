"""Gradients of biases: sums over the batch that stand beside each other in a block are made at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from isotherm.engine.graph.matmuls import HALVES, LOOKS, call, value_of
from isotherm.kernels.ops import row_sums as row_sums_ops

_aten = torch.ops.aten


class _Sum(NamedTuple):
    """Rows (M, R, C) whose sum a node is, and how many columns of it."""

    rows: fx.Node
    size: int


def join_sums(graph: fx.Graph) -> None:
    """Where sums over the rows of matrices are put together, one operation makes them all, without rounding.

    The sums are products with ones by now (`products.improve_products`), whose matrices are filled up.
    """
    for node in list(graph.nodes):
        if node.target is not _aten.cat.default or node.args[1:] != (1,) or value_of(node).ndim != 2:
            continue
        found = [_sum_of(piece, value_of(node).dtype) for piece in node.args[0]]
        sums = [each for each in found if each is not None]
        if len(sums) < len(found) or len({(value_of(s.rows).shape[:2], value_of(s.rows).dtype) for s in sums}) != 1:
            continue
        with graph.inserting_before(node):
            joined = call(graph, row_sums_ops.SUMS, [s.rows for s in sums], [s.size for s in sums])
        node.replace_all_uses_with(joined)
        graph.erase_node(node)
    graph.eliminate_dead_code()


def _sum_of(piece: Any, dtype: torch.dtype) -> _Sum | None:
    """Return what a vector (M, N) of each run is the sum of, or None where it is something else or used otherwise."""
    node, size = piece, value_of(piece).shape[1]
    if dtype != torch.float32:
        return None
    while node.target is not _aten.bmm.default:
        if len(node.users) != 1 or not _leaves_first_values(node):
            return None
        node = node.args[0]
    ones, rows = node.args
    is_sum = ones.target is _aten.full.default and ones.args[1] == 1.0 and len(node.users) == 1
    if not is_sum or value_of(rows).dtype not in HALVES or value_of(rows).shape[1] > row_sums_ops.MOST_ROWS:
        return None
    return _Sum(rows=rows, size=size)


def _leaves_first_values(node: fx.Node) -> bool:
    """Tell whether a node widens values, leaves out all but the first rows or columns, or makes one row a vector."""
    if node.target is not _aten._to_copy.default and node.target not in LOOKS:
        return False
    source = value_of(node.args[0])
    if node.target is _aten.slice.Tensor:
        return len(node.args) == 4 and source.ndim == 3 and node.args[1] in (1, 2) and bool(node.args[2] == 0)
    if node.target in LOOKS:
        return source.ndim == 3 and source.shape[1] == 1 and value_of(node).shape == (source.shape[0], source.shape[2])
    return value_of(node).dtype == torch.float32
