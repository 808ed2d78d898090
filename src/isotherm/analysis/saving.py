"""What it saves to estimate grids at a small budget: the paper's section 7."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from isotherm.core.budget import Budget
from isotherm.sweep.growth import point_of
from isotherm.sweep.protocol import Grid
from isotherm.sweep.results import Results


@dataclass(frozen=True, kw_only=True, slots=True)
class Saving:
    """Examples trained on: to estimate grids, at the full budgets, and those that the estimate spared.

    Spared are the learning rates of the estimated grids that were not needed at the full budget, with all their seeds.
    """

    estimate_at: Budget
    num_estimating: int
    num_full: int
    num_spared: int

    @property
    def fraction(self) -> float:
        """The examples saved, as a fraction of those that the sweep would have taken; negative if it took more."""
        return (self.num_spared - self.num_estimating) / (self.num_spared + self.num_full)

    def __str__(self) -> str:
        change = f"{abs(self.fraction):.0%} {'fewer' if self.fraction >= 0 else 'more'}"
        return (
            f"Grids were estimated at {self.estimate_at}: {self.num_estimating + self.num_full:,} examples, {change} "
            f"than with all their learning rates at the full budget ({self.num_spared + self.num_full:,})"
        )


def saving(results: Results) -> Saving | None:
    """Return what it saved to estimate the grids of a sweep; None where they were not, or runs are missing."""
    estimated = results.estimating_grids()
    if not estimated or results.counts()["missing"] or not all(grid.is_complete for grid in results.grids()):
        return None
    assert results.plan.estimate_at is not None
    by_cell = {(grid.axes.batch_size, grid.axes.method): grid for grid in estimated}
    spared = (_spared(by_cell[grid.axes.batch_size, grid.axes.method], grid) for grid in results.grids())
    return Saving(
        estimate_at=results.plan.estimate_at,
        num_estimating=_num_examples(estimated),
        num_full=_num_examples(results.grids()),
        num_spared=sum(spared),
    )


def _num_examples(grids: Iterable[Grid]) -> int:
    return sum(grid.num_runs * grid.num_steps * grid.axes.batch_size for grid in grids)


def _spared(estimated: Grid, full: Grid) -> int:
    known = {point_of(cell) for cell in full.all_cells}
    cells = itertools.filterfalse(lambda cell: point_of(cell) in known, estimated.all_cells)
    return sum(len(cell.results) for cell in cells) * full.num_steps * full.axes.batch_size
