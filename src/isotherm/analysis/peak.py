"""The shape of a peak, and how well it fits curves.

Around its optimum c a curve of height h is h - a |u|^p below and h - a r |u|^q above, u = log2 ε - c. The shape (a, r,
p, q) is shared by the batch sizes of a family, but for a and r, which may drift along it; c and h are each one's own. A
parabola has p = q = 2; p near 1 is a rise that ends at an edge; with a large q curves are round on top and fall ever
faster above. How far real curves stray from such a shape is a parameter, too: κ, relative to how far a mean lies below
the best one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isotherm.analysis.curves import FARTHER, Curves
from isotherm.core.statistics import Floats

# Columns of an array of shapes: natural logarithms of a, r and κ; p and q; logarithm of a factor on standard errors; by
# how much log a and log r grow per octave of the batch size.
LOG_A, LOG_R, LOG_KAPPA, POWER, POWER_ABOVE, LOG_ERROR, DRIFT_A, DRIFT_R = range(8)
NUM_PARAMETERS = 8

# Relative error of how far a curve is seen to fall at least.
FALL_ERROR = 0.2

# Priors. Above the optimum a curve falls off between a thirty-second as steeply and 128 times as steeply as below. None
# is taken to follow the shape to better than a hundredth.
LEAST_R, MOST_R = np.log(1 / 32), np.log(128.0)
LEAST_KAPPA, MOST_KAPPA, MIDDLE_KAPPA, SPREAD_KAPPA = np.log(0.01), np.log(0.5), np.log(0.03), 0.8
MIDDLE_POWER, SPREAD_POWER, LEAST_POWER, MOST_POWER = 2.0, 0.6, 0.9, 3.0
SPREAD_DRIFT_A, SPREAD_DRIFT_R = 0.15, 0.3
MIDDLE_ABOVE, SPREAD_ABOVE, LEAST_ABOVE, MOST_ABOVE = 2.3, 0.7, 0.9, 6.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """How well curves of given shapes and optima fit, and the heights they imply.

    `log_likelihoods` are with the height integrated out; minus infinity where the optimum cannot lie. The variances of
    the heights are without the seeds' common luck.
    """

    log_likelihoods: Floats
    heights: Floats
    height_variances: Floats


def fit_heights(curves: Curves, shapes: Floats, log_optima: Floats) -> Fitted:
    """Return the fit of every shape with its optima.

    Args:
        curves: of a family.
        shapes: parameters, shape (..., 8).
        log_optima: shape (..., num_grids).
    """
    log_a, log_r, log_kappa, below, above, log_error, drift_a, drift_r = (
        part[..., None, None] for part in np.moveaxis(shapes, -1, 0)
    )
    octaves = curves.octaves[:, None]
    log_a, log_r = log_a + drift_a * octaves, log_r + drift_r * octaves
    away = curves.log_rates - log_optima[..., None]
    with np.errstate(divide="ignore"):  # log of 0: exactly at the optimum nothing is lost
        log_away = np.log(np.abs(away))
    is_above = away > 0
    values = np.where(is_above, above, below) * log_away + log_a + np.where(is_above, log_r, 0.0)
    np.exp(values, out=values)
    missed = missed_falls(curves, values)
    values += curves.below_best
    variances = np.exp(2 * log_error) * curves.variances + (np.exp(log_kappa) * curves.drops) ** 2 + curves.depths**2
    weights = np.where(curves.used, 1.0 / variances, 0.0)
    total = weights.sum(axis=-1)
    heights = np.einsum("...j,...j->...", weights, values) / total
    misfit = np.einsum("...j,...j,...j->...", weights, values, values) - total * heights**2
    scale = np.sum(np.where(curves.used, np.log(variances), 0.0), axis=-1) + np.log(total)
    inside = (log_optima >= curves.low) & (log_optima <= curves.high)
    return Fitted(
        log_likelihoods=np.where(inside, -0.5 * (misfit + scale + missed), -np.inf),
        heights=heights + curves.best,
        height_variances=1.0 / total,
    )


def losses_away(shapes: Floats, octaves: Floats, away: Floats) -> tuple[Floats, Floats]:
    """Return what curves lose away from their optima, and the standard deviation of what real ones lose besides.

    Args:
        shapes: parameters, shape (num_draws, 8).
        octaves: log2 of the batch sizes, less their mean, shape (num_grids,).
        away: octaves above the optimum, shape (num_draws, num_grids).
    """
    log_a, log_r, log_kappa, below, above, _, drift_a, drift_r = (part[:, None] for part in shapes.T)
    log_sides = np.where(away > 0, log_r + drift_r * octaves, 0.0)
    powers = np.where(away > 0, above, below)
    losses = np.exp(log_a + drift_a * octaves + log_sides) * np.abs(away) ** powers
    farther = 1 + FARTHER * np.maximum(0.0, np.abs(away) - 1.0)
    return np.asarray(losses), np.asarray(np.exp(log_kappa) * losses * farther)


def missed_falls(curves: Curves, losses: Floats) -> Floats | float:
    """Return the misfit of curves that do not fall as far as was seen, shape (..., num_grids)."""
    seen = curves.falls > 0
    if not seen.any():
        return 0.0
    falls = np.where(seen, curves.falls, 1.0)
    short = np.where(seen, np.maximum(0.0, 1.0 - losses / falls), 0.0) / FALL_ERROR
    return np.asarray(np.sum(short**2, axis=-1))


def log_prior(shapes: Floats, *, freedom: float, limits_a: tuple[float, float]) -> Floats:
    """Return the logarithm of the prior density of shapes; `freedom` is how well standard errors are known."""
    log_a, log_r, log_kappa, power, above, log_error, drift_a, drift_r = np.moveaxis(shapes, -1, 0)
    inside = (log_a >= limits_a[0]) & (log_a <= limits_a[1]) & (log_r >= LEAST_R) & (log_r <= MOST_R)
    inside &= (power >= LEAST_POWER) & (power <= MOST_POWER)
    inside &= (above >= LEAST_ABOVE) & (above <= MOST_ABOVE)
    inside &= (log_kappa >= LEAST_KAPPA) & (log_kappa <= MOST_KAPPA)
    found = -0.5 * ((log_kappa - MIDDLE_KAPPA) / SPREAD_KAPPA) ** 2
    found = found - 0.5 * ((power - MIDDLE_POWER) / SPREAD_POWER) ** 2
    found = found - 0.5 * ((above - MIDDLE_ABOVE) / SPREAD_ABOVE) ** 2
    found = found - 0.5 * (drift_a / SPREAD_DRIFT_A) ** 2 - 0.5 * (drift_r / SPREAD_DRIFT_R) ** 2
    found = found - freedom * log_error - 0.5 * freedom * np.exp(-2 * log_error)
    return np.where(inside, found, -np.inf)


def rough_shapes(curves: Curves, generator: np.random.Generator, num_shapes: int) -> Floats:
    """Return shapes around what the neighbours of the best learning rates suggest, shape (num_shapes, 8)."""
    below, above = _steepness(curves)
    known = below[(below > 0) & np.isfinite(below)]
    log_a = np.log(np.median(known)) if len(known) else np.log(curves.error)
    ratios = (above / np.maximum(below, 1e-300))[(below > 0) & (above > 0) & np.isfinite(below + above)]
    log_r = np.clip(np.log(np.median(ratios)) if len(ratios) else np.log(8.0), LEAST_R + 1, MOST_R - 1)
    shapes = np.empty((num_shapes, NUM_PARAMETERS))
    shapes[:, LOG_A] = generator.normal(log_a, 1.0, size=num_shapes)
    shapes[:, LOG_R] = np.clip(generator.normal(log_r, 1.5, size=num_shapes), LEAST_R, MOST_R)
    shapes[:, LOG_KAPPA] = generator.uniform(LEAST_KAPPA, MIDDLE_KAPPA + SPREAD_KAPPA, size=num_shapes)
    powers = generator.normal(MIDDLE_POWER, SPREAD_POWER, size=num_shapes)
    shapes[:, POWER] = np.clip(powers, LEAST_POWER, MOST_POWER)
    powers = generator.normal(MIDDLE_ABOVE, SPREAD_ABOVE, size=num_shapes)
    shapes[:, POWER_ABOVE] = np.clip(powers, LEAST_ABOVE, MOST_ABOVE)
    shapes[:, LOG_ERROR] = generator.normal(0.0, 0.05, size=num_shapes)
    shapes[:, DRIFT_A] = generator.normal(0.0, SPREAD_DRIFT_A / 2, size=num_shapes)
    shapes[:, DRIFT_R] = generator.normal(0.0, SPREAD_DRIFT_R / 2, size=num_shapes)
    return shapes


def _steepness(curves: Curves) -> tuple[Floats, Floats]:
    """Return how far curves fall per octave squared to the neighbours below and above the best; NaN without one."""
    found = np.full((2, curves.num_grids), np.nan)
    for row, (used, drops, x) in enumerate(zip(curves.used, -curves.below_best, curves.log_rates, strict=True)):
        best = int(np.argmin(np.where(used, drops, np.inf)))
        for side, index in enumerate((best - 1, best + 1)):
            if 0 <= index < len(x) and used[index] and x[index] != x[best]:
                found[side, row] = drops[index] / (x[index] - x[best]) ** 2
    return found[0], found[1]
