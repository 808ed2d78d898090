"""Two learning rates swept apart: where training starts and where its ten drops end (the paper's figure 3).

A grid of such a sweep has a row of cells for every learning rate at which training starts, one for each final one. Seen
from the side, the same cells have a row for every final learning rate: what holds along one axis holds along the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from isotherm.core.records import Direction
from isotherm.sweep.protocol import TRAIN_OBJECTIVE, Cell, Edge, Estimate, Grid, Optimum, best_of_row


@dataclass(frozen=True, kw_only=True, slots=True)
class PlaneOptimum:
    """The best pair of learning rates for one quantity.

    Both intervals hold what was tried and is within one standard deviation of the best mean at some value of the other
    learning rate.
    """

    cell: Cell
    initial: Optimum
    final: Optimum

    @property
    def effective_learning_rate(self) -> float:
        """Where training starts, ε_0."""
        return self.cell.effective_learning_rate

    @property
    def final_learning_rate(self) -> float:
        """Where the drops end, ε_f."""
        assert self.cell.final_learning_rate is not None
        return self.cell.final_learning_rate

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the first."""
        return self.initial.interval

    @property
    def final_interval(self) -> tuple[float, float]:
        """The interval of the final one."""
        return self.final.interval

    @property
    def edge(self) -> Edge:
        """Whether the first or its interval touches an end of what was tried."""
        return self.initial.edge

    @property
    def final_edge(self) -> Edge:
        """The same for the final one."""
        return self.final.edge

    @property
    def estimate(self) -> Estimate:
        """The quantity at the optimum, over the runs that choose."""
        return self.initial.estimate


def plane_optimum(grid: Grid, objective: str | None = None, direction: Direction | None = None) -> PlaneOptimum | None:
    """Return the best pair for a quantity, by default the one tuned on; None where no cell is stable."""
    assert grid.rows, "final learning rates were not swept"
    name = grid.objective if objective is None else objective
    way = grid.direction if direction is None else direction
    initial, final = grid.optimum(name, way), transposed(grid).optimum(name, way)
    if initial is None or final is None:
        return None
    return PlaneOptimum(cell=grid.for_quantity(name, way).cells[initial.index], initial=initial, final=final)


def plane_train_optimum(grid: Grid) -> PlaneOptimum | None:
    """Return the pair with the lowest final training loss plus L2 penalty."""
    return plane_optimum(grid, *TRAIN_OBJECTIVE)


def transposed(grid: Grid) -> Grid:
    """Return the grid seen from the side: rows of final learning rates, cells the best of each.

    Its cells have the two learning rates exchanged.
    """
    rows = grouped_rows(_exchanged(cell) for cell in grid.all_cells)
    best = tuple(best_of_row(row, grid.objective, grid.direction) for row in rows)
    return dataclasses.replace(grid, cells=best, rows=rows)


def grouped_rows(cells: Iterable[Cell]) -> tuple[tuple[Cell, ...], ...]:
    """Return the cells in rows of one learning rate, both learning rates rising."""
    rows: dict[float, list[Cell]] = {}
    for cell in sorted(cells, key=lambda c: (c.effective_learning_rate, c.final_learning_rate or 0.0)):
        rows.setdefault(cell.effective_learning_rate, []).append(cell)
    return tuple(map(tuple, rows.values()))


def _exchanged(cell: Cell) -> Cell:
    assert cell.final_learning_rate is not None
    return dataclasses.replace(
        cell, effective_learning_rate=cell.final_learning_rate, final_learning_rate=cell.effective_learning_rate
    )
