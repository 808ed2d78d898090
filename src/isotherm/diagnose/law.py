"""One law for all short grids: the best learning rate as a power of batch size and of training length.

    log2 ε_eff* = level + slope · b + exponent · l + bend · b · l,   b = log2(B / B_0),   l = log2(L / L_0)

The bend lets the slope change with the length up to the longest runs, and no further: short runs that hardly move want
ε ∝ B whatever holds later. Every grid is a curve of the judged quantity against log ε_eff with its peak there. Curves share their shape, an
asymmetric parabola, up to a height of their own and a scale per length; so few seeds at each learning rate suffice.
Pure NumPy and SciPy; logarithms are to base 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from isotherm.core.statistics import Floats, Interval, percentile_limits

NUM_DRAWS = 120
# Octaves to both sides of a peak that its shape is fitted to.
WINDOW = 2.25
# Priors, mean and standard deviation: the exponent of the length is about -1 where a network overfits and near zero
# where it does not; the slope is 1 on an isotherm.
EXPONENT_PRIOR = (-0.4, 0.4)
SLOPE_PRIOR = (1.0, 0.4)
_BEND_PRIOR = (0.0, 0.15)
_SKEW_PRIOR = (0.0, 0.6)
_LEVEL_SPREAD = 3.0
_SCALES = (1.0, 0.3, 0.3, 0.1, 0.3)
# In octaves: no peak is known better than this, as no network's curve has exactly the assumed shape.
LEAST_ERROR = 0.25
# Further error per octave between the longest short runs and the intended length, as a power law may bend.
ERROR_PER_OCTAVE = 0.3
# A range of learning rates that cannot be told apart is a plateau if it is at least this wide, in octaves.
PLATEAU = 4.0
# What two further parameters have to gain, as a logarithm of odds.
_OCCAM = 2.0
# Standard errors by which two means must differ to be told apart, and the part of the fall to the lowest learning rate.
_APART, _LEVEL = 2.5, 0.05


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Curve:
    """One grid: the judged quantity, larger is better, against the effective learning rate.

    Args:
        log_size: of the batch.
        log_length: of the training, in examples.
        log_rates: rising, shape (num_rates,).
        means: over seeds, minus infinity where training failed.
        errors: standard errors of the means relative to each other.
    """

    log_size: float
    log_length: float
    log_rates: Floats
    means: Floats
    errors: Floats

    @property
    def best(self) -> float:
        """The middle of the learning rates tied for the highest mean."""
        tied = self.means >= self.means.max()
        return float(self.log_rates[tied].mean())

    @property
    def range(self) -> tuple[float, float]:
        """The learning rates around the best that cannot be told from it."""
        top = int(np.argmax(self.means))
        with np.errstate(invalid="ignore"):
            close = self.means >= self.means[top] - _APART * np.hypot(self.errors, self.errors[top])
        close &= np.isfinite(self.means)
        # However noisy: a plateau's value is that of the best, seen against how far the lowest learning rate falls.
        close &= self.means >= self.means[top] - _LEVEL * max(0.0, self.means[top] - self.means[0])
        low = high = top
        while low > 0 and close[low - 1]:
            low -= 1
        while high < len(close) - 1 and close[high + 1]:
            high += 1
        return float(self.log_rates[low]), float(self.log_rates[high])

    @property
    def is_bracketed(self) -> bool:
        """Whether both ends are clearly worse than the best."""
        low, high = self.range
        return low > self.log_rates[0] and high < self.log_rates[-1]


def curve(*, batch_size: int, num_examples: float, rates: Sequence[float], scores_RS: Floats) -> Curve:
    """Return a curve from scores by learning rate and seed; minus infinity where a run failed.

    A seed's part that is common to all learning rates cancels in their comparison and does not count as error.
    """
    usable = np.isfinite(scores_RS).all(axis=1)
    means = np.full(len(rates), -np.inf)
    means[usable] = scores_RS[usable].mean(axis=1)
    return Curve(
        log_size=math.log2(batch_size),
        log_length=math.log2(num_examples),
        log_rates=np.log2(np.asarray(rates, dtype=np.float64)),
        means=means,
        errors=_errors(scores_RS, usable),
    )


def _errors(scores_RS: Floats, usable: Floats) -> Floats:
    """Return standard errors of the means, each smoothed with those of the best learning rate and its neighbours."""
    num_rates, num_seeds = scores_RS.shape
    errors = np.zeros(num_rates)
    index = np.flatnonzero(usable)
    if len(index) == 0:
        return errors
    means = np.array([scores_RS[k].mean() for k in index])
    near = index[np.argsort(-means)[:5]]
    centre = scores_RS[near] - scores_RS[near].mean(axis=1, keepdims=True)
    common_S = centre.mean(axis=0)
    freedom = max(1, num_seeds - 1)
    pooled = float(((centre - common_S) ** 2).sum() / (freedom * max(1, len(near) - 1)))
    for k in index:
        own = float(((scores_RS[k] - scores_RS[k].mean() - common_S) ** 2).sum())
        errors[k] = math.sqrt((own + 4 * pooled) / (freedom + 4) / num_seeds)
    spread = float(means.max() - np.sort(means)[len(means) // 2])
    return np.maximum(errors, 0.01 * spread + 1e-9 * float(np.abs(means).max()))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Law:
    """The best learning rate at any batch size and length, with its uncertainty.

    Args:
        log_size: B_0, the middle of the batch sizes.
        log_length: L_0, the middle of the lengths.
        longest: of the lengths.
        estimate: level, slope, exponent and bend.
        draws: the same, shape (num_draws, 4).
        slope: of log ε_eff* against log B of the longest runs; None with one batch size.
        exponent: of log ε_eff* against log L; None with one length.
        has_unit_slope: whether ε_eff* ∝ B is used: the slope's interval includes 1 and no other slope is more
            probable, or nothing is known about it.
        batch_sizes: those behind it.
        drop: how much the judged quantity falls on either side of the peak, by distance in octaves; None on a plateau.
    """

    log_size: float
    log_length: float
    longest: float
    estimate: Floats
    draws: Floats
    slope: Interval | None
    exponent: Interval | None
    has_unit_slope: bool
    batch_sizes: tuple[int, ...]
    drop: Shape | None

    def at(self, batch_size: float, num_examples: float) -> Interval:
        """Return the best effective learning rate."""
        away = self._away(math.log2(batch_size), math.log2(num_examples))
        beyond = max(0.0, math.log2(num_examples) - self.longest)
        centre = float(self.estimate @ away)
        draws = self.draws @ away
        low, high = (float(v) for v in percentile_limits(draws))
        further = 2 * math.hypot(LEAST_ERROR, ERROR_PER_OCTAVE * beyond)
        below = math.hypot(max(0.0, centre - low), further)
        above = math.hypot(max(0.0, high - centre), further)
        return Interval(estimate=2.0**centre, low=2.0 ** (centre - below), high=2.0 ** (centre + above))

    def _away(self, log_size: float, log_length: float) -> Floats:
        return _away(log_size - self.log_size, log_length - self.log_length, self.longest - self.log_length)


def _away(b: float, l: float, longest: float = math.inf) -> Floats:
    """Return what level, slope, exponent and bend are multiplied by."""
    return np.array([1.0, b, l, b * min(l, longest)])


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How a curve falls to both sides of its peak: scale · (e^{k u} - k u - 1) / k², u octaves away, k the skew."""

    scale: float
    skew: float

    def at(self, octaves: float) -> float:
        """Return the drop this many octaves from the peak."""
        return self.scale * float(_shape(np.array([octaves]), self.skew)[0])


def _shape(u: Floats, skew: float) -> Floats:
    z = np.clip(skew * u, -30.0, 30.0)
    small = np.abs(z) < 1e-2
    exact = (np.exp(z) - z - 1) / np.where(small, 1.0, z) ** 2
    return np.asarray(u**2 * np.where(small, 0.5 + z / 6 + z**2 / 24, exact))


def fit_law(curves: Sequence[Curve], *, ceiling: float = math.inf, seed: int = 0) -> Law | None:
    """Return the law of the peaks below a ceiling; None if none is.

    Args:
        curves: of all batch sizes and lengths.
        ceiling: the effective learning rate that curvature allows; peaks near or above it do not follow the law.
        seed: of the resampling.
    """
    top = math.log2(ceiling) - 0.5 if math.isfinite(ceiling) else math.inf
    usable = [c for c in curves if np.isfinite(c.means).sum() >= 3 and c.best < top]
    if not usable:
        return None
    plateaus = [c for c in usable if c.range[1] - c.range[0] >= PLATEAU]
    if 2 * len(plateaus) > len(usable):
        return _plateau_law(usable, seed=seed)
    unit = _Fit(usable, unit_slope=True).fitted()
    free = _Fit(usable, unit_slope=False).fitted() if len({c.log_size for c in usable}) > 1 else None
    return _law(usable, unit, free, seed=seed)


def common_peaks(curves: Sequence[Curve]) -> list[float]:
    """Return where the peaks of coarse grids are, near one isotherm: seeds are few, and one grid alone may mislead."""
    levels = sorted({x - c.log_size for c in curves for x in c.log_rates})
    total = [sum(_height(c, level + c.log_size) for c in curves) for level in levels]
    level = float(np.mean([v for v, t in zip(levels, total, strict=True) if t >= max(total) - 1e-9]))
    found = []
    for c in curves:
        near = np.where(np.abs(c.log_rates - level - c.log_size) <= WINDOW, c.means, -np.inf)
        tied = near >= near.max()
        found.append(float(c.log_rates[tied].mean()) if np.isfinite(near.max()) else level + c.log_size)
    return found


def _height(c: Curve, log_rate: float) -> float:
    """Return a curve's value between its learning rates: 0 at the best, -1 where it is as bad as at the lowest or fails."""
    fall = max(float(c.means.max() - c.means[0]), 1e-12)
    heights = np.maximum(-1.0, (np.nan_to_num(c.means, neginf=-1e300) - c.means.max()) / fall)
    return float(np.interp(log_rate, c.log_rates, heights, left=-1.0, right=-1.0))


def fitted_peak(curves: Sequence[Curve], *, batch_size: int, num_examples: float) -> float:
    """Return the expected best effective learning rate at a batch size and length, without its uncertainty."""
    usable = [c for c in curves if np.isfinite(c.means).sum() >= 3]
    plateaus = [c for c in usable if c.range[1] - c.range[0] >= PLATEAU]
    if 2 * len(plateaus) >= len(usable):
        usable = usable or list(curves)
        middles = [sum(c.range) / 2 - c.log_size for c in usable]
        return float(2.0 ** (np.mean(middles) + math.log2(batch_size)))
    fit = _Fit(usable, unit_slope=len({c.log_size for c in usable}) < 2).fitted()
    longest = max(c.log_length for c in usable) - fit.log_length
    away = _away(math.log2(batch_size) - fit.log_size, math.log2(num_examples) - fit.log_length, longest)
    return float(2.0 ** (fit.law @ away))


def _law(curves: Sequence[Curve], unit: _Fit, free: _Fit | None, *, seed: int) -> Law:
    """Return the law with slope 1, unless the measured slope's interval excludes it or another one is more probable."""
    rng = np.random.default_rng(seed)
    chosen, slope, draws = unit, None, unit.draws(rng)
    if free is not None:
        of_free = free.draws(rng)
        beyond = max(c.log_length for c in curves) - free.log_length
        estimate = float(free.law[1] + beyond * free.law[3])
        slopes = of_free[:, 1] + beyond * of_free[:, 3]
        low, high = (float(v) for v in percentile_limits(slopes))
        slope = Interval(estimate=estimate, low=min(low, estimate), high=max(high, estimate))
        probability = _probability_of_other_slope(unit, free)
        excluded = not slope.low <= 1.0 <= slope.high
        chosen = free if excluded or probability > 0.5 else unit
        if excluded:
            draws = of_free
        else:
            draws = np.where(rng.random((len(draws), 1)) < probability, of_free, draws)
    exponent = None
    if len({c.log_length for c in curves}) > 1:
        low, high = (float(v) for v in percentile_limits(draws[:, 2]))
        middle = float(chosen.law[2])
        exponent = Interval(estimate=middle, low=min(low, middle), high=max(high, middle))
    return Law(
        log_size=chosen.log_size,
        log_length=chosen.log_length,
        longest=max(c.log_length for c in curves),
        estimate=chosen.law,
        draws=draws,
        slope=slope,
        exponent=exponent,
        has_unit_slope=chosen is unit,
        batch_sizes=tuple(sorted({round(2**c.log_size) for c in curves})),
        drop=chosen.shape,
    )


def _probability_of_other_slope(unit: _Fit, free: _Fit) -> float:
    """Return the probability that the slope is not 1, with even odds beforehand; a bend costs two more parameters."""
    gain = (unit.misfit - free.misfit) / free.inflation**2
    return 1.0 / (1.0 + math.exp(-min(50.0, max(-50.0, gain / 2 - _OCCAM))))


def _plateau_law(curves: Sequence[Curve], *, seed: int) -> Law:
    """Return the law where learning rates cannot be told apart: the middle of the range, and all of it as interval."""
    rng = np.random.default_rng(seed)
    log_size = float(np.mean([c.log_size for c in curves]))
    log_length = float(np.mean([c.log_length for c in curves]))
    ends = np.array([np.array(c.range) - (c.log_size - log_size) for c in curves])
    low, high = ends.mean(axis=0)
    levels = rng.uniform(low, high, size=NUM_DRAWS)
    nothing = np.zeros(NUM_DRAWS)
    return Law(
        log_size=log_size,
        log_length=log_length,
        longest=max(c.log_length for c in curves),
        estimate=np.array([(low + high) / 2, 1.0, 0.0, 0.0]),
        draws=np.stack([levels, np.ones(NUM_DRAWS), nothing, nothing], axis=1),
        slope=None,
        exponent=None,
        has_unit_slope=True,
        batch_sizes=tuple(sorted({round(2**c.log_size) for c in curves})),
        drop=None,
    )


class _Fit:
    """Least squares of all curves: law (level, slope, exponent, bend), skew, a scale per length, a height per curve."""

    def __init__(self, curves: Sequence[Curve], *, unit_slope: bool) -> None:
        self._curves = [c for c in curves if np.isfinite(c.means).sum() >= 3]
        self._unit_slope = unit_slope
        self.log_size = float(np.mean([c.log_size for c in self._curves]))
        self.log_length = float(np.mean([c.log_length for c in self._curves]))
        self._away_G4 = np.array(
            [_away(c.log_size - self.log_size, c.log_length - self.log_length) for c in self._curves]
        )
        lengths = sorted({c.log_length for c in self._curves})
        self._length_G = np.array([lengths.index(c.log_length) for c in self._curves])
        self._num_lengths = len(lengths)
        peaks = np.array([c.best for c in self._curves])
        self._start = float(np.median(peaks - self._away_G4[:, 1]))
        self.law = np.array([self._start, 1.0, 0.0 if self._num_lengths > 1 else EXPONENT_PRIOR[0], 0.0])
        self._prior_means = np.array([self._start, SLOPE_PRIOR[0], EXPONENT_PRIOR[0], _BEND_PRIOR[0], _SKEW_PRIOR[0]])
        self._spreads = np.array([_LEVEL_SPREAD, SLOPE_PRIOR[1], EXPONENT_PRIOR[1], _BEND_PRIOR[1], _SKEW_PRIOR[1]])
        self._skew = 0.0
        self.inflation, self.misfit = 1.0, 0.0

    @property
    def shape(self) -> Shape:
        """The shape of the curves at the longest length."""
        return Shape(scale=float(self._scales[-1]), skew=self._skew)

    def fitted(self) -> _Fit:
        """Fit with windows around the peaks, which move with the fit."""
        for _ in range(4):
            self._select()
            self._solve()
        return self

    def _select(self) -> None:
        """Choose the points around every peak; at least the three best of a curve."""
        peaks = self._away_G4 @ self.law
        points = []
        for g, c in enumerate(self._curves):
            near = (np.abs(c.log_rates - peaks[g]) <= WINDOW) & np.isfinite(c.means)
            if near.sum() < 3:
                near = np.zeros(len(c.means), dtype=bool)
                near[np.argsort(-c.means)[:3]] = True
            points += [(g, x, y, e) for x, y, e in zip(c.log_rates[near], c.means[near], c.errors[near], strict=True)]
        self._grid, self._x, self._values, self._errors = (np.array(part) for part in zip(*points, strict=True))
        self._grid = self._grid.astype(int)
        # Far from its peak a curve need not have the shape; such points count for less.
        self._sigma = self._errors + 0.1 * self._size()

    def _size(self) -> Floats:
        """Return how far each point lies below the highest of its curve."""
        tops = np.array([self._values[self._grid == g].max() for g in range(len(self._curves))])
        return np.asarray(tops[self._grid] - self._values)

    def _parameters(self) -> Floats:
        return np.array([*self.law, self._skew])

    def _solve(self) -> None:
        values = self._values
        found = optimize.least_squares(
            self._residuals, self._parameters(), args=(values, 1.0, 0.0), x_scale=_SCALES, max_nfev=60
        )
        self.law, self._skew = self._unpacked(found.x)
        freedom = max(1, len(values) - len(self._curves) - self._num_lengths - 5)
        chi = float(np.sum(found.fun[: len(values)] ** 2))
        self.inflation, self.misfit = math.sqrt(max(1.0, chi / freedom)), float(2 * found.cost)
        self._scales = self._linear(found.x, values)[1]

    def _unpacked(self, theta: Floats) -> tuple[Floats, float]:
        law = np.array(theta[:4])
        if self._unit_slope:
            law[1], law[3] = 1.0, 0.0
        return law, float(np.clip(theta[4], -2.0, 2.0))

    def _linear(self, theta: Floats, values: Floats) -> tuple[Floats, Floats]:
        """Return fitted values, and the scale of every length, for given peaks and skew."""
        law, skew = self._unpacked(theta)
        drops = _shape(self._x - (self._away_G4 @ law)[self._grid], skew)
        weights = self._sigma**-2
        num = len(self._curves)
        totals = np.bincount(self._grid, weights, num)

        def centred(v: Floats) -> Floats:
            return np.asarray(v - (np.bincount(self._grid, weights * v, num) / totals)[self._grid])

        d, y = centred(drops), centred(values)
        length = self._length_G[self._grid]
        top = np.bincount(length, weights * d * y, self._num_lengths)
        bottom = np.bincount(length, weights * d * d, self._num_lengths)
        scales = np.maximum(0.0, -top / np.maximum(bottom, 1e-300))
        return y + scales[length] * d, scales

    def _residuals(self, theta: Floats, values: Floats, inflation: float, shift: Floats | float) -> Floats:
        misfit, _ = self._linear(theta, values)
        return np.concatenate([misfit / (inflation * self._sigma), (theta - self._prior_means - shift) / self._spreads])

    def draws(self, rng: np.random.Generator) -> Floats:
        """Return laws fitted to values redrawn around the fitted curves, and priors redrawn too: (NUM_DRAWS, 4)."""
        theta = self._parameters()
        misfit, _ = self._linear(theta, self._values)
        fitted = self._values - misfit
        found = np.empty((NUM_DRAWS, 4))
        for k in range(NUM_DRAWS):
            values = fitted + self.inflation * self._sigma * rng.normal(size=len(fitted))
            shift = self._spreads * rng.normal(size=len(theta))
            solved = optimize.least_squares(
                self._residuals, theta, args=(values, self.inflation, shift), x_scale=_SCALES, max_nfev=15
            )
            found[k] = self._unpacked(solved.x)[0]
        return self._blurred(found, rng)

    def _blurred(self, found: Floats, rng: np.random.Generator) -> Floats:
        """Return laws with the error of a peak at both ends of the batch sizes and of the lengths."""
        for column in (1, 2):
            span = float(np.ptp(self._away_G4[:, column]))
            if span > 0 and not (column == 1 and self._unit_slope):
                found[:, column] += rng.normal(scale=LEAST_ERROR / span, size=len(found))
        return found
