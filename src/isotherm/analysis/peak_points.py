"""Many shapes with their optima at the same points: what `peak.fit_heights` says of them, in half the time.

Nearly all of a fit is this one computation, thousands of times. What depends on the points alone is computed once, the
large arrays are kept from call to call, small enough for a processor's cache, and batch sizes and learning rates are
one axis. Every number is computed by the same operations in the same order, so the results are those of `fit_heights`,
bit for bit.
"""

from __future__ import annotations

import numpy as np

from isotherm.analysis.curves import Curves
from isotherm.analysis.peak import missed_falls
from isotherm.core.statistics import Floats

# In the arrays to work in, which then stay in a processor's cache.
_NUMBERS_AT_ONCE = 60_000


class PointFits:
    """The fits of curves at points, one row of optima each, shape (num_points, num_grids)."""

    def __init__(self, curves: Curves, points: Floats) -> None:
        self.curves = curves
        self.points = points
        away = curves.log_rates - points[..., None]
        with np.errstate(divide="ignore"):  # log of 0: exactly at the optimum nothing is lost
            log_away = np.log(np.abs(away))
        is_above = away > 0
        flat = (len(points), -1)
        self._log_below = np.where(is_above, 0.0, log_away).reshape(flat)
        self._log_above = np.where(is_above, log_away, 0.0).reshape(flat)
        self._is_above = is_above.astype(np.float64).reshape(flat)
        self._at_once = max(1, _NUMBERS_AT_ONCE // self._is_above.size)
        self._work = np.empty((2, self._at_once, *self._is_above.shape))

    def log_likelihoods(self, shapes: Floats) -> Floats:
        """Return how well shapes fit at every point, heights integrated out, shape (num_shapes, num_points, num_grids).

        Args:
            shapes: parameters, shape (num_shapes, 8).
        """
        found = np.empty((len(shapes), *self.points.shape))
        for start in range(0, len(shapes), self._at_once):
            some = shapes[start : start + self._at_once]
            found[start : start + len(some)] = self._of_some(some, *self._work[:, : len(some)])
        return found

    def _of_some(self, shapes: Floats, values: Floats, other: Floats) -> Floats:
        """Return the same of no more shapes than the two arrays to work in have room for."""
        curves, rates = self.curves, self.curves.log_rates.shape[1]
        log_a, log_r, log_kappa, below, above, log_error, drift_a, drift_r = (part[:, None] for part in shapes.T)
        np.multiply(below[:, None], self._log_below, out=values)
        values += np.multiply(above[:, None], self._log_above, out=other)  # one of the two is 0
        values += np.repeat(log_a + drift_a * curves.octaves, rates, axis=1)[:, None]
        values += np.multiply(
            np.repeat(log_r + drift_r * curves.octaves, rates, axis=1)[:, None], self._is_above, out=other
        )
        np.exp(values, out=values)
        by_grid = values.reshape(*values.shape[:2], -1, rates)
        missed = missed_falls(curves, by_grid)
        values += curves.below_best.ravel()
        errors, kappas = np.exp(2 * log_error)[..., None], np.exp(log_kappa)[..., None]
        variances = errors * curves.variances + (kappas * curves.drops) ** 2 + curves.depths**2
        weights = np.where(curves.used, 1.0 / variances, 0.0)
        total = weights.sum(axis=-1)[:, None]
        heights = np.einsum("...j,...j->...", weights[:, None], by_grid) / total
        np.multiply(weights.reshape(len(shapes), 1, -1), values, out=other)
        other *= values
        misfit = _sums(other.reshape(by_grid.shape)) - total * heights**2
        scale = np.sum(np.where(curves.used, np.log(variances), 0.0), axis=-1)[:, None] + np.log(total)
        return np.asarray(-0.5 * (misfit + scale + missed))


def _sums(values: Floats) -> Floats:
    """Return sums over the last axis, from left to right as einsum forms those of three factors."""
    found = values[..., 0].copy()
    for place in range(1, values.shape[-1]):
        found += values[..., place]
    return found
