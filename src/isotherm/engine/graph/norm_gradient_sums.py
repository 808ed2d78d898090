"""Gradients added by the ghost batch norm's backward pass."""

from __future__ import annotations

import dataclasses

from torch import fx

from isotherm.engine.graph.image_additions import image_addition
from isotherm.engine.graph.operands import GhostNormBackward
from isotherm.engine.graph.step_graph import StepGraph, expect_no, replace, results_with_index
from isotherm.kernels.ops import convolution_norm as convolution_norm_ops


def add_after_norm_gradients(step: StepGraph) -> None:
    """Where the gradient of what was normalised is added to another, let the kernel that writes it add them.

    Expects: norms with their ReLUs (`norm_relus`), and convolutions that take no sums yet.
    Leaves: `isotherm::ghost_norm_backward` with the other gradient as `other`, if that is known before it.
    """
    reason = "add_after_norm_gradients comes before take_norm_sums"
    expect_no(step.graph, convolution_norm_ops.NORM_BACKWARD_BY_SUMS, reason=reason)
    order = {node: number for number, node in enumerate(step.graph.nodes)}
    for node in list(step.graph.nodes):
        norm = GhostNormBackward.of(node)
        if norm is None or norm.other is not None:
            continue
        gradients = results_with_index(node, 0)
        other = _added(gradients[0]) if len(gradients) == 1 else None
        if other is None or order[other] > order[node]:
            continue
        node.args = dataclasses.replace(norm, other=other).positional
        (total,) = gradients[0].users
        replace(step.graph, total, gradients[0])


def _added(gradient: fx.Node) -> fx.Node | None:
    """Return what a gradient is added to, if that is all that is done with it."""
    addition = image_addition(next(iter(gradient.users))) if len(gradient.users) == 1 else None
    if addition is None:
        return None
    others = [part for part in (addition.left, addition.right) if part is not gradient]
    return others[0] if len(others) == 1 else None
