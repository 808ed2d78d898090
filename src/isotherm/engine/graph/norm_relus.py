"""ReLUs taken by ghost batch norm."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from isotherm.engine.graph.operands import GhostNorm, GhostNormBackward, GhostNormOfSum, ReluGradient
from isotherm.engine.graph.step_graph import StepGraph, expect_no, replace, results_with_index, value_of
from isotherm.kernels.layout import has_channels_last

_aten = torch.ops.aten


def take_relus_into_norms(step: StepGraph) -> None:
    """Where only the positive part of what is normalised is used, forward and backward, let the kernels take it.

    Expects: ghost batch norm as `isotherm::ghost_norm`, its sums not yet joined.
    Leaves: norms whose ReLU is their own, in the gradient too.
    """
    expect_no(step.graph, GhostNormOfSum.TARGET, reason="take_relus_into_norms comes before add_before_norms")
    for node in list(step.graph.nodes):
        norm = GhostNorm.of(node)
        if norm is not None and not norm.relu:
            _take_relu(step.graph, node, norm)


def _take_relu(graph: fx.Graph, node: fx.Node, norm: GhostNorm) -> None:
    outputs, means = results_with_index(node, 0), results_with_index(node, 1)
    readers = [user for output in outputs for user in output.users]
    if len(outputs) != 1 or len(readers) != 1 or readers[0].target is not _aten.relu.default:
        return
    (rectified,) = readers
    backward = [user for mean in means for user in mean.users if GhostNormBackward.of(user) is not None]
    if not all(_reads_gradient_of(user, rectified) for user in backward):
        return
    node.args = dataclasses.replace(norm, relu=True).positional
    for user in backward:
        _take_mask(graph, user)
    replace(graph, rectified, outputs[0])


def _reads_gradient_of(node: fx.Node, rectified: fx.Node) -> bool:
    """Tell whether a norm's gradient is computed from that of a ReLU, read once, in the kernels' layout."""
    masked = _given(node).dy
    relu = ReluGradient.of(masked)
    return (
        relu is not None
        and (relu.rectified, relu.threshold) == (rectified, 0)
        and len(masked.users) == 1
        and value_of(relu.gradient).dtype == value_of(rectified).dtype
        and has_channels_last(value_of(relu.gradient))
    )


def _take_mask(graph: fx.Graph, node: fx.Node) -> None:
    given = _given(node)
    masked = ReluGradient.of(given.dy)
    assert masked is not None
    node.args = dataclasses.replace(given, dy=masked.gradient, relu=True).positional
    graph.erase_node(given.dy)


def _given(node: Any) -> GhostNormBackward:
    given = GhostNormBackward.of(node)
    assert given is not None
    return given
