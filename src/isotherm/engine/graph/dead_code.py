"""Calls whose results nothing reads."""

from __future__ import annotations

from isotherm.engine.graph.step_graph import StepGraph


def drop_dead_code(step: StepGraph) -> None:
    """Drop calls whose results nothing reads.

    Expects: nothing.
    Leaves: a graph in which every result has a reader, so that a pass that asks for a node's only reader finds it.
    """
    step.graph.eliminate_dead_code()
