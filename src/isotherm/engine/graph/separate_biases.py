"""Biases added after the matmul."""

from __future__ import annotations

from torch import fx

from isotherm.engine.graph.biases import biased_sum
from isotherm.engine.graph.operands import Addition, BiasedMatmul, Matmul
from isotherm.engine.graph.step_graph import StepGraph, call, replace


def separate_biases(step: StepGraph) -> None:
    """Add biases right after their matmul, where a compiler fuses them with what follows; cuBLAS would copy them first.

    Expects: a traced step that writes into no tensor.
    Leaves: no `baddbmm` but scaled ones; sums of a matmul and a bias have the matmul first, and right before them.
    """
    for node in list(step.graph.nodes):
        _put_matmul_first(node)
        _split(step, node)


def _put_matmul_first(node: fx.Node) -> None:
    found = biased_sum(node)
    if found is not None:
        node.prepend(found.matmul)
        node.args = (found.matmul, found.bias)


def _split(step: StepGraph, node: fx.Node) -> None:
    fused = BiasedMatmul.of(node)
    if fused is None or node.kwargs:
        return
    with step.graph.inserting_before(node):
        matmul = call(step.graph, Matmul.TARGET, fused.left, fused.right)
        total = call(step.graph, Addition.TARGET, matmul, fused.bias)
    replace(step.graph, node, total)
