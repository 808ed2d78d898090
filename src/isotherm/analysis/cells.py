"""Cells as far as they have come: what state each is in, its numbers so far, and its learning curves."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from isotherm.core.records import Direction, RunResult
from isotherm.core.run_table import MISSING, codes_of, quantities
from isotherm.core.statistics import Interval, t_interval
from isotherm.sweep.protocol import Cell, Estimate


class CellState(enum.StrEnum):
    """How far a cell has come, and how it ended."""

    MISSING = "missing"
    PARTIAL = "some seeds done"
    FINISHED = "finished"
    DIVERGED = "diverged"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class CurveStep:
    """The mean over runs of a learning curve after `step` updates, with its 95 % t-interval."""

    step: int
    interval: Interval
    num_runs: int


def state_of(cell: Cell) -> CellState:
    """Return the state of a cell; one with a failed run has failed, one with too many diverged ones has diverged."""
    if cell.num_failed:
        return CellState.FAILED
    if cell.is_unstable:
        return CellState.DIVERGED
    if cell.is_complete:
        return CellState.FINISHED
    return CellState.PARTIAL if (codes_of(cell.results) != MISSING).any() else CellState.MISSING


def estimate_so_far(cell: Cell, quantity: str, *, ranking: str, direction: Direction) -> Estimate:
    """Return a quantity over the runs that are done: the best k of them by a ranking, and all.

    For a complete cell these are the numbers of the protocol; NaN where no run has the quantity.
    """
    has_it = [math.isfinite(value) for value in quantities(cell.results, quantity)]
    return cell.estimate(quantity, kept=[index for index in cell.kept(ranking, direction) if has_it[index]])


def learning_curve(
    runs: Sequence[RunResult], quantity: str, *, bounds: tuple[float, float] | None = None
) -> list[CurveStep]:
    """Return the mean curve of some runs: at every step over the runs that were evaluated there with a finite value.

    Args:
        runs: of one cell.
        quantity: "test_loss" or "test_metric".
        bounds: of the quantity, where it has such.
    """
    values: dict[int, list[float]] = {}
    for run in runs:
        for point in run.curve:
            value = float(getattr(point, quantity))
            if math.isfinite(value):
                values.setdefault(point.step, []).append(value)
    return [
        CurveStep(step=step, interval=t_interval(found, bounds=bounds), num_runs=len(found))
        for step, found in sorted(values.items())
    ]
