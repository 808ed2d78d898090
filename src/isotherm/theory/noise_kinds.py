"""Kinds of per-example noise: some becomes Gaussian as it adds up, some keeps its heavy tails.

Shapes: M trajectories (paths).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from isotherm.core.statistics import Floats
from isotherm.errors import UserError
from isotherm.theory.checks import is_number, need_positive, need_stable

Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]
"""(generator, shape) -> independent gradient noise of single examples, mean (or, without a mean, median) 0."""


def skewed_noise(generator: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Draw exponential noise minus its mean: variance 1, skewness 2, excess kurtosis 6."""
    return generator.exponential(size=shape) - 1.0


def stable_noise(alpha: float) -> Draw:
    """Return a sampler of symmetric α-stable noise of scale 1: infinite variance for α < 2, no mean for α ≤ 1.

    Characteristic function exp(-|k|^α), by the formula of Chambers, Mallows and Stuck; α = 2 is Gaussian of variance 2.
    """
    _check_alpha(alpha)

    def draw(generator: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        angle = generator.uniform(-np.pi / 2, np.pi / 2, shape)
        weight = generator.exponential(size=shape)
        tilt = (np.cos((1 - alpha) * angle) / weight) ** ((1 - alpha) / alpha)
        return np.asarray(np.sin(alpha * angle) / np.cos(angle) ** (1 / alpha) * tilt)

    return draw


def accumulated_noise(draw: Draw, counts: Sequence[int], *, num_paths: int, generator: np.random.Generator) -> Floats:
    """Return Σ ν over the first n draws of every path, for rising n in counts, shape (len(counts), M).

    Divided by √n this is appendix A's ξ.
    """
    if list(counts) != sorted(set(counts)) or not counts or counts[0] < 1:
        raise UserError(f"counts={list(counts)} must rise from 1 or more, as in [1, 2, 4]")
    total_M, sums = np.zeros(num_paths), []
    for done in range(1, counts[-1] + 1):
        total_M = total_M + draw(generator, (num_paths,))
        if done in counts:
            sums.append(total_M)
    return np.stack(sums)


def quartile_distance(sample: Floats) -> float:
    """Return the interquartile range, a measure of scale that is finite even for infinite variance.

    >>> quartile_distance(np.arange(101.0))
    50.0
    """
    low, high = np.quantile(sample, [0.25, 0.75])
    return float(high - low)


def tail_ratio(sample: Floats) -> float:
    """Return the distance of the 99 % quantile from the median, relative to that of the upper quartile.

    3.45 for a Gaussian at any scale; more for heavier upper tails.

    >>> tail_ratio(np.arange(101.0))
    1.96
    """
    middle, quartile, tail = np.quantile(sample, [0.5, 0.75, 0.99])
    return float((tail - middle) / (quartile - middle))


def stable_stationary_scale(*, alpha: float, curvature: float, learning_rate: float, batch_size: int) -> float:
    """Return the scale of θ after many updates with symmetric α-stable example noise of scale 1.

    scale^α = ε^α B^{1-α} / (1 - |1 - εh|^α), near T^{α-1} / (αh) for small ε: still a function of T = ε / B, but with
    the power 1 - 1/α of T instead of 1/2 for finite variance.

    >>> round(stable_stationary_scale(alpha=2.0, curvature=1.0, learning_rate=1.0, batch_size=4), 6)
    0.5
    """
    _check_alpha(alpha)
    need_stable(curvature, learning_rate)
    need_positive("batch_size", batch_size)
    power = learning_rate**alpha * batch_size ** (1 - alpha) / (1 - abs(1 - learning_rate * curvature) ** alpha)
    return float(power ** (1 / alpha))


def _check_alpha(alpha: Any) -> None:
    if not (is_number(alpha) and 0 < alpha <= 2):
        raise UserError(f"alpha={alpha!r} is not in (0, 2]; there are no other stable distributions")
