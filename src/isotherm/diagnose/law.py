"""One law for all short grids: the best learning rate as a power of batch size and of training length.

The fit is that of `peak_fit`; here it becomes a statement about any batch size and length, with its uncertainty.
Logarithms are to base 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isotherm.core.statistics import Floats, Interval, percentile_limits
from isotherm.diagnose.curves import Curve, grouped, have_plateau, pooled
from isotherm.diagnose.peak_fit import LEAST_ERROR, NUM_DRAWS, PeakFit, Shape, distances

# Further error per octave between the longest short runs and the intended length, as a power law may bend.
ERROR_PER_OCTAVE = 0.3
# What two further parameters have to gain, as a logarithm of odds.
_OCCAM = 4.0
# In octaves: peaks closer than this to the ceiling do not follow the law.
_NEAR_CEILING = 0.5


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Law:
    """The best learning rate at any batch size and length, with its uncertainty.

    Args:
        log_size: B_0, the middle of the batch sizes.
        log_length: L_0, the middle of the lengths.
        longest: of the lengths.
        estimate: level, slope, exponent, bend and curve, as `peak_fit` defines them.
        draws: the same, shape (num_draws, 5).
        slope: of log ε_eff* against log B of the longest runs; None with one batch size.
        exponent: of log ε_eff* against log L at the longest runs; None with one length.
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

    def rise(self, batch_size: float, num_examples: float, further: float) -> Interval:
        """Return the slope of log ε_eff* against log B, from one batch size and its length to twice it and its length.

        Args:
            batch_size: the smaller one.
            num_examples: its length.
            further: the length with twice the batch size; the same at equal epochs, twice as much at equal updates.
        """
        log_size = math.log2(batch_size)
        away = self._away(log_size + 1, math.log2(further)) - self._away(log_size, math.log2(num_examples))
        return _interval(float(self.estimate @ away), self.draws @ away)

    def _away(self, log_size: float, log_length: float) -> Floats:
        return distances(log_size - self.log_size, log_length - self.log_length, self.longest - self.log_length)


def fit_law(curves: Sequence[Curve], *, ceiling: float = math.inf, seed: int = 0) -> Law | None:
    """Return the law of the peaks below a ceiling; None if none is.

    Args:
        curves: of all batch sizes and lengths.
        ceiling: the effective learning rate that curvature allows; peaks near or above it do not follow the law.
        seed: of the resampling.
    """
    top = math.log2(ceiling) - _NEAR_CEILING if math.isfinite(ceiling) else math.inf
    usable = pooled([c for c in curves if c.is_usable and c.best < top])
    if not usable:
        return None
    if have_plateau(usable):
        return _plateau_law(usable, seed=seed)
    unit = PeakFit(usable, unit_slope=True)
    free = PeakFit(usable, unit_slope=False) if len({c.log_size for c in usable}) > 1 else None
    return _law(usable, unit, free, seed=seed)


def fitted_peak(curves: Sequence[Curve], *, batch_size: int, num_examples: float) -> float:
    """Return the expected best effective learning rate at a batch size and length, without its uncertainty."""
    usable = pooled([c for c in curves if c.is_usable]) or list(curves)
    if have_plateau(usable) or not usable[0].is_usable:
        middles = [sum(c.range) / 2 - c.log_size for c in usable]
        return float(2.0 ** (np.mean(middles) + math.log2(batch_size)))
    fit = PeakFit(usable, unit_slope=len({c.log_size for c in usable}) < 2)
    away = fit.distances(math.log2(batch_size), math.log2(num_examples))
    return float(2.0 ** (fit.law @ away))


def _law(curves: Sequence[Curve], unit: PeakFit, free: PeakFit | None, *, seed: int) -> Law:
    """Return the law with slope 1, unless the measured slope's interval excludes it or another one is more probable."""
    rng = np.random.default_rng(seed)
    chosen, slope, draws = unit, None, unit.draws(rng)
    if free is not None:
        of_free = free.draws(rng)
        slope = _interval(float(free.slope(free.law)), free.slope(of_free))
        probability = _probability_of_other_slope(unit, free)
        excluded = not slope.low <= 1.0 <= slope.high
        chosen = free if excluded or probability > 0.5 else unit
        keeps = rng.random((len(draws), 1)) >= (1.0 if excluded else probability)
        draws = np.where(keeps, draws, of_free)
    exponent = None
    if len(grouped([c.log_length for c in curves])) > 1:
        exponent = _interval(float(chosen.exponent(chosen.law)), chosen.exponent(draws))
    return Law(
        log_size=chosen.log_size,
        log_length=chosen.log_length,
        longest=chosen.longest,
        estimate=chosen.law,
        draws=draws,
        slope=slope,
        exponent=exponent,
        has_unit_slope=chosen is unit,
        batch_sizes=_batch_sizes(curves),
        drop=chosen.shape,
    )


def _interval(estimate: float, draws: Floats) -> Interval:
    low, high = (float(v) for v in percentile_limits(draws))
    return Interval(estimate=estimate, low=min(low, estimate), high=max(high, estimate))


def _batch_sizes(curves: Sequence[Curve]) -> tuple[int, ...]:
    return tuple(sorted({round(2**c.log_size) for c in curves}))


def _probability_of_other_slope(unit: PeakFit, free: PeakFit) -> float:
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
        estimate=np.array([(low + high) / 2, 1.0, 0.0, 0.0, 0.0]),
        draws=np.stack([levels, np.ones(NUM_DRAWS), nothing, nothing, nothing], axis=1),
        slope=None,
        exponent=None,
        has_unit_slope=True,
        batch_sizes=_batch_sizes(curves),
        drop=None,
    )
