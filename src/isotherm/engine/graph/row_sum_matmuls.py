"""Sums over rows as matmuls with ones."""

from __future__ import annotations

import torch
from torch import fx

from isotherm.engine.graph.operands import Matmul, Slice, Sum
from isotherm.engine.graph.row_sums import summed_rows
from isotherm.engine.graph.step_graph import ALIGNED, StepGraph, call, replace, value_of

_aten = torch.ops.aten
_Ones = dict[tuple[torch.dtype, int, int], fx.Node]


def sum_rows_by_matmul(step: StepGraph) -> None:
    """Sum rows by a matmul with ones where a matmul reads them anyway: the gradient of a bias.

    Compiled, the sum would compute the gradient before it a second time, and slowly for many rows.

    Expects: sums that are better made otherwise to be gone (`activations`, `bias_gradients`).
    Leaves: no sum over the rows of matrices in half precision that a matmul reads. Matmuls are not yet aligned.
    """
    ones: _Ones = {}
    for node in list(step.graph.nodes):
        rows = summed_rows(node)
        if rows is not None:
            with step.graph.inserting_before(node):
                total = _by_matmul(step.graph, node, rows, ones)
            replace(step.graph, node, total)


def _by_matmul(graph: fx.Graph, node: fx.Node, rows: fx.Node, ones: _Ones) -> fx.Node:
    value, total = value_of(rows), Sum.of(node)
    assert total is not None
    num_runs, num_rows, num_columns = value.shape
    key = value.dtype, num_runs, num_rows
    if key not in ones:
        shape = [num_runs, ALIGNED, num_rows]
        ones[key] = call(graph, _aten.full.default, shape, 1.0, dtype=value.dtype, device=value.device)
    copies = call(graph, Matmul.TARGET, ones[key], rows)
    row = call(graph, Slice.TARGET, copies, 1, 0, 1)
    return row if total.keeps_dims else call(graph, _aten.reshape.default, row, [num_runs, num_columns])
