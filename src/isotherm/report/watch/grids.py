"""Every grid of a study with its growth and optima, computed again only where its runs have changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from isotherm.analysis.series import TunedGrid, tuned_grid
from isotherm.core.records import Outcome, RunSpec
from isotherm.report.watch.source import Reading
from isotherm.sweep.growth import Step, growth
from isotherm.sweep.plan import GridAxes, SweepPlan
from isotherm.sweep.results import StudyResults
from isotherm.sweep.rounds import levels


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WatchedGrid:
    """A grid, how it grew, and every run that it calls for, by key; `content` is for whoever shows it."""

    plan: SweepPlan
    axes: GridAxes
    steps: tuple[Step, ...]
    tuned: TunedGrid
    specs: dict[str, RunSpec]
    content: dict[str, Any] = field(default_factory=dict)


class GridBook:
    """The grids of a study by sweep and axes, kept from one reading to the next."""

    def __init__(self) -> None:
        self._grids: dict[tuple[int, GridAxes], WatchedGrid] = {}
        self._groups: list[tuple[int, GridAxes]] = []
        self._results: StudyResults | None = None

    def update(self, reading: Reading) -> None:
        """Take in what has changed."""
        if reading.is_new_plan:
            self._grids.clear()
        else:
            self._forget(reading.changed)
        self._results = reading.results
        self._groups = list(_axes(reading.results))
        for index, axes in self._groups:
            self.grid(index, axes)

    def grid(self, index: int, axes: GridAxes) -> WatchedGrid:
        """Return the grid of a sweep, by its index in the study."""
        assert self._results is not None
        name = index, axes
        if name not in self._grids:
            plan, results = self._results.plan.sweeps[index], self._results.by_key
            steps = tuple(growth(plan, axes, results))
            specs = {key: spec for step in steps for key, spec in step.specs.items()}
            tuned = tuned_grid(steps[-1].grid, plan.metric_direction)
            self._grids[name] = WatchedGrid(plan=plan, axes=axes, steps=steps, tuned=tuned, specs=specs)
        return self._grids[name]

    def grids(self, index: int) -> list[WatchedGrid]:
        """Return the grids of a sweep that the results call for so far; those at which others are estimated too."""
        return [self._grids[name] for name in self._groups if name[0] == index]

    def steps(self, plan: SweepPlan, axes: GridAxes) -> tuple[Step, ...]:
        """Return the growth of a grid."""
        assert self._results is not None
        index = next(k for k, other in enumerate(self._results.plan.sweeps) if other is plan)
        return self.grid(index, axes).steps

    def specs(self) -> dict[str, RunSpec]:
        """Return every run that the study calls for so far, by key; one that sweeps share appears once."""
        return {key: spec for name in self._groups for key, spec in self._grids[name].specs.items()}

    def counts(self) -> dict[str, int]:
        """Return how many runs are done, by outcome, and how many are missing."""
        assert self._results is not None
        counts = dict.fromkeys([*map(str, Outcome), "missing"], 0)
        for key in self.specs():
            result = self._results.by_key.get(key)
            counts["missing" if result is None else str(result.outcome)] += 1
        return counts

    def _forget(self, changed: frozenset[str]) -> None:
        """Drop the grids that changed, with those of the same batch size and momentum: one may estimate the other."""
        touched = {
            (index, axes.batch_size, axes.momentum)
            for (index, axes), grid in self._grids.items()
            if not changed.isdisjoint(grid.specs)
        }
        self._grids = {
            (index, axes): grid
            for (index, axes), grid in self._grids.items()
            if (index, axes.batch_size, axes.momentum) not in touched
        }


def _axes(results: StudyResults) -> Iterator[tuple[int, GridAxes]]:
    """Yield the grids of every sweep as far as they are reached; those at which others are estimated first."""
    for index, plan in enumerate(results.plan.sweeps):
        if plan.estimate_at is None and plan.until is None:
            yield from ((index, axes) for axes in plan.grids())
            continue
        for group in levels(plan, results.by_key):
            yield from ((index, axes) for axes in group)
