"""Gradients that are returned as the two factors of their matmul, for the update to multiply.

The gradient of a layer's matrix is the matmul of its outputs' gradients and its inputs, with the batch as the inner
side. Where that side is short, the matmul costs little, and writing and reading its result costs more.

Shape suffixes: M runs, R rows, C columns, I inner side.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from isotherm.engine.graph.operands import Cast, Matmul, Transpose
from isotherm.engine.graph.step_graph import HALVES, VIEWS, StepGraph, call, results_of_step, source_of, value_of

_aten = torch.ops.aten
# A longer inner side is left to cuBLAS: only up to 64 the kernel was measured to be faster.
MOST_INNER = 64
# The losses come before the gradients of the parameter groups.
_FIRST_GRADIENT = 1


class _Factors(NamedTuple):
    left: fx.Node
    right: fx.Node


def factor_gradients(step: StepGraph) -> None:
    """Let a step return factors instead of the gradients of matrices that it reads in bfloat16.

    A gradient that is a matmul in half precision, flattened, becomes its left factor (M, R, I); the right ones
    (M, I, C) follow all other results in the order of the groups. Their matmul is the gradient as it was, but for the
    shape.

    Expects: `step.bfloat16_groups`, aligned matmuls (`alignment`), and no dead code (`dead_code`).
    Leaves: `step.factored_groups`.
    """
    assert not step.factored_groups, "the gradients are factored already"
    output, results = results_of_step(step.graph)
    rights = []
    for group in step.bfloat16_groups:
        index = _FIRST_GRADIENT + group
        if results.count(results[index]) > 1:
            continue
        with step.graph.inserting_before(output):
            factors = _factors(step.graph, results[index])
        if factors is not None:
            results[index] = factors.left
            rights.append(factors.right)
            step.factored_groups.append(group)
    output.args = ((*results, *rights),)


def _factors(graph: fx.Graph, result: Any) -> _Factors | None:
    """Return what a result is a matmul of, None where it is none or has other users too."""
    node, is_transposed = result, False
    while (matmul := Matmul.of(node)) is None:
        if node.op != "call_function" or len(node.users) != 1 or not _keeps_values(node):
            return None
        is_transposed ^= Transpose.of(node) is not None
        node = source_of(node)
    num_inner = value_of(matmul.left).shape[2]
    if len(node.users) != 1 or value_of(node).dtype not in HALVES or num_inner > MOST_INNER:
        return None
    if _is_argument(matmul.left) or _is_argument(matmul.right):  # perhaps a matrix that is updated before it is read
        return None
    if not is_transposed:
        return _Factors(left=matmul.left, right=matmul.right)
    left, right = (call(graph, Transpose.TARGET, factor, 1, 2) for factor in (matmul.right, matmul.left))
    return _Factors(left=left, right=right)


def _is_argument(node: Any) -> bool:
    """Tell whether a node is a view of one of the step's arguments."""
    while node.target in VIEWS or (isinstance(node.target, torch._ops.OpOverload) and node.target.is_view):
        node = source_of(node)
    return bool(node.op == "placeholder")


def _keeps_values(node: fx.Node) -> bool:
    """Tell whether a node widens or copies a matrix of each run, transposes it, or flattens it."""
    source = value_of(source_of(node))
    if source.ndim != 3:
        return False
    transpose = Transpose.of(node)
    if transpose is not None:
        return transpose.is_of_matrices(source.ndim)
    if node.target is _aten.reshape.default:
        return value_of(node).shape == (source.shape[0], source.shape[1] * source.shape[2])
    return Cast.of(node) is not None or node.target is _aten.clone.default
