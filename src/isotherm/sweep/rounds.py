"""What comes next: a grid grows, round by round, by what its results call for.

First the base grid. Where the optimum or its interval touches an end, the grid is extended there. Where a finer grid
could still gain more than the error of the mean, learning rates halfway to the neighbours of the optimum are added.
Last, further seeds are run at the learning rate that was chosen. All of it depends on the results alone, so a resumed
sweep does the same.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from isotherm.core.rates import tidy
from isotherm.core.records import Outcome, RunResult, RunSpec
from isotherm.sweep.plan import GridAxes, SweepPlan
from isotherm.sweep.protocol import Cell, Edge, Grid, Optimum
from isotherm.sweep.refinement import midpoint, num_halvings

# Learning rates added per extension.
POINTS_PER_EXTENSION = 2


class Stage(enum.StrEnum):
    """Why runs are added to a grid."""

    BASE = "base grids"
    EXTENSION = "extension"
    REFINEMENT = "refinement"
    CONFIRMATION = "confirmation"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A grid after a step of its growth, and the runs that the step added, by key."""

    stage: Stage
    grid: Grid
    specs: Mapping[str, RunSpec]


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """Runs that are missing, all of the same step of their grids; round 0 is the base grids."""

    number: int
    stages: tuple[Stage, ...]
    specs: tuple[RunSpec, ...]

    def __str__(self) -> str:
        return str(Stage.BASE) if self.number == 0 else f"round {self.number}, {' and '.join(self.stages)}"


def growth(plan: SweepPlan, axes: GridAxes, results: Mapping[str, RunResult]) -> Iterator[Step]:
    """Yield a grid after every step that its results call for; the last one may still have to be run.

    A grid with missing or failed runs grows no further. Once refined it may be extended again: the interval of the new
    optimum can reach an end.
    """
    given = list(plan.base_learning_rates(axes))
    cells: dict[float, Cell] = {}
    added, stage, num_extensions = given, Stage.BASE, 0
    while added:
        specs: dict[str, RunSpec] = {}
        for rate in added:
            cells[rate], new = _cell(plan, axes, results, rate)
            specs |= new
        grid = _grid(plan, axes, cells)
        yield Step(stage=stage, grid=grid, specs=specs)
        if not grid.is_complete:
            return
        stage, added = Stage.EXTENSION, []
        if num_extensions < plan.max_extensions:
            added = _extension(grid, given, for_train=plan.extend_for == "tuned_and_train")
            num_extensions += bool(added)
            given = sorted({*given, *added})
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
    return _grid(plan, axes, {rate: _cell(plan, axes, results, rate)[0] for rate in learning_rates})


def missing_runs(
    plans: Sequence[SweepPlan], results: Mapping[str, RunResult], *, skip: Set[str] = frozenset()
) -> list[RunSpec]:
    """Return the runs of `next_round`; none if the plans are complete."""
    found = next_round(plans, results, skip=skip)
    return [] if found is None else list(found.specs)


def next_round(
    plans: Sequence[SweepPlan], results: Mapping[str, RunResult], *, skip: Set[str] = frozenset()
) -> Round | None:
    """Return the first round with missing runs; None if there is none.

    Failed runs count as missing unless their keys are in `skip`. One round is finished before the next begins, so what
    is run together does not depend on where a sweep was interrupted.
    """
    growths = [list(growth(plan, axes, results)) for plan in plans for axes in plan.grids()]
    for number in range(max(map(len, growths), default=0)):
        wanted: dict[str, RunSpec] = {}
        stages: set[Stage] = set()
        for step in (steps[number] for steps in growths if number < len(steps)):
            missing = {k: s for k, s in step.specs.items() if k not in skip and _is_missing(results.get(k))}
            wanted |= missing
            stages |= {step.stage} if missing else set()
        if wanted:
            return Round(number=number, stages=tuple(s for s in Stage if s in stages), specs=tuple(wanted.values()))
    return None


def all_runs(plans: Sequence[SweepPlan], results: Mapping[str, RunResult]) -> dict[str, RunSpec]:
    """Return every run that the plans call for so far, by key."""
    specs: dict[str, RunSpec] = {}
    for plan in plans:
        for axes in plan.grids():
            for step in growth(plan, axes, results):
                specs.update(step.specs)
    return specs


def confirming_runs(plans: Sequence[SweepPlan], results: Mapping[str, RunResult]) -> dict[str, RunSpec]:
    """Return every confirming run that is missing, by key.

    Until a grid is settled, its confirming runs stand at a learning rate from the middle of it.
    """
    found: dict[str, RunSpec] = {}
    for plan in plans:
        for axes in plan.grids():
            *_, last = growth(plan, axes, results)
            rate = last.grid.cells[len(last.grid.cells) // 2].effective_learning_rate
            settled = last.stage is Stage.CONFIRMATION
            specs = last.specs if settled else _runs(plan, axes, rate, plan.confirming_seeds)
            found |= {key: spec for key, spec in specs.items() if _is_missing(results.get(key))}
    return found


def num_refining_runs(plans: Sequence[SweepPlan], results: Mapping[str, RunResult]) -> int:
    """Return about how many runs refinement will add to the grids whose base is not done.

    That is for both sides of one optimum, to the smallest ratio; it may stop earlier, and goes on where optima move.
    """
    num_runs = 0
    for plan in plans:
        for axes in plan.grids():
            if plan.resolution == "adaptive" and not next(growth(plan, axes, results)).grid.is_complete:
                num_runs += 2 * num_halvings(plan.base_learning_rates(axes), plan.smallest_ratio) * len(plan.seeds)
    return num_runs


def _is_missing(result: RunResult | None) -> bool:
    return result is None or result.outcome is Outcome.FAILED


def _runs(plan: SweepPlan, axes: GridAxes, rate: float, seeds: Sequence[int]) -> dict[str, RunSpec]:
    specs = [plan.run_spec(axes, effective_learning_rate=rate, seed=seed) for seed in seeds]
    return {spec.key: spec for spec in specs}


def _cell(
    plan: SweepPlan, axes: GridAxes, results: Mapping[str, RunResult], rate: float
) -> tuple[Cell, dict[str, RunSpec]]:
    specs = _runs(plan, axes, rate, plan.seeds)
    found = tuple(results.get(key) for key in specs)
    bounds = plan.metric_bounds
    return Cell(effective_learning_rate=rate, results=found, num_kept=plan.num_kept, metric_bounds=bounds), specs


def _grid(plan: SweepPlan, axes: GridAxes, cells: Mapping[float, Cell]) -> Grid:
    return Grid(
        axes=axes,
        num_steps=plan.num_steps(axes),
        cells=tuple(cells[rate] for rate in sorted(cells)),
        objective=plan.objective,
        direction=plan.direction,
        smallest_ratio=plan.smallest_ratio,
    )


def _confirmation(plan: SweepPlan, grid: Grid, best: Optimum, results: Mapping[str, RunResult]) -> Step:
    specs = _runs(plan, grid.axes, best.effective_learning_rate, plan.confirming_seeds)
    cells = list(grid.cells)
    cells[best.index] = dataclasses.replace(cells[best.index], confirmed=tuple(results.get(key) for key in specs))
    return Step(stage=Stage.CONFIRMATION, grid=dataclasses.replace(grid, cells=tuple(cells)), specs=specs)


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


def _refinement(plan: SweepPlan, grid: Grid, given: Sequence[float]) -> list[float]:
    """Return the learning rates to add: halfway to the neighbours of the optima, on the sides that are open.

    An optimum at an end of the grid is not refined: it may lie beyond.
    """
    optima = [grid.optimum(), grid.train_optimum() if plan.extend_for == "tuned_and_train" else None]
    rates = [cell.effective_learning_rate for cell in grid.cells]
    added: set[float] = set()
    for best in optima:
        if best is None or best.lies_at_end_of(grid):
            continue
        for side, upper in ((best.below, best.index), (best.above, best.index + 1)):
            if best.is_open(side):
                low, high = rates[upper - 1], rates[upper]
                new = midpoint(low, high, given=given, smallest_ratio=plan.smallest_ratio)
                added |= set() if new is None else {new}
    return sorted(added)
