"""Every grid of a study with its growth and optima; what is shown of it is made again only where its runs changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isotherm.analysis.series import TunedGrid, tuned_grid
from isotherm.core.records import RunResult
from isotherm.core.run_keys import cell_id
from isotherm.core.run_table import CellRuns, RunTable, codes_of, found_in
from isotherm.sweep.growth import Step, growth
from isotherm.sweep.plan import GridAxes, SweepPlan
from isotherm.sweep.protocol import Cell
from isotherm.sweep.results import StudyResults
from isotherm.sweep.rounds import levels


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WatchedGrid:
    """A grid and how it grew; `content` is for whoever shows it, `outcomes` tells whether it changed."""

    plan: SweepPlan
    axes: GridAxes
    steps: tuple[Step, ...]
    tuned: TunedGrid
    outcomes: tuple[bytes, ...]
    content: dict[str, Any] = field(default_factory=dict)
    _columns: dict[str, int] = field(default_factory=dict)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells, learning rates rising."""
        return self.tuned.grid.cells

    def column_of(self, cell: str) -> int | None:
        """Return the index of a cell by what identifies its runs; None where it is of another grid."""
        if not self._columns:
            columns = {one.effective_learning_rate: column for column, one in enumerate(self.cells)}
            for step in self.steps:
                for runs in step.cells:
                    self._columns[cell_id(runs.spec).hex()] = columns[runs.spec.effective_learning_rate]
        return self._columns.get(cell)


class GridBook:
    """The grids of a study by sweep and axes, kept from one reading to the next where nothing changed."""

    def __init__(self) -> None:
        self._grids: dict[tuple[SweepPlan, int, GridAxes], WatchedGrid] = {}

    def update(self, results: StudyResults) -> None:
        """Take in what there is now."""
        self._grids = {
            (plan, index, axes): self._grid(results, plan, index, axes)
            for index, plan in enumerate(results.plan.sweeps)
            for axes in _axes(plan, results)
        }

    def grids(self, index: int) -> list[WatchedGrid]:
        """Return the grids of a sweep that the results call for so far; those at which others are estimated too."""
        return [grid for (_, number, _), grid in self._grids.items() if number == index]

    def _grid(self, results: StudyResults, plan: SweepPlan, index: int, axes: GridAxes) -> WatchedGrid:
        known, table = self._grids.get((plan, index, axes)), results.by_key
        stands_alone = plan.estimate_at is None and plan.until is None
        if known is not None and stands_alone and known.outcomes == _outcomes(known.steps, table):
            if isinstance(table, RunTable):
                table.kept((plan, axes), lambda: known.steps)  # a run that is done never changes
            return known
        steps = tuple(growth(plan, axes, table))
        outcomes = _outcomes(steps)
        if known is not None and known.outcomes == outcomes:
            return known
        for runs in (runs for step in steps for runs in step.cells):
            if isinstance(runs.results, CellRuns):
                runs.results.records = runs.results.records.copy()  # not to keep all numbers of this reading
        tuned = tuned_grid(steps[-1].grid, plan.metric_direction)
        return WatchedGrid(plan=plan, axes=axes, steps=steps, tuned=tuned, outcomes=outcomes)


def _outcomes(steps: Sequence[Step], table: Mapping[str, RunResult] | None = None) -> tuple[bytes, ...]:
    """Return the outcomes of the runs of a grid, as they are in its steps or in other results."""
    found = (runs for step in steps for runs in step.cells)
    if table is None:
        return tuple(codes_of(runs.results).tobytes() for runs in found)
    return tuple(codes_of(found_in(table, runs.spec, runs.seeds)).tobytes() for runs in found)


def _axes(plan: SweepPlan, results: StudyResults) -> Iterator[GridAxes]:
    """Yield the grids of a sweep as far as they are reached; those at which others are estimated first."""
    for group in levels(plan, results.by_key):
        yield from group
