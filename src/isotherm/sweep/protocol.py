"""The paper's protocol, applied to results: cells, optimum, interval, edges, and how well a grid resolves its optimum.

Every batch size has a grid of learning rates with n seeds each. A cell's mean and standard deviation are over its best
k of n runs. The optimum is the learning rate with the best mean, the middle one where several share it; its interval
holds every learning rate tried whose mean is within one standard deviation of the optimum's. A cell in which more than
n - k runs diverged is unstable and cannot be optimal. Further seeds at the optimum confirm what the first ones chose.
`rounds` says which runs come next.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isotherm.core.records import Direction, Outcome
from isotherm.core.run_table import CODES, MISSING, Runs, codes_of, quantities
from isotherm.core.statistics import Interval, best_k_of_n, standard_deviation, t_interval
from isotherm.sweep.plan import SMALLEST_RATIO, GridAxes
from isotherm.sweep.refinement import possible_gains

# Means that differ by less than this, relative to them, are equal: float32 sums of the same successes do.
_TIE = 1e-7
# What SGD minimises.
TRAIN_OBJECTIVE = "train_objective", Direction.MINIMISE


class Edge(enum.StrEnum):
    """Whether the optimum or its interval touches an end of the grid."""

    INTERIOR = "interior"
    LOWER = "lower edge"
    UPPER = "upper edge"
    BOTH = "both edges"
    NO_OPTIMUM = "no stable learning rate"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A quantity over the kept runs of a cell, and over all finished ones. `num_seeds` counts diverged ones too."""

    mean: float
    standard_deviation: float
    num_kept: int
    num_seeds: int
    num_diverged: int
    mean_all: float
    standard_deviation_all: float
    interval_all: Interval
    values_all: tuple[float, ...]

    def __str__(self) -> str:
        everyone = f"{self.mean_all:.4g} ± {self.standard_deviation_all:.2g} ({self.all_words})"
        if len(self.values_all) == self.num_kept:
            return everyone
        return f"{self.mean:.4g} ± {self.standard_deviation:.2g} (best {self.num_kept} of {self.num_seeds}), {everyone}"

    @property
    def standard_error(self) -> float:
        """The error of the mean over the kept runs; NaN for a single one."""
        return self.standard_deviation / math.sqrt(self.num_kept) if self.num_kept > 1 else math.nan

    @property
    def all_words(self) -> str:
        """How many runs finished, and how many diverged where some did."""
        diverged = f", {self.num_diverged} diverged" if self.num_diverged else ""
        return f"all {len(self.values_all)} finished{diverged}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectionBias:
    """What choosing adds to a mean: over the runs that were chosen, less that over confirming seeds.

    It holds the pick of the best learning rate and that of the best k of n runs, and the noise of both means.
    """

    difference: float
    standard_error: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One setting with all its seeds; `results` are in the order of the plan's seeds, None where a run is missing.

    `confirmed` are the same for the confirming seeds; there are none but in the cell that was chosen. They take no part
    in the choice. `metric_bounds` are the least and largest value of the task's metric, where there are such.
    `final_learning_rate` is where the schedule ends, in a sweep that tries several.
    """

    effective_learning_rate: float
    results: Runs
    num_kept: int
    confirmed: Runs = ()
    metric_bounds: tuple[float, float] | None = None
    final_learning_rate: float | None = None
    _known: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def num_diverged(self) -> int:
        """How many of the runs by which learning rates are chosen diverged."""
        return _num_diverged(self.results)

    @property
    def num_failed(self) -> int:
        """How many runs failed for reasons unrelated to the setting."""
        return _num_of(Outcome.FAILED, self.results)

    @property
    def is_complete(self) -> bool:
        """Whether every seed by which learning rates are chosen has finished or diverged."""
        return _are_done(self.results)

    @property
    def is_confirmed(self) -> bool:
        """Whether there are confirming seeds, and all of them have finished or diverged."""
        return bool(self.confirmed) and _are_done(self.confirmed)

    @property
    def is_unstable(self) -> bool:
        """Whether more than n - k runs diverged."""
        return self.num_diverged > len(self.results) - self.num_kept

    @property
    def is_usable(self) -> bool:
        """Whether the cell can be compared with others."""
        return self.is_complete and not self.is_unstable

    def kept(self, quantity: str, direction: Direction) -> list[int]:
        """Return the indices of the best k runs, ranked by a quantity."""
        if (quantity, direction) not in self._known:
            values = quantities(self.results, quantity)
            self._known[quantity, direction] = best_k_of_n(values, num_kept=self.num_kept, direction=direction)
        return list(self._known[quantity, direction])

    def estimate(self, quantity: str, *, kept: Sequence[int]) -> Estimate:
        """Return a quantity over the kept runs, and over all runs by which learning rates are chosen that have it."""
        name = quantity, tuple(kept)
        if name not in self._known:
            self._known[name] = self._estimate(quantity, self.results, kept)
        found: Estimate = self._known[name]
        return found

    def confirmation(self, quantity: str) -> Estimate | None:
        """Return a quantity over the confirming seeds, all that finished; None until they have been run."""
        if not self.is_confirmed:
            return None
        finite = [k for k, value in enumerate(quantities(self.confirmed, quantity)) if math.isfinite(value)]
        return self._estimate(quantity, self.confirmed, finite)

    def reported(self, quantity: str, *, kept: Sequence[int]) -> Estimate:
        """Return a quantity over the confirming seeds; over the kept runs where none of those has it."""
        confirmation = self.confirmation(quantity)
        return (
            confirmation if confirmation is not None and confirmation.num_kept else self.estimate(quantity, kept=kept)
        )

    def selection_bias(self, quantity: str, *, kept: Sequence[int]) -> SelectionBias | None:
        """Return the mean of the kept runs less that of the confirming seeds; None where none of those has one."""
        confirmation = self.confirmation(quantity)
        if confirmation is None or not confirmation.values_all:
            return None
        chosen = self.estimate(quantity, kept=kept)
        return SelectionBias(
            difference=chosen.mean - confirmation.mean,
            standard_error=math.hypot(chosen.standard_error, confirmation.standard_error),
        )

    def _estimate(self, quantity: str, results: Runs, kept: Sequence[int]) -> Estimate:
        values = quantities(results, quantity)
        is_there = (codes_of(results) != MISSING).tolist()
        chosen = [values[index] for index in kept if is_there[index]]
        finite = [value for value in values if math.isfinite(value)]
        bounds = self.metric_bounds if quantity.endswith("_metric") else None
        return Estimate(
            mean=_mean(chosen),
            standard_deviation=standard_deviation(chosen),
            num_kept=len(chosen),
            num_seeds=len(results),
            num_diverged=_num_diverged(results),
            mean_all=_mean(finite),
            standard_deviation_all=standard_deviation(finite) if finite else math.nan,
            interval_all=t_interval(finite, bounds=bounds),
            values_all=tuple(finite),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One side of an optimum: the ratio to the next learning rate, and what may still be gained on the way there.

    `gain` is the bound of `possible_gains`, in units of the quantity. Both are infinite at the end of a grid.
    """

    ratio: float
    gain: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimum:
    """The best learning rate of a grid for one quantity, and the interval within one standard deviation of it.

    Both are among the learning rates tried: `interval` is the lowest and the highest of those whose mean is within one
    standard deviation of the best. The fit of `analysis.family` says where the optimum lies between them.

    `below` and `above` say what a finer grid could still gain. `error` is the error of the mean, from the middle one of
    the spreads at the optimum and its neighbours: neither a lucky small spread counts nor a neighbour that half fails.
    """

    index: int
    effective_learning_rate: float
    interval: tuple[float, float]
    edge: Edge
    kept: tuple[int, ...]
    estimate: Estimate
    below: Side
    above: Side
    error: float
    smallest_ratio: float = SMALLEST_RATIO

    def __str__(self) -> str:
        low, high = self.interval
        return f"ε_eff {self.effective_learning_rate:.4g} [{low:.4g}, {high:.4g}], {self.edge}"

    @property
    def at_edge(self) -> bool:
        """Whether the optimum or its interval touches an end of the grid, so that the true optimum may lie beyond."""
        return self.edge is not Edge.INTERIOR

    @property
    def ratio(self) -> float:
        """The larger ratio to a neighbouring learning rate."""
        return max(self.below.ratio, self.above.ratio)

    @property
    def unresolved_gain(self) -> float:
        """The most that the quantity may still gain between the optimum and its neighbours."""
        return max(self.below.gain, self.above.gain)

    @property
    def is_resolved(self) -> bool:
        """Whether that is below the error of the mean, or the neighbours are as close as they are made."""
        return not any(self.is_open(side) for side in (self.below, self.above))

    def is_open(self, side: Side) -> bool:
        """Whether more may be gained on a side than the error of the mean, and its neighbour is not yet close."""
        return side.gain > self.error and side.ratio > self.smallest_ratio * (1 + 1e-9)

    def lies_at_end_of(self, grid: Grid) -> bool:
        """Whether the optimum itself is the lowest or highest learning rate tried."""
        return self.is_lowest_of(grid) or self.is_highest_of(grid)

    def is_lowest_of(self, grid: Grid) -> bool:
        """Whether no learning rate below has all its results; a rate that still has to be run is not tried."""
        return not any(cell.is_complete for cell in grid.cells[: self.index])

    def is_highest_of(self, grid: Grid) -> bool:
        """Whether no learning rate above has all its results."""
        return not any(cell.is_complete for cell in grid.cells[self.index + 1 :])


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """All learning rates of one batch size, budget and momentum, with their results.

    Where final learning rates are swept apart, `rows` has all cells of every learning rate, and `cells` the best of
    each row; without, there are no rows. An optimum is then the best of all cells, and its interval holds every
    learning rate that is good enough at some final one.
    """

    axes: GridAxes
    num_steps: int
    cells: tuple[Cell, ...]
    objective: str
    direction: Direction
    smallest_ratio: float = SMALLEST_RATIO
    rows: tuple[tuple[Cell, ...], ...] = ()

    @property
    def all_cells(self) -> tuple[Cell, ...]:
        """Every cell, those of all rows where there are rows."""
        return tuple(cell for row in self.rows for cell in row) or self.cells

    @property
    def is_complete(self) -> bool:
        """Whether every cell is; confirming seeds may be missing."""
        return all(cell.is_complete for cell in self.all_cells)

    @property
    def num_runs(self) -> int:
        """How many runs of the grid have a result."""
        return sum(int((codes_of(runs) != MISSING).sum()) for runs in self._runs())

    @property
    def num_diverged(self) -> int:
        """How many runs of the grid diverged."""
        return sum(map(_num_diverged, self._runs()))

    def _runs(self) -> list[Runs]:
        return [*(cell.results for cell in self.all_cells), *(cell.confirmed for cell in self.cells)]

    def for_quantity(self, quantity: str, direction: Direction) -> Grid:
        """Return the grid whose cells are the best of each row for another quantity; itself where there are no rows."""
        if not self.rows or (quantity, direction) == (self.objective, self.direction):
            return self
        return dataclasses.replace(self, cells=tuple(best_of_row(row, quantity, direction) for row in self.rows))

    def optimum(self, objective: str | None = None, direction: Direction | None = None) -> Optimum | None:
        """Return the optimum for a quantity, by default the one tuned on; None where no cell is stable."""
        name = self.objective if objective is None else objective
        way = self.direction if direction is None else direction
        return self.for_quantity(name, way)._optimum(name, way)

    def _optimum(self, name: str, way: Direction) -> Optimum | None:
        kept = {k: tuple(cell.kept(name, way)) for k, cell in enumerate(self.cells) if cell.is_usable}
        estimates = {k: self.cells[k].estimate(name, kept=kept[k]) for k in kept}
        means = {k: way.sign * one.mean for k, one in estimates.items() if math.isfinite(one.mean)}
        if not means:
            return None
        most = max(means.values())
        tied = [k for k, mean in means.items() if math.isclose(mean, most, rel_tol=_TIE)]
        best = _middle({k: self.cells[k].effective_learning_rate for k in tied})
        limit = min(*(means[k] for k in tied), most - estimates[best].standard_deviation)
        within = [k for k, mean in means.items() if mean >= limit]
        rates = [cell.effective_learning_rate for cell in self.cells]
        error = _error_of_mean(estimates, best)
        below, above = self._sides(best, means, error)
        return Optimum(
            index=best,
            effective_learning_rate=rates[best],
            interval=(rates[within[0]], rates[within[-1]]),
            edge=self._edge(within),
            kept=kept[best],
            estimate=estimates[best],
            below=below,
            above=above,
            error=error,
            smallest_ratio=self.smallest_ratio,
        )

    def _sides(self, best: int, means: Mapping[int, float], error: float) -> tuple[Side, Side]:
        rates = [cell.effective_learning_rate for cell in self.cells]
        values = [means.get(index, math.nan) for index in range(len(rates))]
        gains = possible_gains([math.log2(rate) for rate in rates], values, best, error=error)
        below = rates[best] / rates[best - 1] if best > 0 else math.inf
        above = rates[best + 1] / rates[best] if best < len(rates) - 1 else math.inf
        return Side(ratio=below, gain=gains[0]), Side(ratio=above, gain=gains[1])

    def train_optimum(self) -> Optimum | None:
        """Return the optimum for what SGD minimises: final training loss plus L2 penalty, with runs ranked by it."""
        return self.optimum(*TRAIN_OBJECTIVE)

    def train_loss_optimum(self) -> Optimum | None:
        """Return the optimum for the final training loss without the penalty."""
        return self.optimum("train_loss", Direction.MINIMISE)

    def at_optimum(self, quantity: str) -> Estimate | None:
        """Return another quantity at the optimum: over the confirming seeds, without those over the same kept runs."""
        best = self.optimum()
        return None if best is None else self.cells[best.index].reported(quantity, kept=best.kept)

    def edge(self) -> Edge:
        """Return where the optimum lies."""
        best = self.optimum()
        if not self.is_complete:
            return Edge.INCOMPLETE
        return Edge.NO_OPTIMUM if best is None else best.edge

    def _edge(self, within: Sequence[int]) -> Edge:
        if not self.is_complete:
            return Edge.INCOMPLETE
        lower, upper = within[0] == 0, within[-1] == len(self.cells) - 1
        if lower and upper:
            return Edge.BOTH
        return Edge.LOWER if lower else Edge.UPPER if upper else Edge.INTERIOR


def best_of_row(row: Sequence[Cell], quantity: str, direction: Direction) -> Cell:
    """Return the best cell of one learning rate; the middle one where several share the best mean.

    Where none can be compared it is one that is not complete yet, if there is such a cell, or any.
    """
    estimates = {k: c.estimate(quantity, kept=c.kept(quantity, direction)) for k, c in enumerate(row) if c.is_usable}
    means = {k: direction.sign * one.mean for k, one in estimates.items() if math.isfinite(one.mean)}
    if not means:
        return next((cell for cell in row if not cell.is_complete), row[len(row) // 2])
    most = max(means.values())
    tied = [k for k, mean in means.items() if math.isclose(mean, most, rel_tol=_TIE)]
    return row[_middle({k: row[k].final_learning_rate or 1.0 for k in tied})]


def _middle(rates: Mapping[int, float]) -> int:
    """Return the index of the learning rate nearest to the middle of their range in log ε; the lower one of two."""
    logs = {index: math.log(rate) for index, rate in rates.items()}
    middle = (min(logs.values()) + max(logs.values())) / 2
    return min(logs, key=lambda index: (round(abs(logs[index] - middle), 9), index))


def _error_of_mean(estimates: Mapping[int, Estimate], best: int) -> float:
    """Return the error of the best mean, from the middle spread of it and its neighbours; 0 for single runs.

    Of two spreads it is the smaller: to take the error for too small costs a few learning rates more, to take it for
    too large leaves an optimum unresolved.
    """
    near = [estimates[index].standard_deviation for index in (best - 1, best, best + 1) if index in estimates]
    spread = statistics.median_low([value for value in near if math.isfinite(value)])
    return spread / math.sqrt(estimates[best].num_kept)


def _num_diverged(runs: Runs) -> int:
    return _num_of(Outcome.DIVERGED, runs)


def _num_of(outcome: Outcome, runs: Runs) -> int:
    return int((codes_of(runs) == CODES[outcome]).sum())


def _are_done(runs: Runs) -> bool:
    codes = codes_of(runs)
    return not ((codes == MISSING) | (codes == CODES[Outcome.FAILED])).any()


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
