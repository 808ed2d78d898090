"""What comes next: the runs that are missing, round by round.

`growth` says how one grid grows. Most sweeps know all their grids from the start. A grid that is estimated at a smaller
budget is known once the estimate is, and one of a doubled budget once the last one still improved: these grids are of a
later level, which begins when the level before is settled.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from isotherm.core.records import RunResult, RunSpec
from isotherm.core.run_keys import cell_id
from isotherm.core.run_table import found_in
from isotherm.sweep.doubling import stop_reason
from isotherm.sweep.growth import CellOfRuns, Stage, Step, grown_grid, growth, is_settled, point_of, runs_at
from isotherm.sweep.plan import GridAxes, SweepPlan
from isotherm.sweep.refinement import num_halvings


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """Runs that are missing, all of the same step of their grids; round 0 is the base grids."""

    number: int
    stages: tuple[Stage, ...]
    specs: tuple[RunSpec, ...]

    def __str__(self) -> str:
        return str(Stage.BASE) if self.number == 0 else f"round {self.number}, {' and '.join(self.stages)}"


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
    first = 0
    for groups in itertools.zip_longest(*(levels(plan, results) for plan in plans), fillvalue=[]):
        growths = [list(growth(p, axes, results)) for p, group in zip(plans, groups, strict=True) for axes in group]
        number = max(map(len, growths), default=0)
        for index in range(number):
            found = _round(first + index, [steps[index] for steps in growths if index < len(steps)], skip)
            if found is not None:
                return found
        first += number
    return None


def _round(number: int, steps: Sequence[Step], skip: Set[str]) -> Round | None:
    """Return what is missing of the same step of several grids; None if nothing is."""
    wanted: dict[str, RunSpec] = {}
    stages: set[Stage] = set()
    for step in steps:
        missing = {k: s for cell in step.cells for k, s in cell.missing().items() if k not in skip}
        wanted |= missing
        stages |= {step.stage} if missing else set()
    if not wanted:
        return None
    return Round(number=number, stages=tuple(s for s in Stage if s in stages), specs=tuple(wanted.values()))


def levels(plan: SweepPlan, results: Mapping[str, RunResult]) -> Iterator[list[GridAxes]]:
    """Yield the grids of a sweep by level, as far as the results call for them."""
    if plan.estimate_at is not None:
        yield estimating_grids(plan)
        if not all(is_settled(plan, axes, results) for axes in estimating_grids(plan)):
            return
    if plan.until is None:
        yield plan.grids()
        return
    for budget in plan.budgets:
        group = [axes for axes in plan.grids() if axes.budget == budget and _is_reached(plan, axes, results)]
        if not group:
            return
        yield group
        if not all(is_settled(plan, axes, results) for axes in group):
            return


def _is_reached(plan: SweepPlan, axes: GridAxes, results: Mapping[str, RunResult]) -> bool:
    """Tell whether the smaller budgets of a batch size and optimiser call for this one; they are settled."""
    before = [
        grown_grid(plan, other, results).at_optimum(plan.objective)
        for other in plan.grids()
        if (other.batch_size, other.method) == (axes.batch_size, axes.method)
        and other.budget.amount < axes.budget.amount
    ]
    assert plan.until is not None
    return all(stop_reason(plan.until, before[: k + 1], plan.direction) is None for k in range(len(before)))


def reached_grids(plan: SweepPlan, results: Mapping[str, RunResult]) -> list[GridAxes]:
    """Return the grids that the results call for so far, those at which others are estimated left out.

    The first ones are among them from the start, also while they are being estimated.
    """
    found = [axes for group in levels(plan, results) for axes in group if axes.budget in plan.budgets]
    budgets = plan.budgets if plan.until is None else plan.budgets[:1]
    return found or [axes for axes in plan.grids() if axes.budget in budgets]


def estimating_grids(plan: SweepPlan) -> list[GridAxes]:
    """Return the grids at the smaller budget by which those of the sweep are estimated, if there are such."""
    return list(dict.fromkeys(axes for axes in map(plan.estimating_axes, plan.grids()) if axes is not None))


def all_runs(plans: Sequence[SweepPlan], results: Mapping[str, RunResult]) -> dict[str, RunSpec]:
    """Return every run that the plans call for so far, by key."""
    return {key: spec for cell in all_cells(plans, results) for key, spec in cell.specs().items()}


def all_cells(plans: Sequence[SweepPlan], results: Mapping[str, RunResult]) -> Iterator[CellOfRuns]:
    """Yield the same by cell, without their keys; a cell may come in several sweeps."""
    for plan in plans:
        for axes in itertools.chain.from_iterable(levels(plan, results)):
            for step in growth(plan, axes, results):
                yield from step.cells


def distinct_cells(plans: Sequence[SweepPlan], results: Mapping[str, RunResult]) -> Iterator[CellOfRuns]:
    """Yield the same, every run once."""
    seen: dict[bytes, set[int]] = {}
    for cell in all_cells(plans, results):
        known = seen.setdefault(cell_id(cell.spec), set())
        if known.isdisjoint(cell.seeds):
            known.update(cell.seeds)
            yield cell
            continue
        new = [place for place, seed in enumerate(cell.seeds) if seed not in known]
        known.update(cell.seeds)
        if new:
            seeds = tuple(cell.seeds[place] for place in new)
            spec = dataclasses.replace(cell.spec, seed=seeds[0])
            yield CellOfRuns(spec=spec, seeds=seeds, results=found_in(results, spec, seeds))


def confirming_runs(plans: Sequence[SweepPlan], results: Mapping[str, RunResult]) -> dict[str, RunSpec]:
    """Return every confirming run that is missing, by key.

    Until a grid is settled, its confirming runs stand at a learning rate from the middle of it.
    """
    found: dict[str, RunSpec] = {}
    for plan in plans:
        for axes in itertools.chain.from_iterable(levels(plan, results)):
            *_, last = growth(plan, axes, results)
            middle = point_of(last.grid.cells[len(last.grid.cells) // 2])
            seeds = plan.at(axes).confirming_seeds
            has_begun = last.stage is Stage.CONFIRMATION
            cells = last.cells if has_begun else [runs_at(plan, axes, results, middle, seeds)] if seeds else []
            found |= {key: spec for cell in cells for key, spec in cell.missing().items()}
    return found


def num_refining_runs(plans: Sequence[SweepPlan], results: Mapping[str, RunResult]) -> int:
    """Return about how many runs refinement will add to the grids whose base is not done.

    That is for both sides of one optimum, to the smallest ratio; it may stop earlier, and goes on where optima move.
    """
    num_runs = 0
    for plan in plans:
        for axes in itertools.chain.from_iterable(levels(plan, results)):
            is_refined = plan.at(axes).resolution == "adaptive"
            if is_refined and not next(growth(plan, axes, results)).grid.is_complete:
                grids = [plan.base_learning_rates(axes), plan.final_learning_rates]
                halvings = [num_halvings(rates, plan.smallest_ratio) for rates in grids if rates]
                num_runs += 2 * sum(halvings) * len(plan.seeds)
    return num_runs
