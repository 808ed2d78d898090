"""Two regimes read off a sweep: where the optimal learning rate rises with the batch size, and where it stops.

The paper's figure 1c. In the noise dominated regime ε_eff* ∝ B (slope 1 in log2-log2); from the kink on curvature
limits it and it stays level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isotherm.protocol import Grid
from isotherm.records import Direction
from isotherm.results import Results
from isotherm.statistics import Floats, Interval, fit_broken_line, fit_broken_lines, percentile_limits
from isotherm.sweep import GridAxes

NUM_DRAWS = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class Regimes:
    """The broken line through the optima of one budget and momentum; intervals at 95 %.

    They come from resampling the seeds of every grid and from the spacing of the learning rates, half a step to either
    side. `shortfall` is by how many octaves the optimum at the largest batch stays below the line through the rising
    part; 0 where a resampled sweep shows no kink. `kink` is None where the fit has none or most resampled sweeps do not
    show it; its upper limit is infinite where more than one in forty do not.
    """

    momentum: float
    budget: str
    batch_sizes: tuple[int, ...]
    slope: Interval
    kink: Interval | None
    plateau: float
    shortfall: Interval
    part_with_kink: float
    num_seeds: int

    @property
    def shows_kink(self) -> bool:
        """Whether the data determine a kink: four points or more, a rise before it, and no rise like it after it."""
        return self.kink is not None and len(self.batch_sizes) >= 4 and self.slope.low > 0 and self.shortfall.low > 0

    def __str__(self) -> str:
        line = f"ε_eff* ∝ B^{self.slope.estimate:.2f} [{self.slope.low:.2f}, {self.slope.high:.2f}] at small B"
        if self.kink is None:
            return f"{line}; no kink seen up to B = {self.batch_sizes[-1]}"
        low, high = self.kink.low, self.kink.high
        return f"{line}; kink at B ≈ {self.kink.estimate:.0f} [{low:.0f}, {high:.0f}], then ε_eff* ≈ {self.plateau:.3g}"


def series(results: Results) -> list[list[Grid]]:
    """Return the grids that have an optimum, one list over rising batch sizes per budget and momentum."""
    groups: dict[tuple[str, float], list[Grid]] = {}
    for grid in results.optima():
        groups.setdefault((str(grid.axes.budget), grid.axes.momentum), []).append(grid)
    return [sorted(group, key=lambda g: g.axes.batch_size) for group in groups.values()]


def regimes(results: Results) -> list[Regimes]:
    """Return the two regimes of every budget and momentum of a sweep that has three batch sizes or more."""
    return [fit_regimes(grids) for grids in series(results) if len(grids) >= 3]


def fit_regimes(grids: Sequence[Grid]) -> Regimes:
    """Return the broken line through the optima of grids over rising batch sizes, with intervals."""
    x = [math.log2(grid.axes.batch_size) for grid in grids]
    optima = [grid.optimum() for grid in grids]
    line = fit_broken_line(x, [math.log2(o.effective_learning_rate) for o in optima if o is not None])
    tables = [ResampledGrid(grid) for grid in grids]

    generator = np.random.default_rng(0)
    drawn = [table.optima(table.seeds(generator, NUM_DRAWS)) + table.jitter(generator, NUM_DRAWS) for table in tables]
    slopes, kinks, _ = fit_broken_lines(x, np.stack(drawn, axis=1))
    slope_low, slope_high = percentile_limits(slopes)
    kink_low, kink_high = percentile_limits(np.nan_to_num(kinks, nan=np.inf))
    shortfalls = np.nan_to_num(slopes * (x[-1] - kinks), nan=0.0)
    part = float(np.mean(~np.isnan(kinks)))
    seen = line.kink is not None and part >= 0.5
    axes: GridAxes = grids[0].axes
    return Regimes(
        momentum=axes.momentum,
        budget=str(axes.budget),
        batch_sizes=tuple(grid.axes.batch_size for grid in grids),
        slope=Interval(estimate=line.slope, low=slope_low, high=slope_high),
        kink=Interval(estimate=2.0**line.kink, low=2.0**kink_low, high=2.0**kink_high)
        if seen and line.kink is not None
        else None,
        plateau=2.0**line.plateau,
        shortfall=Interval(
            estimate=0.0 if line.kink is None else line.slope * (x[-1] - line.kink),
            low=percentile_limits(shortfalls)[0],
            high=percentile_limits(shortfalls)[1],
        ),
        part_with_kink=part,
        num_seeds=len(grids[0].cells[0].results),
    )


class ResampledGrid:
    """A grid whose seeds can be drawn anew: gives log2 of the optimum for one draw."""

    def __init__(self, grid: Grid, objective: str | None = None, direction: Direction | None = None) -> None:
        name = grid.objective if objective is None else objective
        usable = [cell for cell in grid.cells if cell.is_usable]
        sign = (grid.direction if direction is None else direction).sign
        values = [[sign * r.quantity(name) for r in cell.results if r is not None] for cell in usable]
        self._num_kept = usable[0].num_kept
        self._log_rates = np.log2([cell.effective_learning_rate for cell in usable])
        self._values: Floats = np.nan_to_num(np.array(values), nan=-np.inf)
        rates = np.log2([cell.effective_learning_rate for cell in grid.cells])
        self._spacing = float(np.min(np.diff(rates))) if len(rates) > 1 else 1.0

    def seeds(self, generator: np.random.Generator, num_draws: int) -> NDArray[np.int64]:
        """Return seeds drawn with replacement, shape (num_draws, num_seeds)."""
        num_seeds = self._values.shape[1]
        return generator.integers(num_seeds, size=(num_draws, num_seeds))

    def optima(self, seeds: NDArray[np.int64]) -> Floats:
        """Return log2 of the optimal learning rate for every draw of seeds, alike for all cells, shape (num_draws,)."""
        best = np.sort(self._values[:, seeds], axis=2)[:, :, seeds.shape[1] - self._num_kept :]
        return np.asarray(self._log_rates[np.argmax(best.mean(axis=2), axis=0)])

    def jitter(self, generator: np.random.Generator, num_draws: int) -> Floats:
        """Return how far the true optimum may lie from the grid point: up to half a step."""
        return generator.uniform(-0.5, 0.5, size=num_draws) * self._spacing
