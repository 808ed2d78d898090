"""Gradients of cross entropies: labels compared, not scattered."""

from __future__ import annotations

import torch
from torch import fx

from isotherm.engine.graph.operands import ScatterAdd
from isotherm.engine.graph.step_graph import StepGraph, call, replace, value_of

_aten = torch.ops.aten
_ZEROS = (_aten.new_zeros.default, _aten.zeros_like.default, _aten.zeros.default)


def compare_instead_of_scatter(step: StepGraph) -> None:
    """Where one value per row is put into zeros, compare every index with the label: this fuses, a scatter does not.

    The gradient of picking each label's log probability has this form; the zeros would be as large as the logits.

    Expects: a step that writes into no tensor.
    Leaves: no scatter of one value per row into zeros that nothing else reads. The zeros have no users left.
    """
    for node in list(step.graph.nodes):
        scatter = ScatterAdd.of(node)
        if scatter is not None and _is_one_per_row(scatter):
            with step.graph.inserting_before(node):
                picked = _compared(step.graph, scatter)
            replace(step.graph, node, picked)


def _is_one_per_row(scatter: ScatterAdd) -> bool:
    zeros = scatter.target
    if not isinstance(zeros, fx.Node) or zeros.target not in _ZEROS or len(zeros.users) != 1:
        return False
    shape = value_of(zeros).shape
    if not shape:
        return False
    dim = scatter.dim % len(shape)
    one_per_row = torch.Size([*shape[:dim], 1, *shape[dim + 1 :]])
    return value_of(scatter.index).shape == value_of(scatter.source).shape == one_per_row


def _compared(graph: fx.Graph, scatter: ScatterAdd) -> fx.Node:
    zeros = value_of(scatter.target)
    dim = scatter.dim % zeros.ndim
    indices = call(graph, _aten.arange.default, zeros.shape[dim], device=zeros.device)
    indices = call(graph, _aten.view.default, indices, [-1 if d == dim else 1 for d in range(zeros.ndim)])
    is_label = call(graph, _aten.eq.Tensor, indices, scatter.index)
    return call(graph, _aten.where.ScalarOther, is_label, scatter.source, 0)
