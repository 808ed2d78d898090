"""Curves of the judged quantity against the learning rate: their best, and what cannot be told from it.

Pure NumPy; logarithms are to base 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from isotherm.core.statistics import Floats

# A range of learning rates that cannot be told apart is a plateau if it is at least this wide, in octaves.
PLATEAU = 4.0
# Standard errors by which two means must differ to be told apart, and the part of the fall to the lowest learning rate.
_APART, _LEVEL = 2.5, 0.05
# The part of the best value that is no difference on a plateau, be it an example more or less.
_NEGLIGIBLE = 0.005
# Lengths closer than this, in octaves, are one: updates are whole.
_SAME_LENGTH = 0.3
# How many seeds the noise of the other grids counts for in that of each.
_POOLED_SEEDS = 2.0
# Octaves from the common isotherm within which a coarse grid's own best counts.
_NEAR = 2.25


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Curve:
    """One grid: the judged quantity, larger is better, against the effective learning rate.

    Args:
        log_size: of the batch.
        log_length: of the training, in examples.
        log_rates: rising, shape (num_rates,).
        means: over seeds, minus infinity where training failed.
        errors: standard errors of the means relative to each other.
        num_seeds: behind every mean.
    """

    log_size: float
    log_length: float
    log_rates: Floats
    means: Floats
    errors: Floats
    num_seeds: int

    @property
    def best(self) -> float:
        """The middle of the learning rates tied for the highest mean."""
        tied = self.means >= self.means.max()
        return float(self.log_rates[tied].mean())

    @property
    def is_plateau(self) -> bool:
        """Whether the best value is shared by learning rates far apart; less far up to an end of the grid."""
        low, high = self.range
        is_at_end = low == self.log_rates[0] or high == self.log_rates[-1]
        return high - low >= (PLATEAU - 1.0 if is_at_end else PLATEAU) - 0.1

    @property
    def is_usable(self) -> bool:
        """Whether training succeeds at enough learning rates to show a peak."""
        return int(np.isfinite(self.means).sum()) >= 3

    @property
    def range(self) -> tuple[float, float]:
        """The learning rates around the best that cannot be told from it."""
        top = int(np.argmax(self.means))
        with np.errstate(invalid="ignore"):
            close = self.means >= self.means[top] - _APART * np.hypot(self.errors, self.errors[top])
        close &= np.isfinite(self.means)
        # However noisy: a plateau's value is that of the best, seen against how far the lowest learning rate falls.
        fall = max(0.0, self.means[top] - self.means[0])
        close &= self.means >= self.means[top] - max(_LEVEL * fall, _NEGLIGIBLE * abs(self.means[top]))
        low = high = top
        while low > 0 and close[low - 1]:
            low -= 1
        while high < len(close) - 1 and close[high + 1]:
            high += 1
        return float(self.log_rates[low]), float(self.log_rates[high])


def curve(*, batch_size: int, num_examples: float, rates: Sequence[float], scores_RS: Floats) -> Curve:
    """Return a curve from scores by learning rate and seed; minus infinity where a run failed.

    A seed's part that is common to all learning rates cancels in their comparison and does not count as error.
    """
    usable = np.asarray(np.isfinite(scores_RS).all(axis=1))
    means = np.full(len(rates), -np.inf)
    means[usable] = scores_RS[usable].mean(axis=1)
    return Curve(
        log_size=math.log2(batch_size),
        log_length=math.log2(num_examples),
        log_rates=np.log2(np.asarray(rates, dtype=np.float64)),
        means=means,
        errors=_errors(scores_RS, usable),
        num_seeds=scores_RS.shape[1],
    )


def _errors(scores_RS: Floats, usable: NDArray[np.bool_]) -> Floats:
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
    of_near = float(((centre - common_S) ** 2).sum() / (freedom * max(1, len(near) - 1)))
    for k in index:
        own = float(((scores_RS[k] - scores_RS[k].mean() - common_S) ** 2).sum())
        errors[k] = math.sqrt((own + 4 * of_near) / (freedom + 4) / num_seeds)
    spread = float(means.max() - np.sort(means)[len(means) // 2])
    return np.maximum(errors, 0.01 * spread + 1e-9 * float(np.abs(means).max()))


def grouped(values: Sequence[float]) -> list[float]:
    """Return rising values, nearly equal ones once.

    >>> grouped([3.0, 1.0, 1.1])
    [1.0, 3.0]
    """
    found: list[float] = []
    for value in sorted(values):
        if not found or value - found[-1] > _SAME_LENGTH:
            found.append(value)
    return found


def pooled(curves: Sequence[Curve]) -> list[Curve]:
    """Return curves whose errors are drawn towards each other's, relative to their best values.

    Two seeds may agree by chance, at all learning rates alike as these share initialisation and batches; such a grid
    is not as certain as it looks.
    """
    own = [_noise(c) for c in curves]
    known = [(math.log(noise), c.num_seeds - 1) for noise, c in zip(own, curves, strict=True) if noise > 0]
    if sum(weight for _, weight in known) == 0:
        return list(curves)
    typical = math.exp(np.average([v for v, _ in known], weights=[weight for _, weight in known]))
    return [_with_noise(c, noise, typical) for c, noise in zip(curves, own, strict=True)]


def _noise(c: Curve) -> float:
    """Return the standard deviation of a run relative to the best value; 0 if there is none."""
    best = abs(float(c.means.max()))
    near = c.errors[np.argsort(-c.means)[:3]]
    noise = float(np.median(near)) * math.sqrt(c.num_seeds)
    return noise / best if 1e-6 * best < noise and 0 < best < math.inf else 0.0


def _with_noise(c: Curve, own: float, typical: float) -> Curve:
    if own == 0.0:
        return c
    freedom = c.num_seeds - 1
    variance = (freedom * own**2 + _POOLED_SEEDS * typical**2) / (freedom + _POOLED_SEEDS)
    return replace(c, errors=c.errors * math.sqrt(variance) / own)


def have_plateau(curves: Sequence[Curve]) -> bool:
    """Tell whether on most curves of each of the two greatest lengths the best value is shared by rates far apart."""
    lengths = grouped([c.log_length for c in curves])[-2:]
    for k, length in enumerate(lengths):
        end = lengths[k + 1] if k + 1 < len(lengths) else math.inf
        alike = [c.is_plateau for c in curves if length <= c.log_length < end]
        if 2 * sum(alike) <= len(alike):
            return False
    return True


def common_peaks(curves: Sequence[Curve]) -> list[float]:
    """Return where the peaks of coarse grids are, near one isotherm: seeds are few, and one grid alone may mislead."""
    levels = sorted({x - c.log_size for c in curves for x in c.log_rates})
    total = [sum(_height(c, level + c.log_size) for c in curves) for level in levels]
    level = float(np.mean([v for v, t in zip(levels, total, strict=True) if t >= max(total) - 1e-9]))
    found = []
    for c in curves:
        near = np.where(np.abs(c.log_rates - level - c.log_size) <= _NEAR, c.means, -np.inf)
        tied = near >= near.max()
        found.append(float(c.log_rates[tied].mean()) if np.isfinite(near.max()) else level + c.log_size)
    return found


def _height(c: Curve, log_rate: float) -> float:
    """Return a curve's value between its learning rates: 0 at the best, -1 where it fails or is at its lowest."""
    if not np.isfinite(c.means).any():
        return -1.0
    best, first = float(c.means.max()), float(c.means[0])
    fall = best - first if math.isfinite(first) and best > first else 1.0
    below = np.where(np.isfinite(c.means), c.means, best - fall) - best
    heights = np.maximum(-1.0, np.maximum(below, -fall) / fall)
    return float(np.interp(log_rate, c.log_rates, heights, left=-1.0, right=-1.0))
