"""How a grid grows, round by round, by what its results call for.

First the base grid. Where the optimum or its interval touches an end, the grid is extended there. Where a finer grid
could still gain more than the error of the mean, learning rates halfway to the neighbours of the optimum are added.
Last, further seeds are run at the learning rate that was chosen. All of it depends on the results alone, so a resumed
sweep does the same.

With a smaller budget at which grids are estimated, the same is done there first, without the last two steps; the base
grid is then what lies around the optimum found.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isotherm.core.rates import tidy
from isotherm.core.records import Outcome, RunResult, RunSpec
from isotherm.core.run_keys import keys_of_seeds
from isotherm.core.run_table import CODES, MISSING, Runs, RunTable, codes_of, found_in
from isotherm.sweep.plan import GridAxes, SweepPlan
from isotherm.sweep.plane import grouped_rows, transposed
from isotherm.sweep.protocol import TRAIN_OBJECTIVE, Cell, Edge, Grid, Optimum, best_of_row
from isotherm.sweep.refinement import midpoint

# Learning rates added per extension.
POINTS_PER_EXTENSION = 2
# A learning rate, and the final one where those are swept.
Point = tuple[float, float | None]


class Stage(enum.StrEnum):
    """Why runs are added to a grid."""

    BASE = "base grids"
    EXTENSION = "extension"
    REFINEMENT = "refinement"
    CONFIRMATION = "confirmation"


@dataclass(frozen=True, kw_only=True, slots=True)
class CellOfRuns:
    """Runs that differ in their seed alone, and their results; `spec` is the run of the first seed."""

    spec: RunSpec
    seeds: tuple[int, ...]
    results: Runs

    def specs(self) -> dict[str, RunSpec]:
        """Return every run by key."""
        return self._specs(range(len(self.seeds)))

    def missing(self) -> dict[str, RunSpec]:
        """Return the runs that are still to be done by key; failed ones are."""
        return self._specs(np.flatnonzero(_are_missing(self.results)).tolist())

    def _specs(self, places: Sequence[int]) -> dict[str, RunSpec]:
        seeds = [self.seeds[place] for place in places]
        keys = keys_of_seeds(self.spec, seeds)
        return {key: dataclasses.replace(self.spec, seed=seed) for key, seed in zip(keys, seeds, strict=True)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A grid after a step of its growth, and the runs that the step added, by cell."""

    stage: Stage
    grid: Grid
    cells: tuple[CellOfRuns, ...]

    @property
    def specs(self) -> dict[str, RunSpec]:
        """The runs that the step added, by key."""
        return {key: spec for cell in self.cells for key, spec in cell.specs().items()}

    @property
    def is_done(self) -> bool:
        """Whether none of them is missing or failed."""
        return not any(_are_missing(cell.results).any() for cell in self.cells)


def growth(plan: SweepPlan, axes: GridAxes, results: Mapping[str, RunResult]) -> Iterator[Step]:
    """Yield a grid after every step that its results call for; the last one may still have to be run.

    A grid with missing or failed runs grows no further. Once refined it may be extended again: the interval of the new
    optimum can reach an end.
    """
    if not isinstance(results, RunTable):  # which may have changed since the last call without being noticed
        return _growth(plan, axes, results)
    return iter(results.kept((plan, axes), lambda: tuple(_growth(plan, axes, results))))


def _growth(plan: SweepPlan, axes: GridAxes, results: Mapping[str, RunResult]) -> Iterator[Step]:
    given = _base(plan, axes, results)
    plan = plan.at(axes)
    cells: dict[Point, Cell] = {}
    added, stage, num_extensions = given.points(), Stage.BASE, 0
    while added:
        runs = [runs_at(plan, axes, results, point, plan.seeds) for point in added]
        cells |= {point: _cell(plan, point, new.results) for point, new in zip(added, runs, strict=True)}
        grid = _grid(plan, axes, cells)
        yield Step(stage=stage, grid=grid, cells=tuple(runs))
        if not grid.is_complete:
            return
        stage, added = Stage.EXTENSION, []
        if num_extensions < plan.max_extensions:
            given, low = given.extended(grid, for_train=plan.extend_for == "tuned_and_train"), given.rates[0]
            beyond = [point for point in given.points() if point not in cells]
            added = sorted(beyond, key=lambda p: (p[0] >= low, abs(p[0] - low), p[1] or 0.0))  # from the ends on
            num_extensions += bool(added)
        if not added and plan.resolution == "adaptive":
            stage, added = Stage.REFINEMENT, _refinement(plan, grid, given)
    best = grid.optimum()
    if best is not None and plan.num_confirm:
        yield _confirmation(plan, grid, best, results)


def grown_grid(plan: SweepPlan, axes: GridAxes, results: Mapping[str, RunResult]) -> Grid:
    """Return the grid with all that its results call for; incomplete until that has been run."""
    *_, last = growth(plan, axes, results)
    return last.grid


def build_grid(
    plan: SweepPlan, axes: GridAxes, results: Mapping[str, RunResult], learning_rates: Sequence[float]
) -> Grid:
    """Return a grid over these learning rates from results by key, without confirming seeds."""
    points = _Given(rates=tuple(learning_rates), finals=plan.final_learning_rates).points()
    found = {point: runs_at(plan, axes, results, point, plan.seeds).results for point in points}
    return _grid(plan, axes, {point: _cell(plan, point, runs) for point, runs in found.items()})


def is_settled(plan: SweepPlan, axes: GridAxes, results: Mapping[str, RunResult]) -> bool:
    """Tell whether all that the results of a grid call for has been run."""
    *_, last = growth(plan, axes, results)
    return last.grid.is_complete and last.is_done


def runs_at(
    plan: SweepPlan, axes: GridAxes, results: Mapping[str, RunResult], point: Point, seeds: Sequence[int]
) -> CellOfRuns:
    """Return the runs of a cell with their results."""
    rate, final = point
    spec = plan.run_spec(axes, effective_learning_rate=rate, seed=seeds[0], final_learning_rate=final)
    return CellOfRuns(spec=spec, seeds=tuple(seeds), results=found_in(results, spec, seeds))


def _are_missing(runs: Runs) -> NDArray[np.bool_]:
    codes = codes_of(runs)
    return np.asarray((codes == MISSING) | (codes == CODES[Outcome.FAILED]))


def point_of(cell: Cell) -> Point:
    """Return the learning rates of a cell."""
    return cell.effective_learning_rate, cell.final_learning_rate


def _base(plan: SweepPlan, axes: GridAxes, results: Mapping[str, RunResult]) -> _Given:
    """Return the base grid: as given, or what lies around the optimum of the grid that was estimated."""
    given = _Given(rates=plan.base_learning_rates(axes), finals=plan.final_learning_rates)
    estimating = plan.estimating_axes(axes)
    if estimating is None or estimating == axes:
        return given
    grid = grown_grid(plan, estimating, results)
    best = grid.optimum()
    if best is None:
        return given
    rates = _around(grid, best)
    if not plan.final_learning_rates:
        return _Given(rates=rates, finals=())
    side = transposed(grid)
    other = side.optimum()
    assert other is not None
    return _Given(rates=rates, finals=_around(side, other))


def _around(grid: Grid, best: Optimum) -> tuple[float, ...]:
    """Return the learning rates of an interval, and the next one on either side."""
    rates = [cell.effective_learning_rate for cell in grid.cells]
    low, high = rates.index(best.interval[0]), rates.index(best.interval[1])
    return tuple(rates[max(0, low - 1) : high + 2])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Given:
    """The learning rates of a grid before refinement, rising, and the final ones; none where they are not swept."""

    rates: tuple[float, ...]
    finals: tuple[float, ...]

    def points(self) -> list[Point]:
        """Return every pair that does not rise."""
        finals = self.finals or (None,)
        return [(rate, final) for rate in self.rates for final in finals if final is None or final <= rate]

    def extended(self, grid: Grid, *, for_train: bool) -> _Given:
        """Return what to try with the ends extended where an optimum is not inside."""
        rates = {*self.rates, *_extension(grid, self.rates, for_train=for_train)}
        if not self.finals:
            return _Given(rates=tuple(sorted(rates)), finals=())
        finals = {*self.finals, *_extension(transposed(grid), self.finals, for_train=for_train)}
        useful = (final for final in finals if final <= max(rates))
        return _Given(rates=tuple(sorted(rates)), finals=tuple(sorted(useful)))


def _cell(plan: SweepPlan, point: Point, runs: Runs) -> Cell:
    return Cell(
        effective_learning_rate=point[0],
        results=runs,
        num_kept=plan.num_kept,
        metric_bounds=plan.metric_bounds,
        final_learning_rate=point[1],
    )


def _grid(plan: SweepPlan, axes: GridAxes, cells: Mapping[Point, Cell]) -> Grid:
    rows = grouped_rows(cells.values()) if plan.final_learning_rates else ()
    best = (best_of_row(row, plan.objective, plan.direction) for row in rows)
    return Grid(
        axes=axes,
        num_steps=plan.num_steps(axes),
        cells=tuple(best) if rows else tuple(cells[point] for point in sorted(cells)),
        objective=plan.objective,
        direction=plan.direction,
        smallest_ratio=plan.smallest_ratio,
        rows=rows,
    )


def _confirmation(plan: SweepPlan, grid: Grid, best: Optimum, results: Mapping[str, RunResult]) -> Step:
    runs = runs_at(plan, grid.axes, results, point_of(grid.cells[best.index]), plan.confirming_seeds)
    cells = list(grid.cells)
    cells[best.index] = dataclasses.replace(cells[best.index], confirmed=runs.results)
    return Step(stage=Stage.CONFIRMATION, grid=dataclasses.replace(grid, cells=tuple(cells)), cells=(runs,))


def _extension(grid: Grid, given: Sequence[float], *, for_train: bool) -> list[float]:
    """Return the learning rates to add beyond the ends, in the given grid's steps; none if the optimum is inside."""
    edge = grid.edge()
    train = grid.train_optimum() if for_train else None
    train_lower = train is not None and train.index == 0
    train_upper = train is not None and train.index == len(grid.cells) - 1
    below = given[1] / given[0] if len(given) > 1 else 2.0
    above = given[-1] / given[-2] if len(given) > 1 else 2.0
    added: list[float] = []
    if edge in (Edge.LOWER, Edge.BOTH, Edge.NO_OPTIMUM) or train_lower:
        added += [tidy(given[0] / below**k) for k in range(1, POINTS_PER_EXTENSION + 1)]
    if edge in (Edge.UPPER, Edge.BOTH) or train_upper:
        added += [tidy(given[-1] * above**k) for k in range(1, POINTS_PER_EXTENSION + 1)]
    return added


def _refinement(plan: SweepPlan, grid: Grid, given: _Given) -> list[Point]:
    """Return the cells to add: halfway to the neighbours of the optima, on the sides that are open.

    Where final learning rates are swept, these are pairs: of the optimum and what lies halfway, along either axis.
    """
    quantities = [(plan.objective, plan.direction)]
    quantities += [TRAIN_OBJECTIVE] if plan.extend_for == "tuned_and_train" else []
    added: set[Point] = set()
    for quantity in quantities:
        own = grid.for_quantity(*quantity)
        best = own.optimum(*quantity)
        if best is None:
            continue
        rate, final = point_of(own.cells[best.index])
        rates, finals = {rate, *_halfway(own, best, given.rates)}, {final}
        if final is not None:
            side = transposed(grid).for_quantity(*quantity)
            other = side.optimum(*quantity)
            finals |= set() if other is None else set(_halfway(side, other, given.finals))
        added |= {(r, f) for r in rates for f in finals if f is None or f <= r}
    return sorted(added - {point_of(cell) for cell in grid.all_cells})


def _halfway(grid: Grid, best: Optimum, given: Sequence[float]) -> list[float]:
    """Return the learning rates to add around an optimum; none at an end of the grid, as it may lie beyond."""
    if best.lies_at_end_of(grid):
        return []
    rates = [cell.effective_learning_rate for cell in grid.cells]
    found = []
    for side, upper in ((best.below, best.index), (best.above, best.index + 1)):
        if best.is_open(side):
            new = midpoint(rates[upper - 1], rates[upper], given=given, smallest_ratio=grid.smallest_ratio)
            found += [] if new is None else [new]
    return found
