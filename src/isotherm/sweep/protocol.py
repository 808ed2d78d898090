"""The paper's protocol, applied to results: cells, optimum, interval, edges, and which runs come next.

Every batch size has a grid of learning rates with n seeds each. A cell's mean and standard deviation are over its best
k of n runs. The optimum is the learning rate with the best mean; its interval holds every learning rate whose mean is
within one standard deviation of the optimum's. A cell in which more than n - k runs diverged is unstable and cannot be
optimal. Where the optimum or its interval touches an end of the grid, the grid is extended there.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from isotherm.core.rates import tidy
from isotherm.core.records import Direction, Outcome, RunResult, RunSpec
from isotherm.core.statistics import Interval, best_k_of_n, standard_deviation, t_interval
from isotherm.sweep.plan import GridAxes, SweepPlan

# Learning rates added per extension.
POINTS_PER_EXTENSION = 2


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
    """A quantity over the kept runs of a cell, and over all finished ones."""

    mean: float
    standard_deviation: float
    num_kept: int
    num_seeds: int
    mean_all: float
    standard_deviation_all: float
    interval_all: Interval
    values_all: tuple[float, ...]

    def __str__(self) -> str:
        kept = f"{self.mean:.4g} ± {self.standard_deviation:.2g} (best {self.num_kept} of {self.num_seeds})"
        num_all = len(self.values_all)
        if num_all == self.num_kept:
            return kept
        return f"{kept}, {self.mean_all:.4g} ± {self.standard_deviation_all:.2g} (all {num_all} finished)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One setting with all its seeds; `results` are in the order of the plan's seeds, None where a run is missing."""

    effective_learning_rate: float
    results: tuple[RunResult | None, ...]
    num_kept: int

    @property
    def num_diverged(self) -> int:
        """How many runs diverged."""
        return sum(r is not None and r.outcome is Outcome.DIVERGED for r in self.results)

    @property
    def num_failed(self) -> int:
        """How many runs failed for reasons unrelated to the setting."""
        return sum(r is not None and r.outcome is Outcome.FAILED for r in self.results)

    @property
    def is_complete(self) -> bool:
        """Whether every seed has finished or diverged."""
        return all(r is not None and r.outcome is not Outcome.FAILED for r in self.results)

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
        values = [math.nan if r is None else r.quantity(quantity) for r in self.results]
        return best_k_of_n(values, num_kept=self.num_kept, direction=direction)

    def estimate(self, quantity: str, *, kept: Sequence[int]) -> Estimate:
        """Return a quantity over the kept runs, and over all runs that have it."""
        chosen = [r.quantity(quantity) for r in (self.results[index] for index in kept) if r is not None]
        everyone = [r.quantity(quantity) for r in self.results if r is not None]
        finite = [value for value in everyone if math.isfinite(value)]
        return Estimate(
            mean=_mean(chosen),
            standard_deviation=standard_deviation(chosen),
            num_kept=len(chosen),
            num_seeds=len(self.results),
            mean_all=_mean(finite),
            standard_deviation_all=standard_deviation(finite) if finite else math.nan,
            interval_all=t_interval(finite) if finite else Interval(estimate=math.nan, low=-math.inf, high=math.inf),
            values_all=tuple(finite),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimum:
    """The best learning rate of a grid for one quantity, and the interval within one standard deviation of it."""

    index: int
    effective_learning_rate: float
    interval: tuple[float, float]
    edge: Edge
    kept: tuple[int, ...]
    estimate: Estimate

    def __str__(self) -> str:
        low, high = self.interval
        return f"ε_eff {self.effective_learning_rate:.4g} [{low:.4g}, {high:.4g}], {self.edge}"

    @property
    def at_edge(self) -> bool:
        """Whether the optimum or its interval touches an end of the grid, so that the true optimum may lie beyond."""
        return self.edge is not Edge.INTERIOR

    def lies_at_end_of(self, grid: Grid) -> bool:
        """Whether the optimum itself is the lowest or highest learning rate tried."""
        return self.index in (0, len(grid.cells) - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """All learning rates of one batch size, budget and momentum, with their results."""

    axes: GridAxes
    num_steps: int
    cells: tuple[Cell, ...]
    objective: str
    direction: Direction

    @property
    def is_complete(self) -> bool:
        """Whether every cell is."""
        return all(cell.is_complete for cell in self.cells)

    @property
    def num_runs(self) -> int:
        """How many runs of the grid have a result."""
        return sum(result is not None for cell in self.cells for result in cell.results)

    @property
    def num_diverged(self) -> int:
        """How many runs of the grid diverged."""
        return sum(cell.num_diverged for cell in self.cells)

    def optimum(self, objective: str | None = None, direction: Direction | None = None) -> Optimum | None:
        """Return the optimum for a quantity, by default the one tuned on; None where no cell is stable."""
        name = self.objective if objective is None else objective
        way = self.direction if direction is None else direction
        usable = [index for index, cell in enumerate(self.cells) if cell.is_usable]
        if not usable:
            return None
        kept = {index: tuple(self.cells[index].kept(name, way)) for index in usable}
        estimates = {index: self.cells[index].estimate(name, kept=kept[index]) for index in usable}
        usable = [index for index in usable if math.isfinite(estimates[index].mean)]
        if not usable:
            return None
        best = max(usable, key=lambda index: way.sign * estimates[index].mean)
        limit = way.sign * estimates[best].mean - estimates[best].standard_deviation
        within = [index for index in usable if way.sign * estimates[index].mean >= limit]
        rates = [cell.effective_learning_rate for cell in self.cells]
        return Optimum(
            index=best,
            effective_learning_rate=rates[best],
            interval=(rates[within[0]], rates[within[-1]]),
            edge=self._edge(within),
            kept=kept[best],
            estimate=estimates[best],
        )

    def train_optimum(self) -> Optimum | None:
        """Return the optimum for the final training loss, with runs ranked by that loss."""
        return self.optimum("train_loss", Direction.MINIMISE)

    def at_optimum(self, quantity: str) -> Estimate | None:
        """Return another quantity at the optimum, over the same kept runs."""
        best = self.optimum()
        return None if best is None else self.cells[best.index].estimate(quantity, kept=best.kept)

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


def build_grid(
    plan: SweepPlan, axes: GridAxes, results: Mapping[str, RunResult], learning_rates: Sequence[float]
) -> Grid:
    """Return a grid over these learning rates from results by key."""
    cells = []
    for rate in learning_rates:
        specs = [plan.run_spec(axes, effective_learning_rate=rate, seed=seed) for seed in plan.seeds]
        found = tuple(results.get(spec.key) for spec in specs)
        cells.append(Cell(effective_learning_rate=rate, results=found, num_kept=plan.num_kept))
    num_steps = plan.num_steps(axes)
    return Grid(axes=axes, num_steps=num_steps, cells=tuple(cells), objective=plan.objective, direction=plan.direction)


def extended_grid(
    plan: SweepPlan, axes: GridAxes, results: Mapping[str, RunResult], *, max_extensions: int | None = None
) -> Grid:
    """Return the grid with every extension that its results call for; incomplete until those have been run.

    Extensions depend on the results alone, so a resumed sweep makes the same ones.
    """
    rates = list(plan.base_learning_rates(axes))
    grid = build_grid(plan, axes, results, rates)
    for _ in range(plan.max_extensions if max_extensions is None else max_extensions):
        added = _extension(grid, for_train=plan.extend_for == "tuned_and_train")
        if not added:
            break
        rates = sorted({*rates, *added})
        grid = build_grid(plan, axes, results, rates)
    return grid


def missing_runs(
    plans: Sequence[SweepPlan], results: Mapping[str, RunResult], *, skip: Set[str] = frozenset()
) -> list[RunSpec]:
    """Return the runs of `next_round`; none if the plans are complete."""
    return next_round(plans, results, skip=skip)[1]


def next_round(
    plans: Sequence[SweepPlan], results: Mapping[str, RunResult], *, skip: Set[str] = frozenset()
) -> tuple[int, list[RunSpec]]:
    """Return the first round with missing runs, and those runs: round 0 is the base grids, 1 their first extensions.

    Failed runs count as missing unless their keys are in `skip`. One round is finished before the next begins, so what
    is run together does not depend on where a sweep was interrupted.
    """
    for round_ in range(max((plan.max_extensions for plan in plans), default=0) + 1):
        wanted: dict[str, RunSpec] = {}
        for plan in plans:
            for axes in plan.grids():
                grid = extended_grid(plan, axes, results, max_extensions=min(round_, plan.max_extensions))
                for spec in _specs(plan, grid):
                    known = results.get(spec.key)
                    if spec.key not in skip and (known is None or known.outcome is Outcome.FAILED):
                        wanted[spec.key] = spec
        if wanted:
            return round_, list(wanted.values())
    return 0, []


def all_runs(plans: Sequence[SweepPlan], results: Mapping[str, RunResult]) -> dict[str, RunSpec]:
    """Return every run that the plans call for so far, by key."""
    specs: dict[str, RunSpec] = {}
    for plan in plans:
        for axes in plan.grids():
            specs.update({spec.key: spec for spec in _specs(plan, extended_grid(plan, axes, results))})
    return specs


def _specs(plan: SweepPlan, grid: Grid) -> list[RunSpec]:
    return [
        plan.run_spec(grid.axes, effective_learning_rate=cell.effective_learning_rate, seed=seed)
        for cell in grid.cells
        for seed in plan.seeds
    ]


def _extension(grid: Grid, *, for_train: bool) -> list[float]:
    """Return the learning rates to add; none if the optimum is interior or not known yet."""
    edge = grid.edge()
    train = grid.train_optimum() if for_train and grid.is_complete else None
    train_lower = train is not None and train.index == 0
    train_upper = train is not None and train.index == len(grid.cells) - 1
    rates = [cell.effective_learning_rate for cell in grid.cells]
    below = rates[1] / rates[0] if len(rates) > 1 else 2.0
    above = rates[-1] / rates[-2] if len(rates) > 1 else 2.0
    added: list[float] = []
    if edge in (Edge.LOWER, Edge.BOTH, Edge.NO_OPTIMUM) or train_lower:
        added += [tidy(rates[0] / below**k) for k in range(1, POINTS_PER_EXTENSION + 1)]
    if edge in (Edge.UPPER, Edge.BOTH) or train_upper:
        added += [tidy(rates[-1] * above**k) for k in range(1, POINTS_PER_EXTENSION + 1)]
    return added


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
