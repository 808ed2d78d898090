"""Sums over images, in the order of memory."""

from __future__ import annotations

import torch

from isotherm.engine.graph.operands import Sum
from isotherm.engine.graph.step_graph import StepGraph, call, replace, value_of
from isotherm.kernels.layout import has_channels_last

_aten = torch.ops.aten


def sum_images_in_memory_order(step: StepGraph) -> None:
    """Where all values of each run's images (M, B, C, H, W) are summed and channels come last in memory, say so.

    Inductor goes by the shape. The gradient of a scalar that multiplies images has this form.

    Expects: a traced step.
    Leaves: sums over whole images as sums over rows of one matrix.
    """
    for node in list(step.graph.nodes):
        total = Sum.of(node)
        if total is None or not _is_over_images(total):
            continue
        with step.graph.inserting_before(node):
            permuted = call(step.graph, _aten.permute.default, total.values, [0, 1, 3, 4, 2])
            rows = call(step.graph, _aten.reshape.default, permuted, [len(value_of(total.values)), -1])
            by_run = call(step.graph, Sum.TARGET, rows, [1], **node.kwargs)
            shaped = call(step.graph, _aten.reshape.default, by_run, list(value_of(node).shape))
        replace(step.graph, node, shaped)


def _is_over_images(total: Sum) -> bool:
    value = value_of(total.values)
    is_of_runs = value.ndim == 5 and {dim % 5 for dim in total.dims or ()} == {1, 2, 3, 4}
    return is_of_runs and not value.is_contiguous() and has_channels_last(value)
