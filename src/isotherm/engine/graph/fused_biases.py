"""Biases added by the matmul itself."""

from __future__ import annotations

import torch

from isotherm.engine.graph.biases import biased_sum
from isotherm.engine.graph.operands import Matmul
from isotherm.engine.graph.step_graph import StepGraph, replace


def fuse_biases(step: StepGraph) -> None:
    """Replace bias + x @ w by one `baddbmm`, as `nn.Linear` does outside a fleet.

    Expects: a traced step that writes into no tensor.
    Leaves: no sum of a bias and a matmul that nothing else reads.
    """
    for node in list(step.graph.nodes):
        found = biased_sum(node)
        matmul = None if found is None else Matmul.of(found.matmul)
        if found is None or matmul is None:
            continue
        with step.graph.inserting_before(node):
            fused = step.graph.call_function(torch.ops.aten.baddbmm.default, (found.bias, matmul.left, matmul.right))
        fused.meta["val"] = node.meta["val"]
        replace(step.graph, node, fused)
        step.graph.erase_node(found.matmul)
