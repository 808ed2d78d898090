"""Views that may become copies."""

from __future__ import annotations

import torch

from isotherm.engine.graph.step_graph import StepGraph, expect_no

_aten = torch.ops.aten


def reshape_instead_of_view(step: StepGraph) -> None:
    """Let views be copies where values no longer lie in memory as they did when they were traced.

    Expects: no `as_strided`, which counts on the layout.
    Leaves: reshapes instead of views. Later passes may change the layout of whatever they read.
    """
    expect_no(step.graph, _aten.as_strided.default, reason="it counts on a layout that later passes change")
    for node in step.graph.nodes:
        if node.target in (_aten.view.default, _aten._unsafe_view.default):
            node.target = _aten.reshape.default
