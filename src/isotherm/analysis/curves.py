"""The metric over learning rates at every batch size, as arrays: what a curve family is fitted to.

Logarithms are to base 2. Values are signed so that larger is better.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from isotherm.core.records import Direction
from isotherm.core.run_table import quantities
from isotherm.core.statistics import Floats
from isotherm.sweep.protocol import Cell, Grid

# The variance of a cell is estimated from its own runs and, with so many degrees of freedom, from all near the optima;
# that of a cell that scatters far more than those from its own runs alone.
POOLED_FREEDOM = 8.0

# Error of a single run, as a part of how far curves fall next to their optimum; one seed does not tell.
ONE_SEED = 0.1

# Learning rates further from the best than this, in octaves, say nothing about the peak.
FARTHEST = 3.0

# Far from the optimum the shape of a peak is trusted less: per octave beyond the first by this much of its error.
FARTHER = 6.0

# A fall at the only learning rate beyond the best may be a cliff, if it is this many times as far as on the other side.
# How deep a cliff is says nothing about a peak: what is known of it is a fall of half as many times.
LONE_FALL = 6.0

# Nor is it near the worst value that a metric can have, where every curve levels off: this part of such a fall is open.
DEEPER = 0.5


# Cells that scatter more than in this part of cases, by chance, do not tell how others scatter.
UNLIKELY = 0.001


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Curves:
    """Means over seeds; one row per batch size, one column per learning rate, shapes (num_grids, num_rates).

    `octaves` are log2 of the batch sizes, less their mean. `best` are the best means, `below_best` the means less
    those. `used` marks cells with a mean; others are padding, or unstable. `variances` are those of the means, without
    what a seed does at every learning rate alike, which `common_variance` holds, shape (num_grids,). `drops` are how
    far a mean lies below the best of its row, larger beyond an octave: the scale of what a peak's shape may miss.
    `depths` are what it may miss besides where a mean is near the metric's worst possible value.
    `falls` are how far a curve falls at least where it no longer steepens, as at the foot of a cliff; 0 elsewhere. The
    optimum lies between `low` and `high`: one step beyond the grid, or where a curve has fallen or runs diverge.
    `freedom` is how many degrees of freedom the variances have, `common_freedom` those of the common one.
    """

    octaves: Floats
    log_rates: Floats
    best: Floats
    below_best: Floats
    used: NDArray[np.bool_]
    variances: Floats
    common_variance: Floats
    drops: Floats
    depths: Floats
    falls: Floats
    low: Floats
    high: Floats
    freedom: float
    common_freedom: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Curves) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    @property
    def _content(self) -> tuple[object, ...]:
        values = [getattr(self, field.name) for field in dataclasses.fields(self)]
        return tuple((v.shape, v.tobytes()) if isinstance(v, np.ndarray) else v for v in values)

    def rows(self, start: int, stop: int) -> Curves:
        """Return the curves of some batch sizes, with the variances of all."""
        arrays = {
            f.name: getattr(self, f.name)[start:stop] for f in dataclasses.fields(self) if "freedom" not in f.name
        }
        return dataclasses.replace(self, **arrays)

    @property
    def num_grids(self) -> int:
        """How many batch sizes."""
        return len(self.best)

    @property
    def spread(self) -> float:
        """The largest difference of two means of one row."""
        return float(np.max(-self.below_best))

    @property
    def error(self) -> float:
        """A typical standard error of a mean."""
        return math.sqrt(float(np.median(self.variances[self.used])))

    @property
    def step(self) -> float:
        """The smallest step between neighbouring learning rates, in octaves."""
        steps = np.diff(self.log_rates, axis=1)
        return float(np.min(steps[steps > 0], initial=1.0))


def curves(grids: Sequence[Grid], *, objective: str, direction: Direction) -> Curves:
    """Return the curves of grids over rising batch sizes, every one of which has an optimum."""
    grids = [_cropped(grid, objective, direction) for grid in grids]
    tables = [_values(grid, objective, direction) for grid in grids]
    num_rates, num_runs = max(len(table) for table in tables), max(table.shape[1] for table in tables)
    values = np.full((len(grids), num_rates, num_runs), np.nan)
    log_rates = np.empty((len(grids), num_rates))
    for row, (grid, table) in enumerate(zip(grids, tables, strict=True)):
        values[row, : len(table), : table.shape[1]] = table
        rates = np.log2([cell.effective_learning_rate for cell in grid.cells])
        log_rates[row] = np.pad(rates, (0, num_rates - len(rates)), mode="edge")
    counts = np.isfinite(values).sum(axis=2)
    used = counts > 0
    means = np.where(used, np.nansum(values, axis=2) / np.maximum(counts, 1), -np.inf)
    top = np.argmax(means, axis=1)
    best = means[np.arange(len(grids)), top]
    below_best = np.where(used, means - best[:, None], 0.0)
    away = np.abs(log_rates - log_rates[np.arange(len(grids)), top][:, None])
    noise = _noise(values, near=_near(used, top))
    variances = np.where(used, noise.cells / np.maximum(counts, 1), 1.0)
    falls = _falls(log_rates, below_best, variances, used, top)
    low, high = _ends(log_rates, used & (falls == 0), top, [len(grid.cells) for grid in grids])
    log_sizes = np.log2([grid.axes.batch_size for grid in grids])
    return Curves(
        octaves=log_sizes - log_sizes.mean(),
        log_rates=log_rates,
        best=best,
        below_best=below_best,
        used=used & (falls == 0),
        variances=variances,
        common_variance=noise.common / np.array([max(1, len(grid.cells[0].results)) for grid in grids]),
        drops=-below_best * (1 + FARTHER * np.maximum(0.0, away - 1.0)),
        depths=_depths(below_best, best - _worst(grids[0], objective, direction)),
        falls=np.where(np.isfinite(falls), falls, 0.0),
        low=low,
        high=high,
        freedom=noise.freedom,
        common_freedom=noise.common_freedom,
    )


def _worst(grid: Grid, objective: str, direction: Direction) -> float:
    """Return the worst value that the quantity can have, signed; minus infinity without one."""
    bounds = grid.cells[0].metric_bounds if objective.endswith("_metric") else None
    return -math.inf if bounds is None else min(direction.sign * bound for bound in bounds)


def _depths(below_best: Floats, deepest: Floats) -> Floats:
    """Return the errors of a shape near the worst value, which lies so far below the best means."""
    parts = below_best / np.maximum(deepest, 1e-12)[:, None]
    return np.asarray(DEEPER * np.abs(below_best) * parts**2)


def _cropped(grid: Grid, objective: str, direction: Direction) -> Grid:
    """Return the grid around its optimum for a quantity."""
    best = grid.optimum(objective, direction)
    assert best is not None
    limit = 2.0**FARTHEST * 1.001
    cells = tuple(
        cell for cell in grid.cells if 1 / limit <= cell.effective_learning_rate / best.effective_learning_rate <= limit
    )
    return dataclasses.replace(grid, cells=cells)


def _values(grid: Grid, objective: str, direction: Direction) -> Floats:
    """Return the values of all runs, signed, shape (num_cells, num_runs); NaN where there is none to use."""
    rows = [_runs(cell, objective) for cell in grid.cells]
    table = np.full((len(rows), max(map(len, rows))), np.nan)
    for row, values in zip(table, rows, strict=True):
        row[: len(values)] = direction.sign * np.array(values)
    return np.where(np.isfinite(table), table, np.nan)


def _runs(cell: Cell, objective: str) -> list[float]:
    if not cell.is_usable:
        return [math.nan]
    return [*quantities(cell.results, objective), *quantities(cell.confirmed, objective)]


def _near(used: NDArray[np.bool_], best: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the best cells and their neighbours."""
    return np.asarray(used & (np.abs(np.arange(used.shape[1]) - best[:, None]) <= 1))


def _falls(
    log_rates: Floats, below_best: Floats, variances: Floats, used: NDArray[np.bool_], top: NDArray[np.int64]
) -> Floats:
    """Return how far curves fall at least where they stop to steepen; infinite beyond, where they say nothing more.

    A peak falls ever faster to either side. Where a curve falls less steeply than before, beyond its errors, it has
    left the peak: at the foot of a cliff all that is seen is that it fell. Nor does a single learning rate beyond the
    best tell a steep peak from a cliff, if the curve falls many times as far there as to the other side. Of neither
    does the depth count: a cliff of one batch size would make the peaks of all others as steep.
    """
    falls = np.zeros_like(below_best)
    for row, best in enumerate(top):
        for way in (-1, 1):
            drops = -below_best[row]
            ordinary = _ordinary_fall(drops, variances[row], used[row], best, way)
            if _is_lone(used[row], best, way) and drops[best + way] > ordinary:
                falls[row, best + way] = ordinary / 2
            cells = [int(j) for j in np.arange(best, -1 if way < 0 else used.shape[1], way) if used[row, j]]
            for near, at, far in zip(cells, cells[1:], cells[2:], strict=False):
                steps = np.abs(np.diff(log_rates[row, [near, at, far]]))
                if (steps == 0).any():  # padding
                    break
                slopes = -np.diff(below_best[row, [near, at, far]]) / steps
                error = math.sqrt(float(np.sum(variances[row, [near, at, far]]))) / float(steps.min())
                if slopes[0] > 4 * error and slopes[1] < slopes[0] - 3 * error:
                    falls[row, cells[cells.index(at) + 1 :]] = np.inf
                    if slopes[1] < slopes[0] / 2:
                        falls[row, at] = (min(drops[at], ordinary) if at == best + way else drops[at]) / 2
                    break
    return falls


def _is_lone(used: NDArray[np.bool_], best: int, way: int) -> bool:
    """Return whether a curve is seen at one learning rate beyond its best, next to it."""
    beyond = range(best + way, -1 if way < 0 else len(used), way)
    return sum(bool(used[j]) for j in beyond) == 1 and bool(used[best + way])


def _ordinary_fall(drops: Floats, variances: Floats, used: NDArray[np.bool_], best: int, way: int) -> float:
    """Return how far a peak may fall next to its best, given the other side; infinite where that is not seen."""
    other = best - way
    if not 0 <= other < len(used) or not used[other]:
        return math.inf
    error = math.sqrt(float(variances[best] + variances[other]))
    return LONE_FALL * max(float(drops[other]), 2 * error)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Noise:
    """Variances over seeds: of every cell, and of what a seed does in all cells of a row alike."""

    cells: Floats
    common: float
    freedom: float
    common_freedom: float


def _noise(values: Floats, *, near: NDArray[np.bool_]) -> _Noise:
    """Return the variances over seeds, pooled near the optima; never below what the metric resolves."""
    centred = values - _mean(values, axis=2)[:, :, None]
    counts = np.isfinite(values).sum(axis=2)
    alike = _of_one_variance(np.nansum(centred**2, axis=2), counts - 1, among=near & (counts > 1))
    near = near & alike
    pooled_freedom = float(np.sum((counts - 1)[near & (counts > 1)]))
    total = float(np.nansum(np.where(near[:, :, None], centred, np.nan) ** 2)) / max(1.0, pooled_freedom)
    # What a seed has in common: twice the covariance of its cells is (sum)² - sum of squares.
    around = np.where(near[:, :, None], centred, np.nan)
    sums, squares = np.nansum(around, axis=1), np.nansum(around**2, axis=1)
    numbers = np.isfinite(around).sum(axis=1)
    pairs = np.sum(np.where(numbers > 1, numbers * (numbers - 1), 0))
    seeds = max(2, values.shape[2])
    common = float(np.sum(sums**2 - squares)) / max(1.0, float(pairs)) * seeds / (seeds - 1)
    common = min(max(common, 0.0), 0.95 * total)
    resolved = _resolution(values) ** 2 / 12
    if pooled_freedom == 0:  # one seed: what the curves show is taken to be good to a tenth
        drops = np.nanmax(values, axis=(1, 2)) - np.nanmin(np.where(near[:, :, None], values, np.nan), axis=(1, 2))
        resolved = max(resolved, (ONE_SEED * float(np.median(drops))) ** 2)
    total, alone = max(total, resolved), max(total - common, resolved)
    own = np.nansum(centred**2, axis=2) * (alone / total)
    shared = (POOLED_FREEDOM * alone + own) / (POOLED_FREEDOM + np.maximum(counts - 1, 0))
    return _Noise(
        cells=np.where(alike, shared, np.nansum(centred**2, axis=2) / np.maximum(counts - 1, 1)),
        common=common,
        freedom=pooled_freedom,
        # A covariance is known about half as well as a variance.
        common_freedom=0.5 * float(np.sum(np.maximum(0, np.max(np.where(near, counts, 0), axis=1) - 1))),
    )


def _of_one_variance(squares: Floats, freedom: NDArray[np.int64], *, among: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which cells scatter no more than chance allows, given the median cell among some.

    At the edge of a cliff some seeds fall and others do not; such a cell says nothing of how the others scatter.

    Args:
        squares: sums of squared deviations from the mean of a cell.
        freedom: of those, one less than the number of seeds.
        among: cells near the optima with two seeds or more.
    """
    if not among.any():
        return np.ones_like(among)
    degrees = np.maximum(freedom, 1)
    typical = float(np.median(squares[among] / _chi_squared(0.5, degrees[among])))
    return np.asarray(squares <= typical * _chi_squared(1.0 - UNLIKELY, degrees))


def _chi_squared(probability: float, degrees: Floats) -> Floats:
    """Return quantiles of chi squared; `scipy.stats` has them too, and takes most of a second to import."""
    return np.asarray(2.0 * special.gammaincinv(degrees / 2.0, probability))


def _mean(values: Floats, *, axis: int) -> Floats:
    counts = np.isfinite(values).sum(axis=axis)
    return np.where(counts > 0, np.nansum(values, axis=axis) / np.maximum(counts, 1), np.nan)


def _resolution(values: Floats) -> float:
    """Return the smallest difference between two values: accuracies come in steps of one example."""
    different = np.unique(values[np.isfinite(values)])
    if len(different) < 2:
        return 1e-6 * max(1.0, float(np.max(np.abs(different), initial=0.0)))
    return float(np.min(np.diff(different)))


def _ends(
    log_rates: Floats, used: NDArray[np.bool_], best: NDArray[np.int64], lengths: Sequence[int]
) -> tuple[Floats, Floats]:
    """Return between which learning rates every optimum lies."""
    low, high = np.empty((2, len(lengths)))
    for row, length in enumerate(lengths):
        x, ok, top = log_rates[row, :length], used[row, :length], best[row]
        steps = np.diff(x) if length > 1 else np.ones(1)
        below, above = x[:top][~ok[:top]], x[top + 1 :][~ok[top + 1 :]]
        low[row] = below[-1] if len(below) else x[0] - steps[0]
        high[row] = above[0] if len(above) else x[-1] + steps[-1]
    return low, high
