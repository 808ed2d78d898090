"""Multiplications by one."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from isotherm.engine.graph.step_graph import StepGraph, replace, source_of

_aten = torch.ops.aten


def drop_multiplications_by_one(step: StepGraph) -> None:
    """Drop x * 1, which only makes a copy.

    Expects: a traced step that writes into no tensor, so that a copy may share the memory of the original.
    Leaves: no multiplication of a tensor by the number one.
    """
    for node in step.graph.nodes:
        if _is_by_one(node):
            for user in node.users:
                if user.target is _aten.view.default:  # the copy was contiguous, the original may not be
                    user.target = _aten.reshape.default
            replace(step.graph, node, source_of(node))


def _is_by_one(node: fx.Node) -> bool:
    """Tell whether a node multiplies by one and keeps shape and type."""
    if node.target not in (_aten.mul.Scalar, _aten.mul.Tensor):
        return False
    tensor, number = node.args
    if not isinstance(number, int | float) or number != 1 or not isinstance(tensor, fx.Node):
        return False
    values = node.meta.get("val"), tensor.meta.get("val")
    before, after = ((tuple(v.shape), v.dtype) if isinstance(v, Tensor) else None for v in values)
    return before is not None and before == after
