"""Activations between two matmuls, and their gradients, as kernels of our own where the batch is large.

A compiler computes a hyperbolic tangent with more instructions than a GPU has time for while it reads the next value,
and it reads the gradient of the activations a second time for that of the biases.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from isotherm.engine.graph.biases import expect_no_biased_matmuls
from isotherm.engine.graph.operands import (
    ActivationCall,
    ActivationGradientCall,
    Addition,
    Cast,
    Matmul,
    Padding,
    Transpose,
)
from isotherm.engine.graph.row_sums import is_cast_or_view, summed_rows
from isotherm.engine.graph.step_graph import (
    ALIGNED,
    HALVES,
    VIEWS,
    StepGraph,
    call,
    call_with_results,
    replace,
    source_of,
    value_of,
)
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


def use_activation_kernels(step: StepGraph) -> None:
    """Let activations of large batches that a matmul reads be made by one kernel, and their gradients by another.

    The second kernel sums the gradient over the batch too: the gradient of the biases.

    Expects: biases added after matmuls (`separate_biases`), sums over rows as the trace has them, and matmuls not yet
    aligned.
    Leaves: `isotherm::activation` and `isotherm::activation_gradient`. A batch size that is no
    multiple of 8 is left alone.
    """
    expect_no_biased_matmuls(step.graph)
    for node in list(step.graph.nodes):
        if node.target in _KINDS:
            _join(step.graph, node)
        elif node.target in _GRADIENTS:
            _join_gradient(step.graph, node)
    step.graph.eliminate_dead_code()


def _join(graph: fx.Graph, node: fx.Node) -> None:
    """Replace an activation of a matmul plus biases."""
    total, value = source_of(node), value_of(node)
    addition = Addition.of(total)
    if addition is None or total.kwargs or len(total.users) != 1 or not _is_large_batch(value):
        return
    biases = _biases(addition.right, value)
    if not _is_matmul(addition.left, value) or biases is None or not _is_multiplied(node):
        return
    with graph.inserting_before(node):
        made = call(graph, ActivationCall.TARGET, addition.left, biases, _KINDS[node.target])
    replace(graph, node, made)


def _join_gradient(graph: fx.Graph, node: fx.Node) -> None:
    """Replace a gradient of such an activation that is summed over the batch once, and the sum."""
    dy, y, *thresholds = node.args  # a threshold only of ReLUs
    activation = ActivationCall.of(y)
    if activation is None or activation.kind != _GRADIENTS[node.target] or any(thresholds):
        return
    sums = [total for user in node.users if (total := _sum_over_batch(user, value_of(node))) is not None]
    if len(sums) != 1 or not _is_matmul(dy, value_of(node)):
        return
    with graph.inserting_before(node):
        width = value_of(node).shape[2]
        gradient, total = call_with_results(graph, ActivationGradientCall.TARGET, dy, y, width, activation.kind)
    sums[0].replace_all_uses_with(total)
    replace(graph, node, gradient)


def _is_large_batch(value: torch.Tensor) -> bool:
    if value.ndim != 3 or value.dtype not in HALVES:
        return False
    return value.shape[1] > row_sums_ops.MOST_ROWS and value.shape[1] % ALIGNED == 0


def _is_matmul(node: Any, value: torch.Tensor) -> bool:
    return Matmul.of(node) is not None and value_of(node).shape == value.shape


def _biases(node: Any, value: torch.Tensor) -> fx.Node | None:
    """Return the vectors (M, N), unrounded, that are added to all rows (M, B, N) of a run."""
    num_runs, _, width = value.shape
    views = (*VIEWS, _aten.unsqueeze.default)
    if not isinstance(node, fx.Node) or node.target not in views or value_of(node).shape != (num_runs, 1, width):
        return None
    rounded = Cast.of(source_of(node))
    if rounded is None or value_of(node).dtype != value.dtype:
        return None
    vectors = value_of(rounded.source)
    return rounded.source if vectors.shape == (num_runs, width) and vectors.stride(1) == 1 else None


def _is_multiplied(node: fx.Node) -> bool:
    """Tell whether a matmul reads values, perhaps padded or transposed."""
    return any(
        Matmul.of(user) is not None
        or ((Padding.of(user) is not None or Transpose.of(user) is not None) and _is_multiplied(user))
        for user in node.users
    )


def _sum_over_batch(node: fx.Node, value: torch.Tensor) -> fx.Node | None:
    """Return what becomes of a sum over rows (M, B, N): their sums (M, N) in float32, None if it is not that."""
    if summed_rows(node) is None:
        return None
    shape = value.shape[0], value.shape[2]
    while value_of(node).shape != shape or value_of(node).dtype != torch.float32:
        if len(node.users) != 1:
            return None
        (node,) = node.users
        if not is_cast_or_view(node):
            return None
    return node
