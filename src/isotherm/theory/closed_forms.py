"""SGD and heavy ball on a quadratic loss, and their limit of small steps, in closed form.

Everything is for one eigendirection: curvature h, per-example gradient variance c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from isotherm.core.statistics import Floats
from isotherm.core.temperature import effective_learning_rate
from isotherm.theory.checks import need_all_positive, need_count, need_momentum, not_negative


def critical_learning_rate(largest_curvature: float, *, momentum: float = 0.0) -> float:
    """Return the bare ε above which training diverges: 2 (1 + m) / h_max.

    >>> critical_learning_rate(0.5), critical_learning_rate(0.5, momentum=0.5)
    (4.0, 6.0)
    """
    need_all_positive("largest_curvature", largest_curvature)
    need_momentum(momentum)
    return 2.0 * (1.0 + momentum) / largest_curvature


def critical_effective_learning_rate(largest_curvature: float, *, momentum: float = 0.0) -> float:
    """Return the ε_eff above which training diverges: 2 (1 + m) / ((1 - m) h_max).

    >>> round(critical_effective_learning_rate(1.0, momentum=0.9), 9)
    38.0
    """
    return effective_learning_rate(critical_learning_rate(largest_curvature, momentum=momentum), momentum=momentum)


def stationary_variance(
    learning_rate: float,
    *,
    curvature: ArrayLike,
    noise_variance: ArrayLike,
    batch_size: int,
    momentum: float = 0.0,
) -> Floats:
    """Return E θ² after many updates at the bare ε: ε (1 + m) c / (B h (1 - m) (2 (1 + m) - ε h)).

    Infinite at and above the critical learning rate, and for zero curvature.

    >>> float(stationary_variance(1.0, curvature=0.5, noise_variance=3.0, batch_size=2))
    2.0
    """
    need_all_positive("learning_rate", learning_rate)
    need_count("batch_size", batch_size)
    need_momentum(momentum)
    h = not_negative("curvature", curvature)
    v = not_negative("noise_variance", noise_variance) / batch_size
    room = h * (1.0 - momentum) * (2.0 * (1.0 + momentum) - learning_rate * h)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(room > 0, learning_rate * (1.0 + momentum) * v / room, np.inf)


def sgd_second_moment(
    num_steps: int,
    *,
    learning_rate: float,
    curvature: ArrayLike,
    noise_variance: ArrayLike,
    batch_size: int,
    initial: ArrayLike,
) -> Floats:
    """Return E θ² of SGD after t updates from E θ_0²: (1 - εh)^2t θ_0² + (1 - (1 - εh)^2t) times the stationary value.

    >>> float(sgd_second_moment(1, learning_rate=0.5, curvature=1.0, noise_variance=2.0, batch_size=1, initial=4.0))
    1.5
    """
    need_count("num_steps", num_steps)
    need_count("batch_size", batch_size)
    need_all_positive("learning_rate", learning_rate)
    step = learning_rate * not_negative("curvature", curvature)
    v = not_negative("noise_variance", noise_variance) / batch_size
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # log |1 - εh|, accurate near εh = 0 and near εh = 2.
        exponent = 2.0 * num_steps * np.log1p(-np.minimum(step, 2.0 - step))
        # The noise of update j has decayed by (1 - εh)^2(t-j): a geometric series, with equal terms if (1 - εh)² = 1.
        terms = np.where((step == 0.0) | (step == 2.0), num_steps, -np.expm1(exponent) / (step * (2.0 - step)))
        return np.asarray(np.exp(exponent) * not_negative("initial", initial) + learning_rate**2 * v * terms)


def diffusion_stationary_variance(temperature: float, *, curvature: ArrayLike, noise_variance: ArrayLike) -> Floats:
    """Return E θ² in the limit of small learning rates, T c / (2 h); it depends on the temperature T = ε_eff / B alone.

    >>> float(diffusion_stationary_variance(0.5, curvature=0.25, noise_variance=3.0))
    3.0
    """
    need_all_positive("temperature", temperature)
    need_all_positive("curvature", curvature)
    c = not_negative("noise_variance", noise_variance)
    return np.asarray(temperature * c / (2.0 * np.asarray(curvature, dtype=np.float64)))


def diffusion_second_moment(
    time: float, *, temperature: float, curvature: ArrayLike, noise_variance: ArrayLike, initial: ArrayLike
) -> Floats:
    """Return E θ² at time s = ε_eff t in that limit: e^(-2hs) θ_0² + (1 - e^(-2hs)) T c / (2 h)."""
    decay = -2.0 * np.asarray(curvature, dtype=np.float64) * not_negative("time", time)
    stationary = diffusion_stationary_variance(temperature, curvature=curvature, noise_variance=noise_variance)
    return np.asarray(np.exp(decay) * not_negative("initial", initial) - np.expm1(decay) * stationary)


def kink_batch_size(optimal_temperature: float, *, largest_curvature: float, momentum: float = 0.0) -> float:
    """Return the batch size at which the small-batch line ε_eff = T* B meets the critical learning rate.

    >>> kink_batch_size(1 / 32, largest_curvature=1.0)
    64.0
    """
    need_all_positive("optimal_temperature", optimal_temperature)
    return critical_effective_learning_rate(largest_curvature, momentum=momentum) / optimal_temperature
