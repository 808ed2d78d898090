"""The shape of a peak, and how well it fits curves.

Around its optimum c a curve of height h is h - a |u|^p below and h - a r |u|^p above, u = log2 ε - c. Shape (a, r, p)
is shared by all batch sizes of a family; c and h are each one's own. A smooth peak has p = 2; p near 1 is a rise that
ends at an edge. How far real curves stray from such a shape is a parameter, too: κ, relative to how far a mean lies
below the best one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isotherm.analysis.curves import Curves
from isotherm.core.statistics import Floats

# Columns of an array of shapes: natural logarithms of a, r and κ; p; logarithm of a factor on the standard errors.
LOG_A, LOG_R, LOG_KAPPA, POWER, LOG_ERROR = range(5)
NUM_PARAMETERS = 5

# Priors. Above the optimum a curve falls off between a thirty-second as steeply and 128 times as steeply as below.
LEAST_R, MOST_R = np.log(1 / 32), np.log(128.0)
MIDDLE_KAPPA, SPREAD_KAPPA = np.log(0.04), 0.8
MIDDLE_POWER, SPREAD_POWER, LEAST_POWER, MOST_POWER = 2.0, 0.4, 0.9, 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """How well curves of given shapes and optima fit, and the heights they imply.

    `log_likelihoods` are with the height integrated out; minus infinity where the optimum cannot lie.
    """

    log_likelihoods: Floats
    heights: Floats
    height_variances: Floats


def fit_heights(curves: Curves, shapes: Floats, log_optima: Floats) -> Fitted:
    """Return the fit of every shape with its optima.

    Args:
        curves: of a family.
        shapes: parameters, shape (..., 5).
        log_optima: shape (..., num_grids).
    """
    log_a, log_r, log_kappa, power, log_error = (part[..., None, None] for part in np.moveaxis(shapes, -1, 0))
    away = curves.log_rates - log_optima[..., None]
    with np.errstate(divide="ignore"):  # log of 0: exactly at the optimum nothing is lost
        log_away = np.log(np.abs(away))
    values = power * log_away + log_a + np.where(away > 0, log_r, 0.0)
    np.exp(values, out=values)
    values += curves.below_best
    variances = np.exp(2 * log_error) * curves.variances + (np.exp(log_kappa) * curves.drops) ** 2
    weights = np.where(curves.used, 1.0 / variances, 0.0)
    total = weights.sum(axis=-1)
    heights = np.einsum("...j,...j->...", weights, values) / total
    misfit = np.einsum("...j,...j,...j->...", weights, values, values) - total * heights**2
    scale = np.sum(np.where(curves.used, np.log(variances), 0.0), axis=-1) + np.log(total)
    inside = (log_optima >= curves.low) & (log_optima <= curves.high)
    return Fitted(
        log_likelihoods=np.where(inside, -0.5 * (misfit + scale), -np.inf),
        heights=heights + curves.best,
        height_variances=1.0 / total + np.exp(2 * log_error[..., 0]) * curves.common_variance,
    )


def log_prior(shapes: Floats, *, freedom: float, limits_a: tuple[float, float]) -> Floats:
    """Return the logarithm of the prior density of shapes; `freedom` is how well standard errors are known."""
    log_a, log_r, log_kappa, power, log_error = np.moveaxis(shapes, -1, 0)
    inside = (log_a >= limits_a[0]) & (log_a <= limits_a[1]) & (log_r >= LEAST_R) & (log_r <= MOST_R)
    inside &= (power >= LEAST_POWER) & (power <= MOST_POWER)
    found = -0.5 * ((log_kappa - MIDDLE_KAPPA) / SPREAD_KAPPA) ** 2
    found = found - 0.5 * ((power - MIDDLE_POWER) / SPREAD_POWER) ** 2
    found = found - freedom * log_error - 0.5 * freedom * np.exp(-2 * log_error)
    return np.where(inside, found, -np.inf)


def prior_draws(
    generator: np.random.Generator, num_draws: int, *, freedom: float, limits_a: tuple[float, float]
) -> Floats:
    """Return shapes drawn from the prior, shape (num_draws, 5)."""
    shapes = np.empty((num_draws, NUM_PARAMETERS))
    shapes[:, LOG_A] = generator.uniform(*limits_a, size=num_draws)
    shapes[:, LOG_R] = generator.uniform(LEAST_R, MOST_R, size=num_draws)
    shapes[:, LOG_KAPPA] = generator.normal(MIDDLE_KAPPA, SPREAD_KAPPA, size=num_draws)
    powers = generator.normal(MIDDLE_POWER, SPREAD_POWER, size=num_draws)
    shapes[:, POWER] = np.clip(powers, LEAST_POWER, MOST_POWER)
    shapes[:, LOG_ERROR] = -0.5 * np.log(generator.chisquare(freedom, size=num_draws) / freedom)
    return shapes
