"""Broken lines through the optima of a curve family: how they rise with the batch size, and where the rise ends.

A line is as likely as the curves are with their optima on it, but for some scatter: shapes of the peaks are averaged
over draws from their posterior, and optima are integrated out. Draws come from an ensemble of Markov chains, started at
lines through drawn optima. Logarithms are to base 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isotherm.analysis.chains import walk
from isotherm.core.statistics import Floats, fit_broken_lines, log_sum_exp

# Columns of a state; the last is the natural logarithm of the scatter in octaves.
SLOPE, KINK, PLATEAU, LOG_SCATTER = range(4)

LEAST_SLOPE, MOST_SLOPE = -1.5, 3.0
BEYOND = 2.0  # octaves beyond the largest batch size in which a kink may lie unseen
MIDDLE_SCATTER, SPREAD_SCATTER = math.log(0.01), 1.0
LOG_SCATTERS = np.log(0.002) + np.log(2.0) * np.arange(10.0)  # 0.002 to 1 octave

NUM_SHAPES = 200  # over which a line is averaged
NUM_PLACES = 96  # at which the likelihood of an optimum is tabulated
NUM_CHAINS, NUM_ROUNDS, NUM_IGNORED = 80, 160, 60


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LineDraws:
    """Broken lines drawn from their posterior; `kinks` are NaN where none is seen. Shapes (num_draws,).

    `plateaus` are the values of the lines at the largest batch size.
    """

    slopes: Floats
    kinks: Floats
    plateaus: Floats


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class OptimaTable:
    """How likely it is, for each of some shapes, that an optimum lies at each of some points.

    `points` have shape (num_points, num_grids), in the middle of equal parts; `areas` (num_shapes, num_points,
    num_grids) add up to 1 over points.
    """

    points: Floats
    areas: Floats

    @property
    def width(self) -> Floats:
        """The width of a part, shape (num_grids,)."""
        return np.asarray(self.points[1] - self.points[0])


def joined(tables: Sequence[OptimaTable]) -> OptimaTable:
    """Return one table of the grids of several, whose shapes are drawn independently."""
    return OptimaTable(
        points=np.concatenate([table.points for table in tables], axis=1),
        areas=np.concatenate([table.areas for table in tables], axis=2),
    )


def draw_lines(
    table: OptimaTable, log_sizes: Floats, log_optima: Floats, generator: np.random.Generator, *, num_draws: int
) -> LineDraws:
    """Return broken lines drawn from their posterior.

    Args:
        table: of the optima.
        log_sizes: log2 of the batch sizes.
        log_optima: drawn optima through which the first lines go, shape (some, num_sizes).
        generator: of random numbers.
        num_draws: how many lines.
    """
    states = _starts(log_sizes, log_optima[generator.choice(len(log_optima), size=NUM_CHAINS)], generator)
    target = _Target(table, log_sizes)
    drawn = walk(target, states, generator, num_rounds=NUM_ROUNDS, num_ignored=NUM_IGNORED)
    drawn = drawn[generator.choice(len(drawn), size=num_draws, replace=len(drawn) < num_draws)]
    slopes, corners = drawn[:, SLOPE], drawn[:, KINK]
    return LineDraws(
        slopes=slopes,
        kinks=np.where(corners < log_sizes[-1], corners, np.nan),
        plateaus=drawn[:, PLATEAU] + slopes * np.minimum(0.0, log_sizes[-1] - corners),
    )


class _Target:
    """The posterior density of a line and of the scatter about it."""

    def __init__(self, table: OptimaTable, log_sizes: Floats) -> None:
        self._x = log_sizes
        places = [_scattered(table, math.exp(log_scatter)) for log_scatter in LOG_SCATTERS]
        self._starts = np.stack([start for start, _, _ in places])  # (num_scatters, num_grids)
        self._steps = np.stack([step for _, step, _ in places])
        # By scatter, grid and place, with shapes last: these are read together.
        self._logs = np.stack([np.moveaxis(logs, 0, -1) for _, _, logs in places])

    def __call__(self, states: Floats) -> Floats:
        """Return log densities of states, shape (num_states, 4)."""
        slopes, kinks, plateaus, log_scatters = states.T
        inside = (slopes >= LEAST_SLOPE) & (slopes <= MOST_SLOPE)
        inside &= (kinks >= self._x[1]) & (kinks <= self._x[-1] + BEYOND)
        inside &= (log_scatters >= LOG_SCATTERS[0]) & (log_scatters <= LOG_SCATTERS[-1])
        found = np.full(len(states), -np.inf)
        prior = -0.5 * ((log_scatters - MIDDLE_SCATTER) / SPREAD_SCATTER) ** 2
        lines = plateaus[:, None] + slopes[:, None] * np.minimum(0.0, self._x - kinks[:, None])
        nearest = np.rint((log_scatters[inside] - LOG_SCATTERS[0]) / math.log(2.0)).astype(np.int64)
        found[inside] = prior[inside] + self._log_likelihoods(lines[inside], nearest)
        return found

    def _log_likelihoods(self, lines: Floats, scatters: NDArray[np.int64]) -> Floats:
        """Return log likelihoods of lines, shape (num_lines, num_grids), by linear interpolation between places."""
        steps = self._steps[scatters]
        where = (lines - self._starts[scatters]) / steps
        index = np.clip(np.floor(where).astype(np.int64), 0, NUM_PLACES - 2)
        part = np.clip(where - index, 0.0, 1.0)[..., None]
        grids = np.arange(lines.shape[1])
        below, above = (self._logs[scatters[:, None], grids, index + k] for k in (0, 1))
        logs = ((1 - part) * below + part * above).sum(axis=1)  # over grids: (num_lines, num_shapes)
        beyond = np.maximum(0.0, np.maximum(-where, where - (NUM_PLACES - 1))) * steps
        beyond /= np.exp(LOG_SCATTERS[scatters])[:, None]
        return np.asarray(log_sum_exp(logs, axis=1) - np.sum(beyond * (3.0 + beyond / 2), axis=1))


def _scattered(table: OptimaTable, scatter: float) -> tuple[Floats, Floats, Floats]:
    """Return where places start, their steps, and log densities there, with optima scattered about the line.

    Densities have shape (num_shapes, num_grids, num_places); places reach three standard deviations beyond the points.
    """
    first, last = table.points[0] - 3 * scatter, table.points[-1] + 3 * scatter
    steps = (last - first) / (NUM_PLACES - 1)
    places = first[:, None] + steps[:, None] * np.arange(NUM_PLACES)  # (num_grids, num_places)
    spread = np.hypot(scatter, table.width / 2)[:, None, None]
    away = (places[:, None] - table.points.T[:, :, None]) / spread  # (num_grids, num_points, num_places)
    kernel = np.exp(-0.5 * away**2) / spread
    return first, steps, np.log(np.maximum(_spread_over(table.areas, kernel), 1e-300))


# Matrices of so many rows are too small for BLAS to share out among threads, which would wait for each other in a loop.
_ROWS_AT_ONCE = 40


def _spread_over(areas: Floats, kernel: Floats) -> Floats:
    """Return the sum over points of areas times kernel, shape (num_shapes, num_grids, num_places)."""
    by_grid = np.ascontiguousarray(np.moveaxis(areas, 2, 0))
    found = np.empty((*by_grid.shape[:2], kernel.shape[2]))
    for start in range(0, by_grid.shape[1], _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        np.matmul(by_grid[:, rows], kernel, out=found[:, rows])
    return np.moveaxis(found, 0, 1)


def _starts(log_sizes: Floats, log_optima: Floats, generator: np.random.Generator) -> Floats:
    """Return lines through drawn optima."""
    num_chains = len(log_optima)
    slopes, kinks, plateaus = fit_broken_lines(log_sizes.tolist(), log_optima)
    seen = ~np.isnan(kinks)
    corners = np.where(seen, kinks, log_sizes[-1] + BEYOND * generator.random(num_chains))
    levels = np.where(seen, plateaus, plateaus + slopes * (corners - log_sizes[-1]))
    scatters = generator.uniform(LOG_SCATTERS[2], LOG_SCATTERS[-2], size=num_chains)
    return np.stack([np.clip(slopes, LEAST_SLOPE, MOST_SLOPE), corners, levels, scatters], axis=1)
