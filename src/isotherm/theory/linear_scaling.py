"""Linear scaling, the paper's appendix A: n steps at (ε, B) against one at (nε, nB), exactly and measured.

Everything is for one eigendirection: curvature h, per-example gradient variance c. Shapes: M trajectories (paths).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from isotherm.core.statistics import Floats
from isotherm.errors import UserError
from isotherm.theory.checks import need_positive
from isotherm.theory.noise_kinds import Draw
from isotherm.theory.sde import quadratic_gradients, sgd


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearScaling:
    """Mean (over θ_0) and variance of θ after n small steps, and after the one large step that should replace them.

    Args:
        num_merged: n.
        reach: n ε h, which appendix A needs to be much smaller than 2.
        mean_small: over θ_0, of n steps at (ε, B).
        mean_large: over θ_0, of one step at (nε, nB).
        variance_small: of n steps.
        variance_large: of one step.
    """

    num_merged: int
    reach: float
    mean_small: float
    mean_large: float
    variance_small: float
    variance_large: float

    @property
    def mean_error(self) -> float:
        """Error of the large step's mean, relative to the small steps'."""
        return self.mean_large / self.mean_small - 1

    @property
    def variance_error(self) -> float:
        """Error of the large step's variance, relative to the small steps'."""
        return self.variance_large / self.variance_small - 1

    @property
    def leading_mean_error(self) -> float:
        """Leading order of the mean's error: -(1 - 1/n) (nεh)² / 2."""
        return -(1 - 1 / self.num_merged) * self.reach**2 / 2

    @property
    def leading_variance_error(self) -> float:
        """Leading order of the variance's error: (1 - 1/n) nεh."""
        return (1 - 1 / self.num_merged) * self.reach


def linear_scaling(
    num_merged: int, *, curvature: float, noise_variance: float, learning_rate: float, batch_size: int
) -> LinearScaling:
    """Return what n steps at (ε, B) and one at (nε, nB) do to one eigendirection, exactly.

    Needs εh < 1, so that the small steps themselves do not overshoot.

    >>> pair = linear_scaling(2, curvature=1.0, noise_variance=1.0, learning_rate=0.5, batch_size=1)
    >>> pair.mean_small, pair.mean_large, pair.variance_small, pair.variance_large
    (0.25, 0.0, 0.3125, 0.5)
    """
    decay = _checked_merge(num_merged, curvature, learning_rate)
    need_positive("noise_variance", noise_variance)
    need_positive("batch_size", batch_size)
    one_step = learning_rate**2 * noise_variance / batch_size
    return LinearScaling(
        num_merged=num_merged,
        reach=num_merged * learning_rate * curvature,
        mean_small=decay**num_merged,
        mean_large=1 - num_merged * learning_rate * curvature,
        variance_small=one_step * math.expm1(2 * num_merged * math.log(decay)) / math.expm1(2 * math.log(decay)),
        variance_large=num_merged * one_step,
    )


def measure_linear_scaling(
    draw: Draw,
    num_merged: int,
    *,
    curvature: float,
    learning_rate: float,
    batch_size: int,
    num_paths: int,
    generator: np.random.Generator,
) -> LinearScaling:
    """Return the same from simulated SGD; both sides see the same examples, as they would in one epoch."""
    if num_paths < 2:
        raise UserError(f"num_paths={num_paths} is too few to estimate a variance; use 2 or more")
    small_M1, large_M1 = merged_states(
        draw,
        num_merged,
        curvature=curvature,
        learning_rate=learning_rate,
        batch_size=batch_size,
        start_M1=np.ones((num_paths, 1)),
        generator=generator,
    )
    return LinearScaling(
        num_merged=num_merged,
        reach=num_merged * learning_rate * curvature,
        mean_small=float(small_M1.mean()),
        mean_large=float(large_M1.mean()),
        variance_small=float(small_M1.var(ddof=1)),
        variance_large=float(large_M1.var(ddof=1)),
    )


def merged_states(
    draw: Draw,
    num_merged: int,
    *,
    curvature: float,
    learning_rate: float,
    batch_size: int,
    start_M1: Floats,
    generator: np.random.Generator,
) -> tuple[Floats, Floats]:
    """Return the states after n steps at (ε, B) and one at (nε, nB) over the same examples, shape (M, 1) each."""
    _checked_merge(num_merged, curvature, learning_rate)
    batches = [draw(generator, (len(start_M1), batch_size, 1)) for _ in range(num_merged)]
    gradients = quadratic_gradients(curvature)
    *_, small_M1 = sgd(gradients, start_M1, learning_rate=learning_rate, batches=batches)
    whole = [np.concatenate(batches, axis=1)]
    (large_M1,) = sgd(gradients, start_M1, learning_rate=num_merged * learning_rate, batches=whole)
    return small_M1, large_M1


def _checked_merge(num_merged: int, curvature: float, learning_rate: float) -> float:
    """Return 1 - εh, or raise a UserError if the steps cannot be merged."""
    if num_merged < 1:
        raise UserError(f"num_merged={num_merged} is not a positive number of steps; give 1 or more")
    need_positive("curvature", curvature)
    need_positive("learning_rate", learning_rate)
    if learning_rate * curvature >= 1:
        raise UserError(
            f"learning_rate={learning_rate} times curvature={curvature} is not below 1; merging assumes "
            f"small steps, so use a learning rate below {1 / curvature:g}"
        )
    return 1 - learning_rate * curvature
