"""What the two ways to add a bias to a matmul have in common; a device takes one of them."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, fx

from isotherm.engine.graph.operands import Addition, BiasedMatmul, Matmul


class BiasedSum(NamedTuple):
    """A sum of a matmul that nothing else reads and a bias (M or 1, R or 1, C or 1) of the same type."""

    matmul: fx.Node
    bias: fx.Node


def biased_sum(node: fx.Node) -> BiasedSum | None:
    """Return what a node adds, None where it is no such sum."""
    addition = Addition.of(node)
    if addition is None or node.kwargs:
        return None
    for bias, matmul in ((addition.left, addition.right), (addition.right, addition.left)):
        if bias is not matmul and Matmul.of(matmul) is not None and _go_together(node, matmul, bias):
            return BiasedSum(matmul=matmul, bias=bias)
    return None


def expect_no_biased_matmuls(graph: fx.Graph) -> None:
    """Fail where a matmul still adds its bias, unless it scales something."""
    fused = [node for node in graph.nodes if BiasedMatmul.of(node) is not None and not node.kwargs]
    assert not fused, f"{fused} add their biases themselves; separate_biases comes first"


def _go_together(total: fx.Node, matmul: fx.Node, bias: Any) -> bool:
    values = [_value(node) for node in (total, matmul, bias)]
    if any(value is None for value in values) or len({value.dtype for value in values if value is not None}) != 1:
        return False
    shapes = [value.shape for value in values if value is not None]
    return len(matmul.users) == 1 and len(shapes[2]) == 3 and shapes[0] == shapes[1]


def _value(node: Any) -> Tensor | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) else None
