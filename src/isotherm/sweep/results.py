"""The results of a sweep or a study so far, with its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from isotherm.core.budget import Budget
from isotherm.core.one_screen import columns_text, one_screen
from isotherm.core.records import Outcome, RunResult, RunSpec
from isotherm.core.run_table import CODES, MISSING, RunTable, codes_of, failed_keys
from isotherm.core.views import Shown
from isotherm.sweep.growth import grown_grid, is_settled
from isotherm.sweep.plan import GridAxes, StudyPlan, SweepPlan
from isotherm.sweep.protocol import Grid
from isotherm.sweep.rounds import Round, all_runs, distinct_cells, estimating_grids, next_round, reached_grids


@dataclass(frozen=True, kw_only=True, eq=False)
class Results(Shown):
    """A sweep's plan with its results by key, and where and how the runs were trained, as far as it is known."""

    plan: SweepPlan
    by_key: Mapping[str, RunResult]
    provenance: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def as_study(self) -> StudyResults:
        """Return the results as those of a study with this one sweep."""
        plan = StudyPlan(name=self.plan.name, question="", sweeps=(self.plan,))
        return StudyResults(plan=plan, by_key=self.by_key, provenance=self.provenance)

    def grids(self, *, momentum: float | None = None, budget: Budget | None = None) -> list[Grid]:
        """Return the grids with all that their results call for, of one momentum and budget or of all."""
        return [
            grown_grid(self.plan, axes, self.by_key)
            for axes in reached_grids(self.plan, self.by_key)
            if momentum in (None, axes.momentum) and budget in (None, axes.budget)
        ]

    def is_settled(self, axes: GridAxes) -> bool:
        """Tell whether all that the results of a grid call for has been run."""
        return is_settled(self.plan, axes, self.by_key)

    def estimating_grids(self) -> list[Grid]:
        """Return the grids at the smaller budget at which those of the sweep were estimated; none without one."""
        return [grown_grid(self.plan, axes, self.by_key) for axes in estimating_grids(self.plan)]

    def optima(self) -> list[Grid]:
        """Return the grids that have an optimum."""
        return [grid for grid in self.grids() if grid.optimum() is not None]

    def runs(self) -> dict[str, RunSpec]:
        """Return every run that the sweep calls for so far, by key."""
        return all_runs([self.plan], self.by_key)

    def counts(self) -> dict[str, int]:
        """Return how many runs are done, by outcome, and how many are missing."""
        return _counts([self.plan], self.by_key)

    def __repr__(self) -> str:
        return one_screen(self.lines())

    def lines(self) -> list[str]:
        """Return the counts and the optimum of every grid as text."""
        plan = self.plan
        title = f"Results of {plan.name!r} on task {plan.task!r}: {_counts_text(self.counts())}"
        rows = [_grid_row(grid) for grid in self.grids()]
        own = ("momentum", "effective learning rate") if plan.has_temperature else ("optimizer", "learning rate")
        names = ("B", "budget", *own, "interval", f"test {plan.metric}", "runs")
        return [title, *columns_text(names, rows)]


@dataclass(frozen=True, kw_only=True, eq=False)
class StudyResults(Shown):
    """A study's plan with the results of every sweep; attributes as those of `Results`."""

    plan: StudyPlan
    by_key: Mapping[str, RunResult]
    provenance: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def sweeps(self) -> list[Results]:
        """The sweeps, in the study's order."""
        return [Results(plan=plan, by_key=self.by_key, provenance=self.provenance) for plan in self.plan.sweeps]

    def next_round(self) -> Round | None:
        """Return what is to be run next; None once the study is done. Failed runs have been tried and are left out."""
        return next_round(self.plan.sweeps, self.by_key, skip=failed_keys(self.by_key))

    def provenance_of_runs(self) -> list[Mapping[str, Any]]:
        """Return where and how the runs of this study were trained; runs without a record are left out."""
        if isinstance(self.by_key, RunTable):
            return self.by_key.origins_of(cell.results for cell in distinct_cells(self.plan.sweeps, self.by_key))
        return [self.provenance[key] for key in all_runs(self.plan.sweeps, self.by_key) if key in self.provenance]

    def errors(self) -> set[str]:
        """Return what the failed runs of this study raised, each once."""
        failed = [
            run
            for cell in distinct_cells(self.plan.sweeps, self.by_key)
            if (codes_of(cell.results) == CODES[Outcome.FAILED]).any()
            for run in cell.results
        ]
        return {run.error for run in failed if run is not None and run.error}

    def counts(self) -> dict[str, int]:
        """Return how many runs are done, by outcome, and how many are missing; a shared run counts once."""
        return _counts(self.plan.sweeps, self.by_key)

    def __repr__(self) -> str:
        sweeps = self.sweeps
        lines = [line for sweep in sweeps for line in sweep.lines()] if len(sweeps) < _MANY else []
        short = [f"  {s.plan.name!r} on task {s.plan.task!r}: {_counts_text(s.counts())}" for s in sweeps]
        return one_screen([f"StudyResults of {self.plan.name!r}: {_counts_text(self.counts())}", *(lines or short)])


def _counts(plans: Sequence[SweepPlan], results: Mapping[str, RunResult]) -> dict[str, int]:
    codes = sum(
        (np.bincount(codes_of(cell.results), minlength=4) for cell in distinct_cells(plans, results)), np.zeros(4)
    )
    return {**{str(outcome): int(codes[CODES[outcome]]) for outcome in Outcome}, "missing": int(codes[MISSING])}


# From so many sweeps on, a console shows a line for each.
_MANY = 3


def _counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{num:,} {name}" for name, num in counts.items() if num or name == "finished")


def _method(axes: GridAxes) -> str:
    return f"{axes.momentum:g}" if axes.optimizer is None else axes.optimizer.label


def _grid_row(grid: Grid) -> list[str]:
    axes, best, test = grid.axes, grid.optimum(), grid.at_optimum("test_metric")
    own = [f"{axes.batch_size:,}", str(axes.budget), _method(axes)]
    if best is None or test is None:
        return [*own, "-", "no optimum yet", "-", str(grid.num_runs)]
    low, high = best.interval
    found = [f"{best.effective_learning_rate:.4g}", f"[{low:.4g}, {high:.4g}]", f"{test.mean:.4g}"]
    return [*own, *found, str(grid.num_runs)]
