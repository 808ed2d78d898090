"""What is run next, grid by grid, and why."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from isotherm.core.records import Outcome, RunResult
from isotherm.core.run_table import CODES, MISSING, codes_of
from isotherm.sweep.growth import CellOfRuns, Stage, Step, growth
from isotherm.sweep.plan import GridAxes, SweepPlan
from isotherm.sweep.protocol import Edge, Grid
from isotherm.sweep.rounds import levels


@dataclass(frozen=True, kw_only=True, slots=True)
class Upcoming:
    """The runs that one grid calls for next, all of one stage.

    `num_tried` of them failed before and are tried again by the next call.
    """

    sweep: str
    axes: GridAxes
    round: int
    stage: Stage
    learning_rates: tuple[float, ...]
    num_runs: int
    num_tried: int
    work: int
    reason: str


def upcoming(plans: Sequence[SweepPlan], results: Mapping[str, RunResult]) -> list[Upcoming]:
    """Return what every grid calls for next, those of the next round first.

    Grids that are not reached yet, as their level begins when the level before is settled, are left out.
    """
    found: list[Upcoming] = []
    first = 0
    for groups in itertools.zip_longest(*(levels(plan, results) for plan in plans), fillvalue=[]):
        longest = 0
        for plan, group in zip(plans, groups, strict=True):
            for axes in group:
                steps = list(growth(plan, axes, results))
                longest = max(longest, len(steps))
                found += _missing(plan, axes, steps, first)
        first += longest
    return sorted(found, key=lambda one: one.round)


def _missing(plan: SweepPlan, axes: GridAxes, steps: Sequence[Step], first: int) -> list[Upcoming]:
    """Return what is missing of the last step of a grid, if anything is: a grid grows no further before it is run."""
    step = steps[-1]
    if step.is_done:
        return []
    wanted = [(runs.spec, _num_of(runs, MISSING), _num_of(runs, CODES[Outcome.FAILED])) for runs in step.cells]
    wanted = [(spec, new, failed) for spec, new, failed in wanted if new or failed]
    return [
        Upcoming(
            sweep=plan.name,
            axes=axes,
            round=first + len(steps) - 1,
            stage=step.stage,
            learning_rates=tuple(sorted({spec.effective_learning_rate for spec, _, _ in wanted})),
            num_runs=sum(new + failed for _, new, failed in wanted),
            num_tried=sum(failed for _, _, failed in wanted),
            work=sum((new + failed) * spec.batch_size * spec.num_steps for spec, new, failed in wanted),
            reason=_reason(step, None if len(steps) == 1 else steps[-2].grid),
        )
    ]


def _num_of(runs: CellOfRuns, code: int) -> int:
    return int((codes_of(runs.results) == code).sum())


def _reason(step: Step, before: Grid | None) -> str:
    """Say why a step adds its runs, by what the grid before it showed."""
    best = None if before is None else before.optimum()
    if step.stage is Stage.BASE or before is None:
        return "the learning rates that the sweep names"
    if step.stage is Stage.CONFIRMATION:
        rate = "" if best is None else f" ε_eff = {best.effective_learning_rate:.4g}"
        return f"further seeds at the chosen learning rate{rate}, so that the choice does not flatter it"
    if step.stage is Stage.REFINEMENT:
        gain = (
            ""
            if best is None
            else f": up to {best.unresolved_gain:.2g}, where the error of the mean is {best.error:.2g}"
        )
        return f"between the learning rates tried, more may be gained than the error of the mean{gain}"
    edge = before.edge()
    if edge is Edge.NO_OPTIMUM:
        return "no learning rate tried so far is stable"
    if edge is Edge.INTERIOR:
        return "the learning rate with the lowest training loss is the lowest or highest one tried"
    return f"the optimum or its interval touches an end of the learning rates tried ({edge})"
