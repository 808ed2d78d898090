"""Reshapes that change nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from isotherm.engine.graph.step_graph import StepGraph, replace, source_of

_aten = torch.ops.aten
_RESHAPES = (_aten.view.default, _aten._unsafe_view.default, _aten.expand.default)


def drop_same_shape_reshapes(step: StepGraph) -> None:
    """Drop views and expansions to the shape that a tensor already has.

    Expects: a traced step.
    Leaves: views and expansions that change a shape or strides.
    """
    for node in step.graph.nodes:
        if node.target in _RESHAPES and _layout(node) is not None and _layout(node) == _layout(source_of(node)):
            replace(step.graph, node, source_of(node))


def _layout(node: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return (tuple(value.shape), tuple(value.stride())) if isinstance(value, Tensor) else None
