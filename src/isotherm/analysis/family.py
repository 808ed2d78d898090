"""A curve family: the metric over learning rates at every batch size, fitted as peaks of one shape.

The shape is shared along the isotherm, or by small and by large batches where one shape does not fit all; every batch
size has an optimum and a height of its own. The fit gives draws from the posterior: where the optima lie between the
learning rates that were tried, and how high the curves are there. What the grids do not resolve is thus part of every
interval. docs/statistics.md says how well it is calibrated.

Shapes are drawn by an ensemble of Markov chains, with the optima integrated out numerically and the heights exactly.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isotherm.analysis import peak
from isotherm.analysis.broken_line import NUM_SHAPES as NUM_LINE_SHAPES
from isotherm.analysis.broken_line import LineDraws, OptimaTable, draw_lines, joined
from isotherm.analysis.chains import walk
from isotherm.analysis.curves import Curves, curves
from isotherm.analysis.peak_points import PointFits
from isotherm.core.processes import call_all
from isotherm.core.records import Direction
from isotherm.core.statistics import Floats, log_sum_exp
from isotherm.sweep.protocol import Grid

NUM_DRAWS = 4000

# The fewest batch sizes that a broken line is fitted to.
LEAST_FOR_LINE = 3


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ShapeDraws:
    """Shapes of the batch sizes that share one, shape (num_draws, 8), and log2 of those sizes, less their mean."""

    shapes: Floats
    octaves: Floats


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FamilyFit:
    """Draws from the posterior of a curve family; every row is one draw.

    `optima` are log2 of the optimal effective learning rates, `heights` the quantity there, in its own units; shapes
    (num_draws, num_grids). `lines` are broken lines through the optima; None below three batch sizes. `parts` are the
    shapes of all batch sizes, or of small and of large ones. `sign` is -1 where small values are good.
    """

    batch_sizes: tuple[int, ...]
    optima: Floats
    heights: Floats
    lines: LineDraws | None
    parts: tuple[ShapeDraws, ...]
    sign: int

    def values_at(self, log_rates: Floats) -> Floats:
        """Return draws of the quantity at other learning rates than the optima, in its own units.

        Away from an optimum real curves stray from the shape, so that the draws scatter more and more.

        Args:
            log_rates: log2 of effective learning rates, shape (num_draws, num_grids).
        """
        generator = np.random.default_rng(0)
        away, first, lost = log_rates - self.optima, 0, []
        for part in self.parts:
            columns = away[:, first : first + len(part.octaves)]
            losses, errors = peak.losses_away(part.shapes, part.octaves, columns)
            lost.append(losses + errors * generator.standard_normal(losses.shape))
            first += len(part.octaves)
        return np.asarray(self.heights - self.sign * np.concatenate(lost, axis=1))

    @property
    def slopes(self) -> Floats:
        """Of the rising parts, shape (num_draws,)."""
        return self._lines.slopes

    @property
    def kinks(self) -> Floats:
        """Log2 of the batch sizes where the rise ends; NaN where it does not."""
        return self._lines.kinks

    @property
    def plateaus(self) -> Floats:
        """Log2 of the optimal learning rate at the largest batch size."""
        return self._lines.plateaus

    @property
    def _lines(self) -> LineDraws:
        if self.lines is None:
            raise ValueError(f"a broken line needs three batch sizes or more, not {len(self.batch_sizes)}")
        return self.lines


def fit_family(
    grids: Sequence[Grid],
    *,
    objective: str | None = None,
    direction: Direction | None = None,
    num_draws: int = NUM_DRAWS,
) -> FamilyFit:
    """Return the fit of grids over rising batch sizes, each with an optimum; by default of the tuned quantity."""
    return fit_families([family_curves(grids, objective=objective, direction=direction, num_draws=num_draws)])[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class FamilyCurves:
    """The curves of a quantity over rising batch sizes, to be fitted; the label seeds the fit's generator.

    Fits of different series or quantities are drawn independently of each other. `sign` is -1 where small values are
    good.
    """

    curves: Curves
    batch_sizes: tuple[int, ...]
    sign: int
    label: str
    num_draws: int


def family_curves(
    grids: Sequence[Grid],
    *,
    objective: str | None = None,
    direction: Direction | None = None,
    num_draws: int = NUM_DRAWS,
) -> FamilyCurves:
    """Return the curves of grids over rising batch sizes, each with an optimum; by default of the tuned quantity."""
    first = grids[0]
    name = first.objective if objective is None else objective
    way = first.direction if direction is None else direction
    sizes = tuple(grid.axes.batch_size for grid in grids)
    method = first.axes.momentum if first.axes.optimizer is None else first.axes.optimizer.label
    label = f"{name} {first.axes.budget} {method} {sizes}"
    found = curves(grids, objective=name, direction=way)
    return FamilyCurves(curves=found, batch_sizes=sizes, sign=way.sign, label=label, num_draws=num_draws)


_MOST_KEPT = 64
_kept: dict[FamilyCurves, FamilyFit] = {}  # a study is often analysed more than once


def fit_families(families: Sequence[FamilyCurves]) -> list[FamilyFit]:
    """Return the fits of families, each of its own; on several cores they are made at the same time."""
    missing = [family for family in dict.fromkeys(families) if family not in _kept]
    found = {family: _kept[family] for family in families if family in _kept}
    made = call_all([functools.partial(_fit, family) for family in missing])
    found |= zip(missing, made, strict=True)
    _kept.update(found)
    for oldest in list(_kept)[: max(0, len(_kept) - _MOST_KEPT)]:
        del _kept[oldest]
    return [found[family] for family in families]


def _fit(family: FamilyCurves) -> FamilyFit:
    batch_sizes, num_draws = family.batch_sizes, family.num_draws
    generator = np.random.default_rng(zlib.crc32(family.label.encode()))
    parts = _parts(family.curves, generator, num_draws)
    places = [_places(window, shapes, generator) for window, shapes in parts]
    optima, heights = (np.concatenate(columns, axis=1) for columns in zip(*places, strict=True))
    lines = None
    if len(batch_sizes) >= LEAST_FOR_LINE:
        table = joined([window.table(shapes[:NUM_LINE_SHAPES]) for window, shapes in parts])
        lines = draw_lines(table, np.log2(batch_sizes), optima, generator, num_draws=num_draws)
    drawn = tuple(ShapeDraws(shapes=shapes, octaves=window.curves.octaves) for window, shapes in parts)
    return FamilyFit(
        batch_sizes=batch_sizes,
        optima=optima,
        heights=family.sign * heights,
        lines=lines,
        parts=drawn,
        sign=family.sign,
    )


# Small and large batches have shapes of their own where these fit better by this much: log likelihood, on average over
# draws. Where one shape is true, two fit worse by 1.8 in the median of 90 simulated sweeps, and at most better by 2.2;
# with two or three learning rates that do not diverge, which know no shape by themselves, by up to 2.9.
LEAST_GAIN = 3.0
LEAST_APART = 6  # batch sizes


def _parts(found: Curves, generator: np.random.Generator, num_draws: int) -> list[tuple[_Window, Floats]]:
    """Return shapes with the curves that share them: all, or small and large batches where one shape does not fit."""
    together = _Shapes(_Window(found), generator)
    parts = [together]
    if found.num_grids >= LEAST_APART:
        middle = found.num_grids // 2
        halves = [_Shapes(_Window(found.rows(*ends)), generator) for ends in ((0, middle), (middle, found.num_grids))]
        gain = sum(half.fit() for half in halves) - together.fit()
        parts = halves if gain > LEAST_GAIN else [together]
    return [(part.window, part.draw(num_draws)) for part in parts]


# First importance sampling finds where the shapes lie, in a few rounds; then chains draw them.
NUM_PROPOSALS, NUM_SHAPES = 10, 300
NUM_CHAINS, NUM_COMPARED, NUM_ROUNDS = 60, 20, 100  # rounds to compare fits, and to draw from them
BLOCK, MOST_BLOCKS, SETTLED = 40, 25, 0.2  # rounds, and by how much their mean log density still grows
NUM_POINTS, NUM_FINAL_POINTS = 24, 64  # over which an optimum is integrated
NEGLIGIBLE = 1e-5  # of the largest posterior density
LEAST_EFFECTIVE = 40.0  # weights are flattened until this many shapes count


class _Window:
    """Where the optima may lie: a range per batch size, narrowed as the fit proceeds."""

    def __init__(self, found: Curves) -> None:
        self.curves = found
        self._low, self._high = found.low, found.high
        self._fits: dict[int, PointFits] = {}  # by number of points, until the window is narrowed

    def points(self, num_points: int) -> Floats:
        """Return learning rates in the middle of equal parts, shape (num_points, num_grids)."""
        parts = (np.arange(num_points) + 0.5) / num_points
        return np.asarray(self._low + (self._high - self._low) * parts[:, None])

    def log_areas(self, shapes: Floats, num_points: int) -> Floats:
        """Return log likelihoods times the width of a part, shape (num_shapes, num_points, num_grids)."""
        fits = self._fits.get(num_points)
        if fits is None:
            fits = self._fits[num_points] = PointFits(self.curves, self.points(num_points))
        return fits.log_likelihoods(shapes) + np.log(self.width(num_points))

    def width(self, num_points: int) -> Floats:
        """Return the width of a part, shape (num_grids,)."""
        return np.asarray((self._high - self._low) / num_points)

    def table(self, shapes: Floats) -> OptimaTable:
        """Return where the optima of shapes lie."""
        log_areas = self.log_areas(shapes, NUM_FINAL_POINTS)
        areas = np.exp(log_areas - log_sum_exp(log_areas, axis=1)[:, None])
        return OptimaTable(points=self.points(NUM_FINAL_POINTS), areas=areas)

    def narrow(self, log_areas: Floats, weights: Floats) -> None:
        """Leave out where, by the weighted shapes, no optimum lies."""
        num_points = log_areas.shape[1]
        density = np.einsum("s,spg->pg", weights, np.exp(log_areas - log_sum_exp(log_areas, axis=1)[:, None]))
        likely = density > NEGLIGIBLE * density.max(axis=0)
        first = np.argmax(likely, axis=0) - 1
        last = num_points - np.argmax(likely[::-1], axis=0) + 1
        low, width = self._low, self.width(num_points)
        self._low = np.maximum(self.curves.low, low + first * width)
        self._high = np.minimum(self.curves.high, low + last * width)
        self._fits.clear()


class _Shapes:
    """Draws shapes from their posterior, by chains that have settled there; the window is narrowed on the way."""

    def __init__(self, window: _Window, generator: np.random.Generator) -> None:
        found = self._curves = window.curves
        self.window = window
        self._generator = generator
        most = max(found.spread, found.error) / min(1.0, found.step) ** 2
        self._limits_a = (float(np.log(0.02 * found.error)), float(np.log(8.0 * most)))
        self._freedom = max(1.0, found.freedom)
        self._chains = self._settled(self._starts(generator), generator)

    def fit(self) -> float:
        """Return the mean log likelihood of drawn shapes, with optima and heights integrated out."""
        log_areas = self.window.log_areas(self._walk(NUM_COMPARED), NUM_POINTS)
        return float(np.mean(log_sum_exp(log_areas, axis=1).sum(axis=-1)))

    def draw(self, num_draws: int) -> Floats:
        """Return shapes, shape (num_draws, 8)."""
        drawn = self._walk(NUM_ROUNDS)
        return np.asarray(drawn[self._generator.choice(len(drawn), size=num_draws)])

    def _walk(self, num_rounds: int) -> Floats:
        return walk(self._log_density, self._chains, self._generator, num_rounds=num_rounds, num_ignored=0)

    def _settled(self, shapes: Floats, generator: np.random.Generator) -> Floats:
        """Return where chains are once their density no longer grows, and narrow the window on the way."""
        equal = np.full(len(shapes), 1 / len(shapes))
        reached, num_settled = -np.inf, 0
        for _ in range(MOST_BLOCKS):
            shapes = walk(self._log_density, shapes, generator, num_rounds=BLOCK, num_ignored=BLOCK - 1)
            self.window.narrow(self.window.log_areas(shapes, NUM_POINTS), equal)
            density = float(np.mean(self._log_density(shapes)))
            num_settled = num_settled + 1 if density < reached + SETTLED else 0
            if num_settled == 2:
                break
            reached = max(reached, density)
        return shapes

    def _starts(self, generator: np.random.Generator) -> Floats:
        """Return shapes near their posterior, by adaptive importance sampling, shape (num_chains, 8)."""
        shapes = peak.rough_shapes(self._curves, generator, 3 * NUM_SHAPES)
        log_areas = self.window.log_areas(shapes, 3 * NUM_POINTS)
        weights = log_sum_exp(log_areas, axis=1).sum(axis=-1)
        for _ in range(NUM_PROPOSALS):
            self.window.narrow(log_areas, _flattened(weights))
            proposal = _Proposal(shapes, _flattened(weights))
            shapes = proposal.draw(generator, NUM_SHAPES)
            shapes = shapes[np.isfinite(self.log_prior(shapes))]
            log_areas = self.window.log_areas(shapes, NUM_POINTS)
            weights = (
                log_sum_exp(log_areas, axis=1).sum(axis=-1) + self.log_prior(shapes) - proposal.log_density(shapes)
            )
        chances = _flattened(weights)
        return np.asarray(shapes[generator.choice(len(shapes), size=NUM_CHAINS, p=chances, replace=False)])

    def log_prior(self, shapes: Floats) -> Floats:
        """Return the logarithm of the prior density."""
        return peak.log_prior(shapes, freedom=self._freedom, limits_a=self._limits_a)

    def _log_density(self, shapes: Floats) -> Floats:
        """Return log posterior densities, with all optima integrated out."""
        found = self.log_prior(shapes)
        inside = np.isfinite(found)
        found[inside] += log_sum_exp(self.window.log_areas(shapes[inside], NUM_POINTS), axis=1).sum(axis=-1)
        return found


class _Proposal:
    """A Student-t distribution of shapes with the moments of weighted ones."""

    FREEDOM = 5

    def __init__(self, shapes: Floats, weights: Floats) -> None:
        self._centre = weights @ shapes
        away = shapes - self._centre
        covariance = (weights[:, None] * away).T @ away
        self._root = np.linalg.cholesky(1.3 * covariance + 1e-6 * np.eye(len(covariance)))

    def draw(self, generator: np.random.Generator, num_draws: int) -> Floats:
        """Return shapes, shape (num_draws, 8)."""
        normal = generator.standard_normal((num_draws, len(self._centre)))
        tails = np.sqrt(self.FREEDOM / generator.chisquare(self.FREEDOM, size=(num_draws, 1)))
        return np.asarray(self._centre + tails * normal @ self._root.T)

    def log_density(self, shapes: Floats) -> Floats:
        """Return the logarithm of the density, up to a constant."""
        standard = np.linalg.solve(self._root, (shapes - self._centre).T)
        num_parameters = len(self._centre)
        reached = np.log1p(np.sum(standard**2, axis=0) / self.FREEDOM)
        return np.asarray(-0.5 * (self.FREEDOM + num_parameters) * reached)


def _flattened(log_weights: Floats) -> Floats:
    """Return normalised weights, flattened until enough of them count."""
    power = 1.0
    while True:
        weights = np.exp(power * (log_weights - np.max(log_weights)))
        weights /= weights.sum()
        if 1.0 / np.sum(weights**2) >= LEAST_EFFECTIVE or power < 1e-4:
            return np.asarray(weights)
        power *= 0.7


def _places(window: _Window, shapes: Floats, generator: np.random.Generator) -> tuple[Floats, Floats]:
    """Return optima and heights drawn for every shape, shapes (num_shapes, num_grids)."""
    different, inverse = np.unique(shapes, axis=0, return_inverse=True)
    log_areas = window.log_areas(different, NUM_FINAL_POINTS)
    chances = np.exp(log_areas - log_areas.max(axis=1, keepdims=True)).cumsum(axis=1)
    chances /= chances[:, -1:]
    num_grids = window.curves.num_grids
    index = np.sum(chances[inverse.ravel()] < generator.random((len(shapes), 1, num_grids)), axis=1)
    within = (generator.random(index.shape) - 0.5) * window.width(NUM_FINAL_POINTS)
    optima = window.points(NUM_FINAL_POINTS)[index, np.arange(num_grids)] + within
    fitted = peak.fit_heights(window.curves, shapes, optima)
    variances = fitted.height_variances + _common_variances(window.curves, generator, len(shapes))
    return optima, fitted.heights + np.sqrt(variances) * generator.standard_normal(optima.shape)


def _common_variances(found: Curves, generator: np.random.Generator, num_draws: int) -> Floats:
    """Return draws of the variance of what seeds do at every learning rate alike, shape (num_draws, num_grids)."""
    freedom = max(1.0, found.common_freedom)
    return found.common_variance * (freedom / generator.chisquare(freedom, size=(num_draws, 1)))
