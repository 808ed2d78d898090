"""Weights that arrive in bfloat16."""

from __future__ import annotations

import torch
from torch import fx

from isotherm.engine.graph.operands import Cast
from isotherm.engine.graph.step_graph import HALVES, VIEWS, StepGraph, replace, value_of


def take_bfloat16_weights(step: StepGraph) -> None:
    """Let matrices that are only read in bfloat16 be given in bfloat16.

    Whoever updates the parameters can round them on the way, which costs a write instead of a read and a write.

    Expects: parameter groups as the first arguments, as `step.matrices` describes them.
    Leaves: `step.bfloat16_groups`; the step no longer casts these groups.
    """
    arguments = step.graph.find_nodes(op="placeholder")
    assert len(step.matrices) <= len(arguments), f"{len(step.matrices)} groups, but {len(arguments)} arguments"
    for index, (argument, matrix) in enumerate(zip(arguments, step.matrices, strict=False)):
        views, casts = _reads(argument) if matrix is not None else ([], [])
        if {value_of(cast).dtype for cast in casts} == {torch.bfloat16}:
            step.bfloat16_groups.append(index)
            for node in (argument, *views):
                node.meta["val"] = value_of(node).to(torch.bfloat16)
            for cast in casts:
                _drop(step.graph, cast)


def _drop(graph: fx.Graph, node: fx.Node) -> None:
    cast = Cast.of(node)
    assert cast is not None
    replace(graph, node, cast.source)


def _reads(argument: fx.Node) -> tuple[list[fx.Node], list[fx.Node]]:
    """Return the views of an argument and the casts that round it; none if it is read in another way too."""
    views: list[fx.Node] = []
    casts: list[fx.Node] = []
    queue = list(argument.users)
    while queue:
        node = queue.pop()
        if _is_rounding(node):
            casts.append(node)
        elif node.target in VIEWS:
            views.append(node)
            queue.extend(node.users)
        else:
            return [], []
    return views, casts


def _is_rounding(node: fx.Node) -> bool:
    return Cast.of(node) is not None and set(node.kwargs) == {"dtype"} and value_of(node).dtype in HALVES
