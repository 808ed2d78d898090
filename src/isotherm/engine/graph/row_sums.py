"""Sums over the rows of matrices, as a bias's gradient is one: shared by the passes that replace them."""

from __future__ import annotations

from typing import Any

from torch import fx

from isotherm.engine.graph.operands import Cast, Matmul, Sum, Transpose
from isotherm.engine.graph.step_graph import HALVES, VIEWS, value_of


def summed_rows(node: Any) -> fx.Node | None:
    """Return the matrices (M, R, C) in half precision whose rows a node sums, where a matmul reads them anyway."""
    total = Sum.of(node)
    if total is None or node.kwargs or total.dims is None:
        return None
    value = value_of(total.values)
    is_over_rows = value.ndim == 3 and value.dtype in HALVES and [dim % 3 for dim in total.dims] == [1]
    return total.values if is_over_rows and is_multiplied(total.values) else None


def is_multiplied(node: fx.Node) -> bool:
    """Tell whether a matmul reads values, perhaps transposed."""
    return any(
        Matmul.of(user) is not None or (Transpose.of(user) is not None and any(map(Matmul.of, user.users)))
        for user in node.users
    )


def is_cast_or_view(node: fx.Node) -> bool:
    """Tell whether a node shows the values of its first argument, perhaps in another type."""
    return Cast.of(node) is not None or node.target in VIEWS
