"""Transposes of transposes."""

from __future__ import annotations

from isotherm.engine.graph.operands import Transpose
from isotherm.engine.graph.step_graph import StepGraph, replace


def drop_double_transposes(step: StepGraph) -> None:
    """Drop two transposes of the same dimensions, one after the other.

    Expects: a traced step.
    Leaves: no transpose of a transpose of the same dimensions. The inner one may have no users left.
    """
    for node in list(step.graph.nodes):
        outer = Transpose.of(node)
        inner = None if outer is None else Transpose.of(outer.source)
        if outer is not None and inner is not None and {inner.first, inner.second} == {outer.first, outer.second}:
            replace(step.graph, node, inner.source)
