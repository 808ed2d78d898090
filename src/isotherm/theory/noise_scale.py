"""How noisy a gradient is: tr Σ, ‖G‖² and their ratio, the gradient noise scale B_simple = tr Σ / ‖G‖².

G is the mean and Σ the covariance of the gradients of single examples (McCandlish et al. 2018). A batch of B examples
drawn independently has E‖g_B‖² = ‖G‖² + tr Σ / B, so two batch sizes give both, without bias:

    ‖G‖² ≈ (B_l ‖g_l‖² - B_s ‖g_s‖²) / (B_l - B_s),        tr Σ ≈ (‖g_s‖² - ‖g_l‖²) / (1/B_s - 1/B_l).

A draw is a large batch, the union of small ones. Both quantities are averaged over many draws, and only then divided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from isotherm.core.statistics import Floats, Interval, percentile_limits, t_interval
from isotherm.errors import UserError
from isotherm.tasks.seeding import derive

MIN_DRAWS = 8  # fewer draws do not determine their own spread
_NUM_RESAMPLES = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class NoiseScale:
    """tr Σ, ‖G‖² and B_simple = tr Σ / ‖G‖² with their confidence limits.

    tr Σ is for a single example. B_simple has no upper limit (`high` is infinite) if ‖G‖² is not distinguishable from
    zero; its estimate is infinite if that of ‖G‖² is not positive.
    """

    noise_trace: Interval
    gradient_norm_squared: Interval
    gradient_noise_scale: Interval
    small_batch_size: int
    large_batch_size: int
    num_draws: int
    level: float

    @property
    def has_upper_limit(self) -> bool:
        """Whether ‖G‖² is distinguishable from zero, so that the noise scale has an upper limit."""
        return math.isfinite(self.gradient_noise_scale.high)

    def __str__(self) -> str:
        scale, part = self.gradient_noise_scale, f"{100 * self.level:g} %"
        drawn = f"{self.num_draws} draws of {self.small_batch_size} and {self.large_batch_size} examples"
        if self.has_upper_limit:
            return f"B_simple = {scale.estimate:.3g} [{scale.low:.3g}, {scale.high:.3g}] at {part}; {drawn}"
        return (
            f"B_simple is above {scale.low:.3g} at {part} and has no upper limit: ‖G‖² is not distinguishable from "
            f"zero by {drawn}; larger batches or more draws can tell"
        )


def two_batch_estimates(
    small: ArrayLike, large: ArrayLike, *, small_batch_size: int, large_batch_size: int, population: int | None = None
) -> tuple[Floats, Floats]:
    """Return unbiased estimates of tr Σ and of ‖G‖², one of each for every draw.

    Args:
        small: squared gradient norms at the small batch size, or their means over the small batches of a draw.
        large: squared gradient norms at the large batch size.
        small_batch_size: examples per small batch.
        large_batch_size: examples per large batch.
        population: None for examples drawn with replacement. For batches drawn without replacement, the number of
            examples in all: their noise is tr Σ (N - B) / (B (N - 1)), which is accounted for exactly.

    >>> trace, norm = two_batch_estimates([5.0], [2.0], small_batch_size=1, large_batch_size=4)
    >>> trace.tolist(), norm.tolist()
    ([4.0], [1.0])
    """
    small_D, large_D = np.asarray(small, dtype=np.float64), np.asarray(large, dtype=np.float64)
    if not 0 < small_batch_size < large_batch_size or (population is not None and large_batch_size > population):
        raise UserError(
            f"batches of {small_batch_size} and {large_batch_size} examples"
            f"{'' if population is None else f' out of {population}'} cannot measure the noise; give a small batch of "
            "at least 1 and a larger one, no larger than the data set"
        )
    noise_of_small, noise_of_large = (
        1 / size if population is None else (population / size - 1) / (population - 1)
        for size in (small_batch_size, large_batch_size)
    )
    difference = noise_of_small - noise_of_large
    return (small_D - large_D) / difference, (noise_of_small * large_D - noise_of_large * small_D) / difference


def estimate_noise_scale(
    small: ArrayLike,
    large: ArrayLike,
    *,
    small_batch_size: int,
    large_batch_size: int,
    population: int | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> NoiseScale:
    """Return the noise scale from the squared gradient norms of independent draws; arguments as above.

    tr Σ and ‖G‖² have Student-t intervals. The interval of their ratio is a bootstrap-t of the angle between the two,
    which stays well behaved where either is zero.

    Args:
        small: shape (num_draws,), as for `two_batch_estimates`, like the next four.
        large: shape (num_draws,).
        small_batch_size: examples per small batch.
        large_batch_size: examples per large batch.
        population: None for draws with replacement.
        level: of all intervals.
        seed: of the bootstrap.
    """
    small_D, large_D = (_checked_norms(values, name) for values, name in ((small, "small"), (large, "large")))
    if len(small_D) != len(large_D):
        raise UserError(f"{len(small_D)} small and {len(large_D)} large squared norms; give one of each for every draw")
    if not 0 < level < 1:
        raise UserError(f"level={level} is not between 0 and 1; use 0.95")
    if not small_D.any() and not large_D.any():
        raise UserError(
            "every gradient is exactly zero, so there is neither a gradient nor noise to measure: the loss does not "
            "depend on the trainable parameters here; check the model and the loss, or measure at other parameters"
        )
    trace_D, norm_D = two_batch_estimates(
        small_D, large_D, small_batch_size=small_batch_size, large_batch_size=large_batch_size, population=population
    )
    return NoiseScale(
        noise_trace=t_interval(trace_D.tolist(), level=level),
        gradient_norm_squared=t_interval(norm_D.tolist(), level=level),
        gradient_noise_scale=_ratio_interval(trace_D, norm_D, unit=large_batch_size, level=level, seed=seed),
        small_batch_size=small_batch_size,
        large_batch_size=large_batch_size,
        num_draws=len(small_D),
        level=level,
    )


def optimal_learning_rate(batch_size: float, *, largest_learning_rate: float, gradient_noise_scale: float) -> float:
    """Return ε_opt(B) = ε_max / (1 + B_noise / B), the learning rate whose next step lowers the loss most.

    Args:
        batch_size: B.
        largest_learning_rate: ε_max, the best one without noise.
        gradient_noise_scale: B_noise = tr(HΣ) / (GᵀHG), which is B_simple if H is a multiple of the identity.

    >>> optimal_learning_rate(100, largest_learning_rate=2.0, gradient_noise_scale=100.0)
    1.0
    """
    return largest_learning_rate / (1 + gradient_noise_scale / batch_size)


def _checked_norms(values: ArrayLike, name: str) -> Floats:
    norms = np.asarray(values, dtype=np.float64)
    if norms.ndim != 1 or len(norms) < MIN_DRAWS:
        raise UserError(
            f"squared norms {name!r} of shape {norms.shape} give no interval; give one value for every draw, and at "
            f"least {MIN_DRAWS} draws"
        )
    if not np.isfinite(norms).all() or norms.min() < 0:
        index = int(np.argmax(~(norms >= 0) | np.isinf(norms)))
        raise UserError(
            f"squared norm {index} of {name!r} is {norms[index]}: the gradient overflowed; lower the learning rate or "
            "check the inputs"
        )
    return norms


def _ratio_interval(trace_D: Floats, norm_D: Floats, *, unit: float, level: float, seed: int) -> Interval:
    """Return mean(trace) / mean(norm) with its limits; a negative mean counts as zero, a ratio over zero as infinite.

    The angle is that of the point (tr Σ / unit, ‖G‖²): 0 if ‖G‖² is zero, a right angle if tr Σ is.
    """
    num_draws = len(trace_D)
    points_D2 = np.stack([trace_D / unit, norm_D], axis=1)
    mean_2 = points_D2.mean(axis=0)
    offsets_D2 = points_D2 - mean_2
    products_D3 = _products(offsets_D2)
    counts_RD = _resampled_counts(num_draws, seed=seed)
    shifts_R2 = counts_RD @ offsets_D2 / num_draws
    covariances_R3 = counts_RD @ products_D3 / num_draws - _products(shifts_R2)

    angle, error = _angle(mean_2, products_D3.mean(axis=0))
    angles_R, errors_R = _angle(mean_2 + shifts_R2, covariances_R3)
    lowest, highest = 0.0, 0.0
    if error > 0:
        with np.errstate(divide="ignore", invalid="ignore"):  # resamples whose draws are all equal
            standardised_R = (angles_R - angle) / errors_R
        standardised_R[np.isnan(standardised_R)] = 0.0
        lowest, highest = percentile_limits(standardised_R, level=level)
    angles = (float(angle), float(angle - lowest * error), float(angle - highest * error))
    estimate, low, high = (_ratio_at(value, unit) for value in angles)
    return Interval(estimate=estimate, low=low, high=high)


def _resampled_counts(num_draws: int, *, seed: int) -> Floats:
    """Return how often every draw occurs in each bootstrap resample, shape (resamples, num_draws)."""
    generator = np.random.default_rng(derive(seed, "resampled draws"))
    chosen_RD = generator.integers(num_draws, size=(_NUM_RESAMPLES, num_draws))
    cells_RD = chosen_RD + num_draws * np.arange(_NUM_RESAMPLES)[:, None]
    counts = np.bincount(cells_RD.ravel(), minlength=_NUM_RESAMPLES * num_draws)
    return counts.reshape(_NUM_RESAMPLES, num_draws).astype(np.float64)


def _products(points: Floats) -> Floats:
    """Return squares and product of pairs (trace, norm): (n, 2) -> (n, 3)."""
    trace, norm = points[:, 0], points[:, 1]
    return np.stack([trace**2, trace * norm, norm**2], axis=1)


def _angle(mean: Floats, covariance: Floats) -> tuple[Floats, Floats]:
    """Return the angle of mean points (..., 2) and its standard error, up to a factor that cancels.

    Covariances are ordered as in `_products`, shape (..., 3).
    """
    trace, norm = mean[..., 0], mean[..., 1]
    variance = norm**2 * covariance[..., 0] - 2 * trace * norm * covariance[..., 1] + trace**2 * covariance[..., 2]
    return np.arctan2(norm, trace), np.sqrt(np.maximum(variance, 0.0)) / (trace**2 + norm**2)


def _ratio_at(angle: float, unit: float) -> float:
    if angle <= 0:
        return math.inf
    return 0.0 if angle >= math.pi / 2 else unit / math.tan(angle)
