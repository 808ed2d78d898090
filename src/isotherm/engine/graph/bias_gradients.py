"""Gradients of biases: sums over the batch that end up in one parameter group, made by one kernel."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from isotherm.engine.graph.operands import Concatenation, JoinedRowSums, Slice
from isotherm.engine.graph.row_sums import is_cast_or_view, summed_rows
from isotherm.engine.graph.step_graph import ALIGNED, VIEWS, StepGraph, call, replace, source_of, value_of
from isotherm.kernels.ops import row_sums as row_sums_ops


class _Piece(NamedTuple):
    """The matrices (M, R, C) whose rows a piece sums, and how many of their columns it has."""

    rows: fx.Node
    width: int


def join_bias_gradients(step: StepGraph) -> None:
    """Where sums over the rows of matrices are concatenated, let one kernel make them all, without rounding.

    Expects: sums over rows as the trace has them, and matmuls not yet aligned.
    Leaves: `isotherm::row_sums` instead of the concatenation; the sums have no users left.
    """
    for node in list(step.graph.nodes):
        pieces = _pieces(node)
        if not pieces or len({(value_of(p.rows).shape[:2], value_of(p.rows).dtype) for p in pieces}) != 1:
            continue
        with step.graph.inserting_before(node):
            rows, widths = [p.rows for p in pieces], [p.width for p in pieces]
            joined = call(step.graph, JoinedRowSums.TARGET, rows, widths)
        replace(step.graph, node, joined)
    step.graph.eliminate_dead_code()


def _pieces(node: fx.Node) -> list[_Piece]:
    """Return what a concatenation (M, N) in float32 is made of; nothing if a piece of it is no sum over rows."""
    joined = Concatenation.of(node)
    if joined is None or joined.dim != 1 or value_of(node).ndim != 2 or value_of(node).dtype != torch.float32:
        return []
    found = [_piece(piece) for piece in joined.pieces]
    pieces = [piece for piece in found if piece is not None]
    return pieces if len(pieces) == len(found) else []


def _piece(node: Any) -> _Piece | None:
    """Return what a vector (M, N) of each run is the sum of, None where it is something else or has other users."""
    width = value_of(node).shape[1]
    while (rows := summed_rows(node)) is None:
        if len(node.users) != 1 or not _keeps_first_values(node):
            return None
        node = source_of(node)
    num_rows = value_of(rows).shape[1]
    is_fit = len(node.users) == 1 and num_rows <= row_sums_ops.MOST_ROWS and num_rows % ALIGNED == 0
    return _Piece(rows=rows, width=width) if is_fit else None


def _keeps_first_values(node: fx.Node) -> bool:
    """Tell whether a node widens values, keeps the first rows or columns only, or makes one row a vector."""
    if not is_cast_or_view(node):
        return False
    source, part = value_of(source_of(node)), Slice.of(node)
    if part is not None:
        return part.step == 1 and source.ndim == 3 and part.dim in (1, 2) and part.start == 0
    if node.target in VIEWS:
        return source.ndim == 3 and source.shape[1] == 1 and value_of(node).shape == (source.shape[0], source.shape[2])
    return value_of(node).dtype == torch.float32
