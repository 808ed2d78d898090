"""The best learning rate of the noisy quadratic model at every batch size, and the batch size at its kink.

Optimal learning rates against batch size show the paper's two regimes without a network: ε_eff ∝ B up to the critical
learning rate, 2 / h_max for SGD and (1 + m) / (1 - m) times as much for heavy ball in terms of ε_eff.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isotherm.core.run_schedule import NUM_DROPS
from isotherm.core.statistics import Floats, fit_broken_line
from isotherm.core.temperature import temperature
from isotherm.errors import UserError
from isotherm.theory.closed_forms import critical_effective_learning_rate, kink_batch_size
from isotherm.theory.noisy_quadratic import (
    SINGLE_PRECISION_GROWTH,
    NoisyQuadratic,
    Setting,
    checked_rates,
    final_losses,
)


class GridEdge(enum.StrEnum):
    """Where the best learning rate lies within the grid."""

    INTERIOR = "interior"
    LOWER = "lower edge"
    UPPER = "upper edge"


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimum:
    """The learning rate of a grid with the lowest expected final loss."""

    setting: Setting
    effective_learning_rate: float
    loss: float
    edge: GridEdge

    @property
    def temperature(self) -> float:
        """T = ε_eff / B."""
        return temperature(self.effective_learning_rate, self.setting.batch_size)

    @property
    def at_edge(self) -> bool:
        """Whether the best learning rate is the grid's first or last, so that the true optimum may lie beyond."""
        return self.edge is not GridEdge.INTERIOR


def learning_rate_grid(model: NoisyQuadratic, *, momentum: float = 0.0) -> Floats:
    """Return powers of √2 from 16 octaves below the critical effective learning rate to three above it.

    >>> [float(rate) for rate in learning_rate_grid(NoisyQuadratic.harmonic(3))[[0, -3, -2, -1]]]
    [3.0517578125e-05, 8.0, 11.313708498984761, 16.0]
    """
    critical = critical_effective_learning_rate(model.largest_curvature, momentum=momentum)
    top = math.floor(2 * math.log2(critical) + 1e-9) + 6
    return np.asarray(2.0 ** (np.arange(top - 38, top + 1) / 2))


def find_optimum(
    model: NoisyQuadratic,
    setting: Setting,
    *,
    effective_learning_rates: Sequence[float] | Floats | None = None,
    growth_limit: float = SINGLE_PRECISION_GROWTH,
) -> Optimum:
    """Return the best learning rate of a grid, by default `learning_rate_grid`, and whether it lies at the edge."""
    given = effective_learning_rates
    rates_L = learning_rate_grid(model, momentum=setting.momentum) if given is None else checked_rates(given)
    if len(rates_L) < 3 or (np.diff(rates_L) <= 0).any():
        raise UserError(f"a grid needs at least three rising learning rates; got {rates_L.tolist()}")
    losses = final_losses(model, setting, effective_learning_rates=rates_L, growth_limit=growth_limit)
    best = int(np.argmin(losses))
    if math.isinf(losses[best]):
        raise UserError(
            f"no effective learning rate from {rates_L[0]:g} to {rates_L[-1]:g} is stable over "
            f"{setting.num_steps} steps with momentum={setting.momentum:g}; extend the grid downwards"
        )
    return Optimum(
        setting=setting,
        effective_learning_rate=float(rates_L[best]),
        loss=float(losses[best]),
        edge={0: GridEdge.LOWER, len(rates_L) - 1: GridEdge.UPPER}.get(best, GridEdge.INTERIOR),
    )


def optima_at_constant_examples(
    model: NoisyQuadratic,
    batch_sizes: Sequence[int],
    *,
    num_examples: int,
    momentum: float = 0.0,
    effective_learning_rates: Sequence[float] | Floats | None = None,
) -> list[Optimum]:
    """Return the optimum at every batch size if every run sees the same number of examples."""
    settings = [constant_examples(num_examples, batch_size=size, momentum=momentum) for size in batch_sizes]
    return [find_optimum(model, setting, effective_learning_rates=effective_learning_rates) for setting in settings]


def optima_at_constant_steps(
    model: NoisyQuadratic,
    batch_sizes: Sequence[int],
    *,
    num_steps: int,
    momentum: float = 0.0,
    effective_learning_rates: Sequence[float] | Floats | None = None,
) -> list[Optimum]:
    """Return the optimum at every batch size if every run takes the same number of updates."""
    settings = [Setting(batch_size=size, num_steps=num_steps, momentum=momentum) for size in batch_sizes]
    return [find_optimum(model, setting, effective_learning_rates=effective_learning_rates) for setting in settings]


def constant_examples(num_examples: int, *, batch_size: int, momentum: float = 0.0) -> Setting:
    """Return the setting that sees this many examples, without an incomplete last batch.

    >>> constant_examples(1000, batch_size=64).num_steps
    15
    """
    if not 1 <= batch_size <= num_examples:
        raise UserError(f"batch_size={batch_size} is larger than {num_examples} examples; use 1 to {num_examples}")
    return Setting(batch_size=batch_size, num_steps=num_examples // batch_size, momentum=momentum)


def predicted_kink(model: NoisyQuadratic, *, num_examples: int, momentum: float = 0.0) -> float:
    """Return the batch size where ε_eff ∝ B, from the optimum at a batch of one, meets the critical learning rate.

    The optimum is found on the default grid and then to an eighth of an octave. A result near or below 1 means that
    curvature dominates at every batch size.
    """
    setting = constant_examples(num_examples, batch_size=1, momentum=momentum)
    coarse = find_optimum(model, setting)
    nearby = coarse.effective_learning_rate * 2.0 ** (np.arange(-8, 9) / 8)
    fine = find_optimum(model, setting, effective_learning_rates=nearby)
    if coarse.at_edge or fine.at_edge:
        raise UserError(
            f"the optimum at a batch of one lies outside the grid after {num_examples} examples; use fewer examples"
        )
    return kink_batch_size(fine.temperature, largest_curvature=model.largest_curvature, momentum=momentum)


def fitted_kink(optima: Sequence[Optimum]) -> float | None:
    """Return the batch size at the kink of a broken line through optima at rising batch sizes; None without a kink.

    Runs too short for every drop of the schedule are left out: they do not end at the lowest learning rate.
    """
    whole = [optimum for optimum in optima if optimum.setting.num_steps >= 2 * NUM_DROPS]
    if len(whole) < 3:
        raise UserError(
            f"{len(whole)} runs of {2 * NUM_DROPS} updates or more are too few for a broken line; use three or more"
        )
    log_sizes = [math.log2(optimum.setting.batch_size) for optimum in whole]
    kink = fit_broken_line(log_sizes, [math.log2(optimum.effective_learning_rate) for optimum in whole]).kink
    return None if kink is None else 2.0**kink
