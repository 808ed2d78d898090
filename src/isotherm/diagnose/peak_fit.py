"""The least-squares fit of all short grids at once.

    log2 ε_eff* = level + slope · b + exponent · l + bend · b l + curve · l²,   b = log2(B / B_0),   l = log2(L / L_0)

The bend lets the slope change with the length up to the longest runs, and no further: short runs that hardly move want
ε ∝ B whatever holds later. The curve lets the exponent change; beyond the longest runs the law goes on straight. Every
grid is a curve of the judged quantity against log ε_eff with its peak there. Curves share their shape, an asymmetric
parabola, up to a height of their own and a scale per length; so few seeds at each learning rate suffice. Draws
are fits to redrawn values, all solved at once.

Shapes: D draws, P points, G grids, L lengths. Pure NumPy; logarithms are to base 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isotherm.core.statistics import Floats
from isotherm.diagnose.curves import Curve, grouped

NUM_DRAWS = 160
# Octaves to both sides of a peak that its shape is fitted to.
WINDOW = 2.25
# Means and standard deviations of what is expected beforehand. The exponent of the length is about -1 where a network
# overfits or noise has to be averaged out, and near zero where neither is so; the slope is 1 on an isotherm.
PRIORS = {"slope": (1.0, 0.4), "exponent": (-0.5, 0.4), "bend": (0.0, 0.15), "curve": (-0.05, 0.08), "skew": (0.0, 0.8)}
_LEVEL_SPREAD, _MOST_SKEW = 3.0, 3.5
# The geometric mean of a curve's slopes far to the left and right, up to its scale: how round the peak is.
_SLOPE = 0.7
# In octaves: no peak is known better than this, as no network's curve has exactly the assumed shape.
LEAST_ERROR = 0.3
# Points far below their curve's best need not have the shape; this part of the distance counts as error.
_MISFIT = 0.1
_NUM_WINDOWS, _NUM_STEPS, _DIFFERENCE = 4, 15, 1e-5


def distances(b: float, length: float, longest: float = math.inf) -> Floats:
    """Return what the law's five terms are multiplied by, given distances from B_0 and L_0 in octaves."""
    end = min(length, longest)
    return np.array([1.0, b, length, b * end, end**2 + 2 * end * (length - end)])


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How a curve falls to both sides of its peak, ever more linearly: `scale` times log((β e^-αu + α e^βu) / (α + β)).

    u is the distance in octaves; the slopes α to the left and β to the right differ by a factor of e to minus the skew.
    """

    scale: float
    skew: float

    def at(self, octaves: float) -> float:
        """Return the drop this many octaves from the peak."""
        return self.scale * float(_shape(np.array([octaves]), np.array([self.skew]))[0])


def _shape(u: Floats, skew: Floats) -> Floats:
    left, right = _SLOPE * np.exp(-skew / 2), _SLOPE * np.exp(skew / 2)
    return np.asarray(np.logaddexp(np.log(right) - left * u, np.log(left) + right * u) - np.log(left + right))


class PeakFit:
    """The fit of some curves.

    Args:
        curves: with three or more learning rates each that do not fail.
        unit_slope: whether the slope is 1 and there is no bend.

    Attributes:
        law: level, slope, exponent, bend and curve.
        inflation: by which factor points scatter more than their errors say; at least 1.
        misfit: the sum of squares that was minimised.
    """

    def __init__(self, curves: Sequence[Curve], *, unit_slope: bool) -> None:
        self._curves, self._unit_slope = list(curves), unit_slope
        self.log_size = float(np.mean([c.log_size for c in curves]))
        self.log_length = float(np.mean([c.log_length for c in curves]))
        self.longest = max(c.log_length for c in curves)
        lengths = np.array(grouped([c.log_length for c in curves]))
        self._length_G = np.array([int(np.argmin(np.abs(lengths - c.log_length))) for c in curves])
        self._num_lengths = len(lengths)
        self._away_G5 = np.array([self.distances(c.log_size, c.log_length) for c in curves])
        start = float(np.median([c.best - (c.log_size - self.log_size) for c in curves]))
        self._priors = np.array([start, *(mean for mean, _ in PRIORS.values())])
        self._spreads = np.array([_LEVEL_SPREAD, *(spread for _, spread in PRIORS.values())])
        self._theta = self._priors.copy()
        for _ in range(_NUM_WINDOWS):  # windows move with the peaks
            self._select()
            self._theta = self._solved(self._theta[None], self._values[None], 1.0, np.zeros((1, 6)))[0]
        self.law: Floats = self._laws(self._theta[None])[0]
        self.inflation, self.misfit = self._quality()

    @property
    def shape(self) -> Shape:
        """The shape of the curves at the longest length."""
        _, scales_DL = self._linear(self._theta[None], self._values[None])
        return Shape(scale=float(scales_DL[0, -1]), skew=float(np.clip(self._theta[5], -_MOST_SKEW, _MOST_SKEW)))

    def distances(self, log_size: float, log_length: float) -> Floats:
        """Return what the law is multiplied by at a batch size and length."""
        return distances(log_size - self.log_size, log_length - self.log_length, self.longest - self.log_length)

    def slope(self, laws: Floats) -> Floats:
        """Return the slope of the longest runs, for laws (..., 5)."""
        return np.asarray(laws[..., 1] + (self.longest - self.log_length) * laws[..., 3])

    def draws(self, rng: np.random.Generator) -> Floats:
        """Return laws fitted to values redrawn around the fitted curves, with priors redrawn too: (NUM_DRAWS, 5)."""
        misfit_P = self._linear(self._theta[None], self._values[None])[0][0]
        noise_DP = self.inflation * self._sigma * rng.normal(size=(NUM_DRAWS, len(misfit_P)))
        shifts_D6 = self._spreads * rng.normal(size=(NUM_DRAWS, 6))
        start_D6 = np.tile(self._theta, (NUM_DRAWS, 1))
        theta_D6 = self._solved(start_D6, self._values - misfit_P + noise_DP, self.inflation, shifts_D6)
        return self._blurred(self._laws(theta_D6), rng)

    def exponent(self, laws: Floats) -> Floats:
        """Return the exponent of the length at the longest runs, for laws (..., 5)."""
        return np.asarray(laws[..., 2] + 2 * (self.longest - self.log_length) * laws[..., 4])

    def _blurred(self, laws: Floats, rng: np.random.Generator) -> Floats:
        """Return laws with the error of a peak at both ends of the batch sizes and of the lengths."""
        for column in (1, 2):
            span = float(np.ptp(self._away_G5[:, column]))
            if span > 1.0 and not (column == 1 and self._unit_slope):
                laws[:, column] += rng.normal(scale=LEAST_ERROR / span, size=len(laws))
        return laws

    # -- the points -------------------------------------------------------------------------------------------------

    def _select(self) -> None:
        """Choose the points around every peak; at least the three best of a curve."""
        peaks = self._away_G5 @ self._laws(self._theta[None])[0]
        grid: list[int] = []
        columns: list[Floats] = []
        for g, c in enumerate(self._curves):
            near = (np.abs(c.log_rates - peaks[g]) <= WINDOW) & np.isfinite(c.means)
            if near.sum() < 3:
                near = np.isin(np.arange(len(c.means)), np.argsort(-c.means)[:3])
            below = c.means[near].max() - c.means[near]
            grid += [g] * int(near.sum())
            columns.append(np.stack([c.log_rates[near], c.means[near], c.errors[near] + _MISFIT * below]))
        self._x, self._values, self._sigma = np.concatenate(columns, axis=1)
        self._grid = np.array(grid)
        self._of_grid_PG: NDArray[np.float64] = np.eye(len(self._curves))[self._grid]
        self._of_length_PL: NDArray[np.float64] = np.eye(self._num_lengths)[self._length_G[self._grid]]

    # -- least squares ----------------------------------------------------------------------------------------------

    def _laws(self, theta_D6: Floats) -> Floats:
        laws = theta_D6[:, :5].copy()
        if self._unit_slope:
            laws[:, 1], laws[:, 3] = 1.0, 0.0
        return laws

    def _linear(self, theta_D6: Floats, values_DP: Floats) -> tuple[Floats, Floats]:
        """Return misfits, and the scale of every length, of the best heights and scales for given peaks and skew."""
        peaks_DG = self._laws(theta_D6) @ self._away_G5.T
        skew_D1 = np.clip(theta_D6[:, 5:], -_MOST_SKEW, _MOST_SKEW)
        drops_DP = _shape(self._x - peaks_DG[:, self._grid], skew_D1)
        weights = self._sigma**-2
        totals_G = weights @ self._of_grid_PG

        def centred(v_DP: Floats) -> Floats:
            return np.asarray(v_DP - ((weights * v_DP) @ self._of_grid_PG / totals_G)[:, self._grid])

        d, y = centred(drops_DP), centred(values_DP)
        top, bottom = (weights * d * y) @ self._of_length_PL, (weights * d * d) @ self._of_length_PL
        flat = bottom <= 1e-12 * (weights @ self._of_length_PL)  # all learning rates far from the peak
        scales_DL = np.where(flat, 0.0, np.maximum(0.0, -top / np.where(flat, 1.0, bottom)))
        return y + (scales_DL @ self._of_length_PL.T) * d, scales_DL

    def _residuals(self, theta_D6: Floats, values_DP: Floats, inflation: float, shifts_D6: Floats) -> Floats:
        misfit_DP, _ = self._linear(theta_D6, values_DP)
        priors_D6 = (theta_D6 - self._priors - shifts_D6) / self._spreads
        return np.concatenate([misfit_DP / (inflation * self._sigma), priors_D6], axis=1)

    def _solved(self, theta_D6: Floats, values_DP: Floats, inflation: float, shifts_D6: Floats) -> Floats:
        """Return least-squares solutions by damped Gauss-Newton steps, for all draws at once."""
        damping_D = np.full(len(theta_D6), 1e-2)
        residuals = self._residuals(theta_D6, values_DP, inflation, shifts_D6)
        for _ in range(_NUM_STEPS):
            jacobian = np.stack(
                [
                    (self._residuals(theta_D6 + _DIFFERENCE * e, values_DP, inflation, shifts_D6) - residuals)
                    / _DIFFERENCE
                    for e in np.eye(6)
                ],
                axis=2,
            )
            normal = np.einsum("dri,drj->dij", jacobian, jacobian)
            diagonal = np.einsum("dii->di", normal)
            damped = normal + damping_D[:, None, None] * np.eye(6) * diagonal[:, :, None]
            step = np.linalg.solve(damped, -np.einsum("dri,dr->di", jacobian, residuals)[:, :, None])[:, :, 0]
            tried = theta_D6 + np.clip(step, -1.0, 1.0)
            after = self._residuals(tried, values_DP, inflation, shifts_D6)
            better = (after**2).sum(axis=1) < (residuals**2).sum(axis=1)
            theta_D6 = np.where(better[:, None], tried, theta_D6)
            residuals = np.where(better[:, None], after, residuals)
            damping_D = np.clip(np.where(better, damping_D / 4, damping_D * 8), 1e-6, 1e6)
        return theta_D6

    def _quality(self) -> tuple[float, float]:
        """Return the inflation of errors, and the sum of squares."""
        residuals = self._residuals(self._theta[None], self._values[None], 1.0, np.zeros((1, 6)))[0]
        num_points = len(self._values)
        freedom = max(1, num_points - len(self._curves) - self._num_lengths - 6)
        chi = float(np.sum(residuals[:num_points] ** 2))
        return math.sqrt(max(1.0, chi / freedom)), float(np.sum(residuals**2))
