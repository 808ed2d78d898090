"""The noise of a run, measured: how much runs of a task differ from seed to seed near their optimum."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from isotherm.core.records import Direction
from isotherm.core.run_table import quantities
from isotherm.core.statistics import Floats
from isotherm.sweep.protocol import Cell, Grid


@dataclass(frozen=True, kw_only=True, slots=True)
class RunNoise:
    """The standard deviation between seeds, in the metric's own unit, and what else stored grids say about a run.

    `num_runs` and `num_cells` are what it was pooled over; 0 where the noise was given by hand. `smallest` and
    `largest` are its extremes over grids. `correlation` is that of one seed at neighbouring learning rates;
    `curvature` how fast the metric falls off around the optimum, per octave squared. Both are None where not known.
    """

    standard_deviation: float
    num_runs: int = 0
    num_cells: int = 0
    smallest: float | None = None
    largest: float | None = None
    correlation: float | None = None
    curvature: float | None = None

    @property
    def is_measured(self) -> bool:
        """Whether it comes from runs."""
        return self.num_runs > 0


def measured_noise(grids: Iterable[Grid], quantity: str, direction: Direction) -> RunNoise | None:
    """Return the noise of a quantity, pooled over the cells within an octave of the optimum in every grid.

    None where no cell near an optimum holds two finished runs.
    """
    tables = [table for table in (_near_optimum(grid, quantity, direction) for grid in grids) if table is not None]
    if not tables:
        return None
    freedom = [_freedom(table.values) for table in tables]
    squares = [_sum_of_squares(table.values) for table in tables]
    alone = [math.sqrt(s / f) for s, f in zip(squares, freedom, strict=True)]
    curvatures = [table.curvature for table in tables if table.curvature is not None]
    return RunNoise(
        standard_deviation=math.sqrt(sum(squares) / sum(freedom)),
        num_runs=sum(int(np.isfinite(table.values).sum()) for table in tables),
        num_cells=sum(len(table.values) for table in tables),
        smallest=min(alone),
        largest=max(alone),
        correlation=_correlation([table.values for table in tables]),
        curvature=max(0.0, float(np.mean(curvatures))) if curvatures else None,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Table:
    """The runs around one optimum, shape (num_cells, num_seeds), NaN where there is none; and the curve's bend."""

    values: Floats
    curvature: float | None


def _near_optimum(grid: Grid, quantity: str, direction: Direction) -> _Table | None:
    best = grid.optimum()
    if best is None:
        return None
    near = _near([cell.effective_learning_rate for cell in grid.cells], best.index)
    values = np.array([_values(grid.cells[k], quantity) for k in near if grid.cells[k].is_usable])
    values = values[np.isfinite(values).sum(axis=1) >= 2]
    return _Table(values=values, curvature=_curvature(grid, quantity, direction)) if len(values) else None


def _near(rates: Sequence[float], index: int) -> list[int]:
    """Return the learning rates within an octave of one, and at least its neighbours."""
    return [k for k, rate in enumerate(rates) if abs(k - index) <= 1 or abs(math.log2(rate / rates[index])) <= 1 + 1e-9]


def _values(cell: Cell, quantity: str) -> list[float]:
    """Return a quantity for every seed; NaN where there is none."""
    return [value if math.isfinite(value) else math.nan for value in quantities(cell.results, quantity)]


def _curvature(grid: Grid, quantity: str, direction: Direction) -> float | None:
    """Return c in mean = height - c (log2 ε - log2 ε*)²; None where no optimum has neighbours on both sides.

    The optimum is found on one half of the seeds and the curvature on the other: a lucky cell would bend the curve.
    """
    x = np.log2([cell.effective_learning_rate for cell in grid.cells])
    tuned, measured = (
        np.array([_values(cell, name) if cell.is_usable else [math.nan] * len(cell.results) for cell in grid.cells])
        for name in (grid.objective, quantity)
    )
    found = []
    for half in (0, 1):
        heights = grid.direction.sign * tuned[:, half::2].mean(axis=1) if tuned.shape[1] > 1 else np.array([math.nan])
        best = int(np.nanargmax(heights)) if np.isfinite(heights).any() else 0
        if 0 < best < len(x) - 1:
            near = _near([cell.effective_learning_rate for cell in grid.cells], best)
            y = measured[near, 1 - half :: 2].mean(axis=1)
            known = np.isfinite(y)
            if known.sum() >= 3:
                found.append(-direction.sign * float(np.polyfit((x[near] - x[best])[known], y[known], 2)[0]))
    return float(np.mean(found)) if found else None


def _freedom(values: Floats) -> int:
    return int(np.isfinite(values).sum()) - len(values)


def _sum_of_squares(values: Floats) -> float:
    return float(np.nansum((values - np.nanmean(values, axis=1, keepdims=True)) ** 2))


def _correlation(tables: Sequence[Floats]) -> float | None:
    """Return the correlation of one seed's deviations at neighbouring learning rates; None without neighbours."""
    together = first = second = 0.0
    for values in tables:
        off = values - np.nanmean(values, axis=1, keepdims=True)
        for a, b in itertools.pairwise(off):
            both = np.isfinite(a) & np.isfinite(b)
            together += float(a[both] @ b[both])
            first, second = first + float(a[both] @ a[both]), second + float(b[both] @ b[both])
    return None if first * second == 0.0 else min(1.0, max(0.0, together / math.sqrt(first * second)))
