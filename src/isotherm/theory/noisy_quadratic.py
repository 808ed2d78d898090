"""The noisy quadratic model: SGD and heavy ball on ½ Σ h_i θ_i², solved exactly, with the paper's schedule.

Dimension i has curvature h_i; the gradient of one example has variance c_i there, that of a batch c_i / B. One update
is u = m u + h θ + noise, θ = θ - ε u. It is linear, so the second moments E θ², E θu and E u² follow a linear
recursion, and many updates at one learning rate are a power of it: nothing is sampled.

Shapes: L learning rates, D dimensions.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from isotherm.core.multipliers import multipliers
from isotherm.core.run_schedule import NUM_DROPS, num_drops
from isotherm.core.schedule import Schedule
from isotherm.core.statistics import Floats
from isotherm.core.temperature import bare_learning_rate
from isotherm.errors import UserError
from isotherm.tasks.seeding import derive
from isotherm.theory.checks import need_all_positive, need_count, need_momentum

# A float32 parameter that has grown 2^24-fold has lost its initial value to rounding. By convention such a run has
# diverged, even if a later learning rate happens to hit ε h = 1 exactly and resets it.
SINGLE_PRECISION_GROWTH = 2.0**24

# Learning rates times dimensions computed at once: measured fastest, as everything stays in the cache.
_NUMBERS_AT_ONCE = 1 << 14


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SecondMoments:
    """E θ², E θu and E u², of equal shape; the last axis is the dimensions."""

    parameter: Floats
    cross: Floats
    velocity: Floats

    def __post_init__(self) -> None:
        for name in ("parameter", "cross", "velocity"):
            object.__setattr__(self, name, np.array(getattr(self, name), dtype=np.float64))

    @classmethod
    def at_rest(cls, parameter: ArrayLike) -> SecondMoments:
        """Return the moments before the first update, u = 0, for given E θ²."""
        still = np.zeros_like(parameter, dtype=np.float64)
        return cls(parameter=np.asarray(parameter), cross=still, velocity=still)

    @property
    def matrix(self) -> Floats:
        """The moments as matrices, shape (2, 2, ..., D)."""
        return np.array([[self.parameter, self.cross], [self.cross, self.velocity]])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NoisyQuadratic:
    """A quadratic loss with gradient noise, and the initial distribution of the parameters.

    Args:
        curvature: h_i, none negative, shape (D,).
        noise_variance: c_i, variance of the gradient of one example, shape (D,).
        initial: second moments before the first update, each of shape (D,).
    """

    curvature: Floats
    noise_variance: Floats
    initial: SecondMoments

    def __post_init__(self) -> None:
        for name in ("curvature", "noise_variance"):
            object.__setattr__(self, name, np.array(getattr(self, name), dtype=np.float64))
        start = self.initial
        moments = {"parameter": start.parameter, "cross": start.cross, "velocity": start.velocity}
        values = {"curvature": self.curvature, "noise_variance": self.noise_variance, **moments}
        if self.curvature.ndim != 1 or len({array.shape for array in values.values()}) != 1:
            shapes = ", ".join(f"{name} {array.shape}" for name, array in values.items())
            raise UserError(f"a noisy quadratic needs arrays of equal shape (D,); got {shapes}")
        for name, array in values.items():
            if not np.isfinite(array).all() or (name != "cross" and (array < 0).any()):
                raise UserError(
                    f"{name} of a noisy quadratic has entries that are negative or not finite; correct them"
                )
        if not (self.curvature > 0).any():
            raise UserError("a noisy quadratic needs at least one positive curvature")
        if (start.cross**2 > start.parameter * start.velocity * (1 + 1e-12)).any():
            raise UserError("initial second moments with (E θu)² above E θ² E u² are impossible; correct them")

    @classmethod
    def harmonic(cls, num_dimensions: int = 1000) -> NoisyQuadratic:
        """Return the model of Zhang et al. (2019): h_i = c_i = 1 / i, E θ_0² = 1.

        >>> NoisyQuadratic.harmonic(4).initial_loss  # ½ (1 + 1/2 + 1/3 + 1/4)
        1.0416666666666665
        """
        need_count("num_dimensions", num_dimensions)
        curvature = 1.0 / np.arange(1, num_dimensions + 1)
        initial = SecondMoments.at_rest(np.ones(num_dimensions))
        return cls(curvature=curvature, noise_variance=curvature, initial=initial)

    @property
    def largest_curvature(self) -> float:
        """h_max, which sets the critical learning rate."""
        return float(self.curvature.max())

    @property
    def initial_loss(self) -> float:
        """Expected loss before the first update."""
        return 0.5 * float(self.curvature @ self.initial.parameter)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Hyperparameters of a run except the learning rate."""

    batch_size: int
    num_steps: int
    momentum: float = 0.0
    schedule: Schedule = field(default_factory=Schedule)

    def __post_init__(self) -> None:
        need_count("batch_size", self.batch_size)
        need_count("num_steps", self.num_steps)
        need_momentum(self.momentum)
        if self.schedule.shape != "paper" or self.schedule.warmup is not None:
            raise UserError(
                f"the noisy quadratic is solved for the paper's schedule, not: {self.schedule}; use Schedule(gamma=...)"
            )


# The exact recursion.


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Propagator:
    """The effect of a number of updates on (θ, u): means are multiplied by `gain`, and noise is added.

    Second moments become gain · moments · gainᵀ + gradient variance · noise. Both have shape (2, 2, L, D).
    """

    gain: Floats
    noise: Floats

    def after(self, first: Propagator) -> Propagator:
        """Return the combined effect of `first` and then this one."""
        return Propagator(gain=_product(self.gain, first.gain), noise=self.carry(first.noise) + self.noise)

    def carry(self, moments: Floats) -> Floats:
        """Return earlier second moments after these updates, without their noise."""
        return _product(_product(self.gain, moments), self.gain.swapaxes(0, 1))

    def power(self, exponent: int) -> Propagator:
        """Return the effect of `exponent` repetitions, by repeated squaring."""
        if exponent < 1:
            raise ValueError(f"exponent={exponent} of a propagator is not a positive whole number")
        if exponent == 1:
            return self
        half = self.power(exponent // 2)
        whole = half.after(half)
        return self.after(whole) if exponent % 2 else whole


def one_update(learning_rate: Floats, *, curvature: Floats, momentum: float) -> Propagator:
    """Return one update u = m u + hθ + noise, θ = θ - ε u for bare learning rates (L, 1) and curvatures (D,)."""
    rate_LD, curvature_LD = np.broadcast_arrays(learning_rate, curvature)
    one_LD = np.ones_like(rate_LD)
    return Propagator(
        gain=np.array([[1.0 - rate_LD * curvature_LD, -rate_LD * momentum], [curvature_LD, momentum * one_LD]]),
        noise=np.array([[rate_LD**2, -rate_LD], [-rate_LD, one_LD]]),
    )


def _product(first: Floats, second: Floats) -> Floats:
    """Return the products of 2 x 2 matrices whose entries are the first two axes."""
    return np.asarray(first[:, 0, None] * second[None, 0] + first[:, 1, None] * second[None, 1])


def constant_blocks(num_steps: int) -> list[tuple[int, int]]:
    """Return the schedule as (number of drops so far, number of updates), without empty blocks.

    >>> constant_blocks(8)
    [(0, 4), (1, 1), (2, 1), (3, 1), (4, 1)]
    >>> constant_blocks(9765)[0], constant_blocks(9765)[1], constant_blocks(9765)[10]
    ((0, 4882), (1, 488), (10, 491))
    """

    def drops(step: int) -> int:
        return num_drops(step, num_steps=num_steps)

    starts = [bisect_left(range(num_steps), number, key=drops) for number in range(NUM_DROPS + 1)] + [num_steps]
    return [(n, starts[n + 1] - starts[n]) for n in range(NUM_DROPS + 1) if starts[n + 1] > starts[n]]


def propagate(
    curvature: Floats, setting: Setting, *, effective_learning_rates: Sequence[float] | Floats
) -> Iterator[Propagator]:
    """Yield the effect of a run up to the end of each constant learning rate; the last is that of the whole run.

    Values too large for a float come out infinite or NaN.
    """
    rates_L = checked_rates(effective_learning_rates)
    gamma_L = np.array([setting.schedule.gamma_from(initial=float(rate)) for rate in rates_L])
    so_far: Propagator | None = None
    for drops, length in constant_blocks(setting.num_steps):
        bare_L1 = (rates_L * gamma_L**-drops * (1.0 - setting.momentum))[:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            block = one_update(bare_L1, curvature=curvature, momentum=setting.momentum).power(length)
            so_far = block if so_far is None else block.after(so_far)
        yield so_far


def final_second_moments(
    model: NoisyQuadratic,
    setting: Setting,
    *,
    effective_learning_rates: Sequence[float] | Floats,
    growth_limit: float = math.inf,
) -> SecondMoments:
    """Return the exact second moments after a run, each of shape (L, D); infinite if it diverged.

    A run has diverged if a value is too large for a float, or if at the end of any constant learning rate the mean of
    some dimension had grown more than `growth_limit`-fold, whatever happened later.
    """
    if not growth_limit > 1.0:
        raise UserError(f"growth_limit={growth_limit} is not above 1; use 2^24 (single precision) or infinity (exact)")
    growth = np.zeros(1)
    for run in propagate(model.curvature, setting, effective_learning_rates=effective_learning_rates):
        growth = np.maximum(growth, np.abs(run.gain[0, 0]))
    variance = model.noise_variance / setting.batch_size
    with np.errstate(over="ignore", invalid="ignore"):
        moments = run.carry(model.initial.matrix[:, :, None]) + variance * run.noise
    finite = np.isfinite(moments).all(axis=(0, 1)) & (growth <= growth_limit)
    # At the minimum and without noise, a dimension stays there at any learning rate.
    still = (model.initial.parameter == 0) & (model.initial.velocity == 0) & (variance == 0)
    moments = np.where(still, 0.0, np.where(finite, moments, np.inf))
    return SecondMoments(parameter=moments[0, 0], cross=moments[0, 1], velocity=moments[1, 1])


def final_losses(
    model: NoisyQuadratic,
    setting: Setting,
    *,
    effective_learning_rates: Sequence[float] | Floats,
    growth_limit: float = SINGLE_PRECISION_GROWTH,
) -> Floats:
    """Return the expected loss after a run, shape (L,); infinite if it diverged, see `final_second_moments`.

    >>> setting = Setting(batch_size=64, num_steps=200)
    >>> losses = final_losses(NoisyQuadratic.harmonic(10), setting, effective_learning_rates=[0.25, 0.5, 4.0])
    >>> losses.round(4).tolist()
    [0.0015, 0.0013, inf]
    """
    rates_L = checked_rates(effective_learning_rates)
    num_parts = math.ceil(len(rates_L) * len(model.curvature) / _NUMBERS_AT_ONCE)
    losses = []
    for part_L in np.array_split(rates_L, min(num_parts, len(rates_L))):
        moments = final_second_moments(model, setting, effective_learning_rates=part_L, growth_limit=growth_limit)
        # Flat dimensions cost nothing, even if infinitely far out.
        with np.errstate(over="ignore", invalid="ignore"):
            parts_LD = np.where(model.curvature > 0, 0.5 * model.curvature * moments.parameter, 0.0)
            losses.append(np.sum(parts_LD, axis=1))
    return np.concatenate(losses)


def simulate_final_losses(
    model: NoisyQuadratic, setting: Setting, *, effective_learning_rate: float, num_runs: int, seed: int
) -> Floats:
    """Return final losses of simulated runs with Gaussian noise, shape (num_runs,); infinite if too large.

    θ and u start Gaussian with the model's second moments.
    """
    need_all_positive("effective_learning_rate", effective_learning_rate)
    need_count("num_runs", num_runs)
    generator = np.random.default_rng(
        derive(seed, f"noisy quadratic, B = {setting.batch_size}, m = {setting.momentum}")
    )
    shape = (num_runs, len(model.curvature))
    start = model.initial
    slope = np.divide(start.cross, start.parameter, out=np.zeros_like(start.cross), where=start.parameter > 0)
    rest = np.sqrt(np.maximum(start.velocity - slope * start.cross, 0.0))
    theta = np.sqrt(start.parameter) * generator.standard_normal(shape)
    velocity = slope * theta + rest * generator.standard_normal(shape)
    deviation = np.sqrt(model.noise_variance / setting.batch_size)
    bare = bare_learning_rate(effective_learning_rate, momentum=setting.momentum)
    gamma = setting.schedule.gamma_from(initial=effective_learning_rate)
    with np.errstate(over="ignore", invalid="ignore"):
        for multiplier in multipliers(setting.num_steps, gamma=gamma):
            velocity *= setting.momentum
            velocity += model.curvature * theta + deviation * generator.standard_normal(shape)
            theta -= bare * multiplier * velocity
        losses = 0.5 * theta**2 @ model.curvature
    return np.where(np.isfinite(losses), losses, np.inf)


def checked_rates(effective_learning_rates: Sequence[float] | Floats) -> Floats:
    """Return learning rates as an array, all positive."""
    rates = np.array(effective_learning_rates, dtype=np.float64)
    if rates.ndim != 1 or not len(rates):
        raise UserError(f"effective learning rates must be a non-empty list, not {effective_learning_rates!r}")
    need_all_positive("effective_learning_rates", rates)
    return rates
