"""Broken lines through the optima of a curve family: how they rise with the batch size, and where the rise ends.

Line and shape of the peaks are fitted together: a line is as likely as the curves are with their optima on it, but for
some scatter. Draws come from an ensemble of Markov chains (differential evolution), started at lines through the free
optima. Logarithms are to base 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from isotherm.analysis import peak
from isotherm.analysis.chains import walk
from isotherm.analysis.curves import Curves
from isotherm.core.statistics import Floats, fit_broken_lines, log_sum_exp

# Columns after those of the shape: slope, kink, plateau, and the natural logarithm of the scatter in octaves.
SLOPE, KINK, PLATEAU, LOG_SCATTER = (peak.NUM_PARAMETERS + k for k in range(4))
NUM_PARAMETERS = peak.NUM_PARAMETERS + 4

LEAST_SLOPE, MOST_SLOPE = -1.5, 3.0
BEYOND = 2.0  # octaves beyond the largest batch size in which a kink may lie unseen
MIDDLE_SCATTER, SPREAD_SCATTER = math.log(0.02), 1.0
LEAST_SCATTER, MOST_SCATTER = math.log(0.002), math.log(1.0)
# Three points that integrate over the scatter of an optimum.
POINTS = math.sqrt(3.0) * np.array([-1.0, 0.0, 1.0])
LOG_WEIGHTS = np.log([1 / 6, 2 / 3, 1 / 6])

NUM_CHAINS, NUM_ROUNDS, NUM_IGNORED = 100, 140, 60


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LineDraws:
    """Broken lines drawn from their posterior; `kinks` are NaN where none is seen. Shapes (num_draws,).

    `plateaus` are the values of the lines at the largest batch size.
    """

    slopes: Floats
    kinks: Floats
    plateaus: Floats


def draw_lines(
    curves: Curves,
    log_sizes: Floats,
    log_prior: Callable[[Floats], Floats],
    generator: np.random.Generator,
    *,
    shapes: Floats,
    log_optima: Floats,
) -> LineDraws:
    """Return broken lines drawn from their posterior, as many as there are shapes.

    Args:
        curves: of the family.
        log_sizes: log2 of the batch sizes.
        log_prior: of shapes.
        generator: of random numbers.
        shapes: drawn from their posterior with free optima, shape (num_draws, 5).
        log_optima: these optima, shape (num_draws, num_sizes).
    """
    target = _Target(curves, log_sizes, log_prior)
    some = generator.choice(len(shapes), size=NUM_CHAINS, replace=False)
    states = _starts(log_sizes, shapes[some], log_optima[some], generator)
    drawn = walk(target, states, generator, num_rounds=NUM_ROUNDS, num_ignored=NUM_IGNORED)
    drawn = drawn[generator.choice(len(drawn), size=len(shapes), replace=len(drawn) < len(shapes))]
    slopes, corners = drawn[:, SLOPE], drawn[:, KINK]
    return LineDraws(
        slopes=slopes,
        kinks=np.where(corners < log_sizes[-1], corners, np.nan),
        plateaus=drawn[:, PLATEAU] + slopes * np.minimum(0.0, log_sizes[-1] - corners),
    )


class _Target:
    """The posterior density of line and shape."""

    def __init__(self, curves: Curves, log_sizes: Floats, log_prior: Callable[[Floats], Floats]) -> None:
        self._curves, self._x, self._log_prior = curves, log_sizes, log_prior

    def __call__(self, states: Floats) -> Floats:
        """Return log densities of states, shape (num_states, 9)."""
        shapes, (slopes, kinks, plateaus, log_scatters) = states[:, : peak.NUM_PARAMETERS], states[:, SLOPE:].T
        inside = (slopes >= LEAST_SLOPE) & (slopes <= MOST_SLOPE)
        inside &= (kinks >= self._x[1]) & (kinks <= self._x[-1] + BEYOND)
        inside &= (log_scatters >= LEAST_SCATTER) & (log_scatters <= MOST_SCATTER)
        prior = self._log_prior(shapes) - 0.5 * ((log_scatters - MIDDLE_SCATTER) / SPREAD_SCATTER) ** 2
        inside &= np.isfinite(prior)
        found = np.full(len(states), -np.inf)
        rises = np.minimum(0.0, self._x - kinks[inside, None])
        lines = plateaus[inside, None] + slopes[inside, None] * rises
        optima = lines[:, None] + np.exp(log_scatters[inside])[:, None, None] * POINTS[:, None]
        fitted = peak.fit_heights(self._curves, shapes[inside][:, None], optima).log_likelihoods
        found[inside] = prior[inside] + log_sum_exp(fitted + LOG_WEIGHTS[:, None], axis=1).sum(axis=-1)
        return found


def _starts(log_sizes: Floats, shapes: Floats, log_optima: Floats, generator: np.random.Generator) -> Floats:
    """Return lines through drawn optima, with the shapes these belong to."""
    num_chains = len(shapes)
    slopes, kinks, plateaus = fit_broken_lines(log_sizes.tolist(), log_optima)
    seen = ~np.isnan(kinks)
    corners = np.where(seen, kinks, log_sizes[-1] + BEYOND * generator.random(num_chains))
    levels = np.where(seen, plateaus, plateaus + slopes * (corners - log_sizes[-1]))
    scatters = MIDDLE_SCATTER + 0.5 * generator.standard_normal(num_chains)
    lines = np.stack([np.clip(slopes, LEAST_SLOPE, MOST_SLOPE), corners, levels, scatters], axis=1)
    return np.concatenate([shapes, lines], axis=1)
