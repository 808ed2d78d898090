"""Why a claim cannot be tested at all, and what removes the obstacle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from isotherm.analysis.series import Series, TunedGrid
from isotherm.analysis.verdicts.remedies import (
    LEAST_SEEDS,
    Remedy,
    finer_grids,
    finish,
    first_seeds,
    more_batch_sizes,
    wider_grids,
)
from isotherm.sweep.protocol import Optimum

Found = Callable[[TunedGrid], Optimum | None]  # an optimum that a claim needs


@dataclass(frozen=True, kw_only=True, slots=True)
class Obstacle:
    """Why a claim cannot be tested, in words, and the remedy."""

    words: str
    remedy: Remedy


def obstacle(
    series: Sequence[Series], optima: Iterable[Found], *, heights: Found | None = None, least_sizes: int = 3
) -> Obstacle | None:
    """Return the first obstacle to testing a claim on these series; None if there is none.

    Args:
        series: whose grids the claim is about.
        optima: of a grid, which the claim needs.
        heights: the optimum of a grid whose height the claim compares.
        least_sizes: the fewest batch sizes.
    """
    wanted = list(optima)
    for s in series:
        found = _missing(s) or _few(s, least_sizes) or _at_end(s, wanted) or (heights and _at_cliff(s, heights))
        if found is not None:
            return found
    return None


def _missing(s: Series) -> Obstacle | None:
    sizes = [g.axes.batch_size for g in s.grids if not g.grid.is_complete]
    return Obstacle(words=f"runs are missing at B = {_listed(sizes)}", remedy=finish()) if sizes else None


def _few(s: Series, least_sizes: int) -> Obstacle | None:
    num_seeds, num_sizes = len(s.plan.seeds), len(s.grids)
    if num_seeds < LEAST_SEEDS:
        seeds = "one seed is" if num_seeds == 1 else f"{num_seeds} seeds are"
        return Obstacle(words=f"{seeds} not enough", remedy=first_seeds(s.plan))
    if num_sizes < least_sizes:
        sizes = "one batch size is" if num_sizes == 1 else f"{num_sizes} batch sizes are"
        return Obstacle(words=f"{sizes} not enough", remedy=more_batch_sizes(s.plan))
    return None


def _at_end(s: Series, optima: Sequence[Found]) -> Obstacle | None:
    sizes = [g.axes.batch_size for g in s.grids if any(_is_at_end(g, found(g)) for found in optima)]
    words = f"an optimum lies at the end of its grid at B = {_listed(sizes)}"
    return Obstacle(words=words, remedy=wider_grids(s.plan)) if sizes else None


def _at_cliff(s: Series, found: Found) -> Obstacle | None:
    """Return the obstacle of curves that may rise further, up to an edge that a coarse grid leaves open."""
    sizes = [g.axes.batch_size for g in s.grids if _is_at_cliff(g, found(g))]
    words = f"how far the metric rises up to the edge of stability is not resolved at B = {_listed(sizes)}"
    return Obstacle(words=words, remedy=finer_grids()) if sizes else None


def _is_at_cliff(tuned: TunedGrid, optimum: Optimum | None) -> bool:
    if optimum is None or optimum.lies_at_end_of(tuned.grid):
        return False
    below, above = (tuned.grid.cells[optimum.index + k] for k in (-1, 1))
    sides = ((optimum.below, below), (optimum.above, above))
    return any(optimum.is_open(side) and not cell.is_usable for side, cell in sides)


def _is_at_end(grid: TunedGrid, optimum: Optimum | None) -> bool:
    return optimum is None or optimum.lies_at_end_of(grid.grid)


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))
