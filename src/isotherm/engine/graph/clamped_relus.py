"""ReLUs as clamps."""

from __future__ import annotations

import torch

from isotherm.engine.graph.step_graph import StepGraph, source_of

_aten = torch.ops.aten


def clamp_instead_of_relu(step: StepGraph) -> None:
    """Replace ReLUs, which cannot write into a given tensor, by clamps at zero, which can.

    Expects: a traced step for the CPU.
    Leaves: no ReLU.
    """
    for node in step.graph.nodes:
        if node.target is _aten.relu.default:
            node.target, node.args = _aten.clamp_min.default, (source_of(node), 0)
