"""Residual sums added by the ghost batch norm that follows."""

from __future__ import annotations

from torch import fx

from isotherm.engine.graph.image_additions import image_addition
from isotherm.engine.graph.operands import Addition, GhostNorm, GhostNormOfSum
from isotherm.engine.graph.step_graph import StepGraph, expect_no, replace, replace_results, results_of, value_of
from isotherm.kernels.ops import convolution_norm as convolution_norm_ops


def add_before_norms(step: StepGraph) -> None:
    """Where a sum is normalised, let the kernel that reads it for its moments do the adding: one pass less.

    Expects: norms with their ReLUs (`norm_relus`), and convolutions that take no moments yet.
    Leaves: `isotherm::ghost_norm_of_sum` where a sum that nothing reads earlier is normalised.
    """
    expect_no(step.graph, convolution_norm_ops.WITH_MOMENTS, reason="add_before_norms comes before take_moments")
    order = {node: number for number, node in enumerate(step.graph.nodes)}
    for node in list(step.graph.nodes):
        norm = GhostNorm.of(node)
        addition = None if norm is None else image_addition(norm.x)
        if norm is None or addition is None or any(order[user] < order[node] for user in norm.x.users):
            continue
        with step.graph.inserting_before(node):
            fused = _norm_of_sum(step.graph, node, norm, addition)
            total, *normalised = results_of(step.graph, fused)
        order[fused] = order[node]
        replace_results(step.graph, node, normalised)
        replace(step.graph, norm.x, total)


def _norm_of_sum(graph: fx.Graph, node: fx.Node, norm: GhostNorm, addition: Addition) -> fx.Node:
    settings = norm.weight, norm.bias, norm.ghost_size, norm.eps, norm.relu
    fused = graph.call_function(GhostNormOfSum.TARGET, (addition.left, addition.right, *settings))
    fused.meta["val"] = (value_of(norm.x), *node.meta["val"])
    return fused
