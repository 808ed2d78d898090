"""Resampled optima: what a sweep might have found with other seeds and other learning rates."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from isotherm.analysis.optimum import Located, locate
from isotherm.core.records import Direction
from isotherm.core.statistics import Floats, fit_broken_line
from isotherm.sweep.protocol import Grid


class Sample:
    """The optima of grids over rising batch sizes, and resampled ones.

    `x` is log2 of the batch sizes. `lines` are log2 of the optima, shape (1 + num_draws, num_grids); the first row is
    what was found. In a draw every optimum moves independently: to its position with resampled seeds, and between
    learning rates. In addition, all optima on one side of the kink that were estimated in the same way move together
    within their ranges: where line and grid climb alike, they miss each other by the same amount everywhere.
    """

    def __init__(self, grids: Sequence[Grid], generator: np.random.Generator, num_draws: int) -> None:
        self.grids = grids
        self.x: list[float] = [math.log2(grid.axes.batch_size) for grid in grids]
        tables = [ResampledGrid(grid) for grid in grids]
        self.at_end = [table.at_end for table in tables]
        found = np.array([table.found for table in tables])
        located = [table.locate(table.seeds(generator, num_draws)) for table in tables]
        reaches = [reach(one) for one in located]
        below, above, alone = (np.stack(parts, axis=1) for parts in zip(*reaches, strict=True))
        num_seeds = len(grids[0].cells[0].results)
        # Resampling n seeds gives (n - 1) / n of the variance of new ones.
        moves = np.stack([one.log_rate for one in located], axis=1) - found
        moves *= math.sqrt(num_seeds / max(1, num_seeds - 1))
        moves += generator.uniform(-1.0, 1.0, size=moves.shape) * alone
        line = fit_broken_line(self.x, found.tolist())
        moves *= _widening(found - line.at(self.x), moves)
        rising = np.array(self.x) <= (self.x[-1] if line.kink is None else line.kink)
        # Mostly near an end of the range: where the loss is steep on one side, the parabola at one end is right.
        rise, level, steep_rise, steep_level = np.sin(np.pi / 2 * generator.uniform(size=(4, num_draws, 1))) ** 2
        uses_parabola = np.stack([one.uses_parabola for one in located], axis=1)
        together = np.where(uses_parabola, np.where(rising, rise, level), np.where(rising, steep_rise, steep_level))
        self.lines: Floats = np.concatenate([found[None], found + moves - below + together * (below + above)])


def reach(located: Located) -> tuple[Floats, Floats, Floats]:
    """Return how far optima may lie below and above their estimates, all together, and how far each one alone.

    The ends of the range are good to a quarter of a step, added in quadrature. Without two values below, which would
    show how steep the loss is above, half a step is allowed: enough for five times as steep as below.
    """
    quarter = (located.upper - located.lower) / 8
    below, above = located.log_rate - located.low, located.high - located.log_rate
    below, above = (np.where(located.has_parabola, np.hypot(part, quarter), part) for part in (below, above))
    above = np.where(located.uses_parabola & ~located.has_two_below, np.minimum(above, 2 * quarter), above)
    return below, above, np.where(located.has_parabola, quarter, 2 * quarter)


def _widening(residuals: Floats, moves: Floats) -> float:
    """Return the factor by which the optima scatter about their line more than their moves explain; at least 1."""
    freedom = len(residuals) - 3
    if freedom < 1:
        return 1.0
    return max(1.0, math.sqrt(float(np.sum(residuals**2) / freedom / np.mean(np.var(moves, axis=0)))))


class ResampledGrid:
    """A grid whose seeds can be resampled: gives log2 of the optimum for every draw.

    Cells that cannot be optimal and diverged runs count as infinitely bad.
    """

    def __init__(self, grid: Grid, objective: str | None = None, direction: Direction | None = None) -> None:
        name = grid.objective if objective is None else objective
        sign = (grid.direction if direction is None else direction).sign
        self._num_seeds, self._num_kept = len(grid.cells[0].results), grid.cells[0].num_kept
        values = [
            [sign * r.quantity(name) for r in cell.results if r is not None]
            if cell.is_usable
            else [math.nan] * self._num_seeds
            for cell in grid.cells
        ]
        self._values: Floats = np.where(np.isnan(values), -np.inf, values)
        self._log_rates: Floats = np.log2([cell.effective_learning_rate for cell in grid.cells])
        steps = np.diff(self._log_rates) if len(self._log_rates) > 1 else np.ones(1)
        self._spacing = float(np.min(steps))
        everyone = np.arange(self._num_seeds)[None]
        self._means_of_all = self._means(everyone)
        self._index = int(np.argmax(self._means_of_all[:, 0]))
        self.at_end = self._index in (0, len(grid.cells) - 1)
        self.found = float(self.locate(everyone).log_rate[0])

    def seeds(self, generator: np.random.Generator, num_draws: int) -> NDArray[np.int64]:
        """Return seeds drawn with replacement, shape (num_draws, num_seeds)."""
        return generator.integers(self._num_seeds, size=(num_draws, self._num_seeds))

    def optima(self, seeds: NDArray[np.int64]) -> Floats:
        """Return log2 of the best learning rate tried for every draw of seeds, the same in all cells: (num_draws,)."""
        return np.asarray(self._log_rates[self._best(self._means(seeds))])

    def jitter(self, generator: np.random.Generator, num_draws: int) -> Floats:
        """Return how far the true optimum may lie from the best learning rate tried: up to half a step."""
        return generator.uniform(-0.5, 0.5, size=num_draws) * self._spacing

    def locate(self, seeds: NDArray[np.int64]) -> Located:
        """Return the optimum, located between the learning rates, for every draw of seeds; shapes (num_draws,).

        A draw in which every cell fails gets the optimum of all seeds.
        """
        means = self._means(seeds)
        return locate(self._log_rates, -np.where(np.isfinite(means).any(axis=0), means, self._means_of_all).T)

    def _means(self, seeds: NDArray[np.int64]) -> Floats:
        """Return every cell's mean over the best runs of a draw, shape (num_cells, num_draws)."""
        best = np.sort(self._values[:, seeds], axis=2)[:, :, self._num_seeds - self._num_kept :]
        return np.asarray(best.mean(axis=2))

    def _best(self, means: Floats) -> NDArray[np.int64]:
        """Return the index of the best cell in every draw; that of all seeds where every cell of a draw fails."""
        best = np.argmax(means, axis=0)
        return np.where(np.isfinite(means[best, np.arange(means.shape[1])]), best, self._index)
