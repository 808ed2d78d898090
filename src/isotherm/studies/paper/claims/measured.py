"""Our numbers beside those of text and captions, in words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from isotherm.analysis.analysis import Analysis
from isotherm.analysis.verdicts.margins import metric_margin
from isotherm.core.multipliers import multipliers
from isotherm.studies.paper.claims.common import HALF_STEP, fit_of, interval_words, series_named
from isotherm.studies.paper.claims.two_rates import BestRates, best_rates
from isotherm.studies.paper.settings import EQUAL_EPOCHS, EQUAL_STEPS

Measured = Callable[[Analysis], str | None]


def kink(momentum: float) -> Measured:
    """Return the batch size at the kink, with its interval."""

    def measured(analysis: Analysis) -> str | None:
        found = series_named(analysis, EQUAL_EPOCHS, momentum)
        law = found[0].law if found else None
        if law is None:
            return None
        if law.kink is None or not law.shows_kink:
            return law.unseen_words
        return f"{law.kink.estimate:.0f} [{law.kink.low:.0f}, {law.kink.high:.0f}]"

    return measured


def slope(momentum: float, *, name: str = EQUAL_EPOCHS) -> Measured:
    """Return the power of B with which the optimum rises."""

    def measured(analysis: Analysis) -> str | None:
        found = series_named(analysis, name, momentum)
        law = found[0].law if found else None
        return None if law is None else f"{law.slope.estimate:.2f} [{law.slope.low:.2f}, {law.slope.high:.2f}]"

    return measured


def fall_of_rate(name: str, quantity: str) -> Measured:
    """Return by which factor the optimum falls from the first budget to the last."""

    def measured(analysis: Analysis) -> str | None:
        found = series_named(analysis, name)
        fits = [fit_of(s, quantity) for s in (found[:1] + found[-1:])]
        if len(fits) < 2 or fits[0] is None or fits[1] is None:
            return None
        falls = fits[0].optima[:, 0] - np.random.default_rng(8).permutation(fits[1].optima[:, 0])
        return f"×{interval_words(2.0**falls)} from {found[0].budget} to {found[-1].budget}"

    return measured


def best_budget(name: str) -> Measured:
    """Return the budget with the best test metric, of those whose runs are all there."""

    def measured(analysis: Analysis) -> str | None:
        found = [s for s in series_named(analysis, name) if s.grids[0].grid.is_complete]
        found = [s for s in found if s.grids[0].test is not None]
        if len(found) < 2:
            return None
        sign = found[0].plan.metric_direction.sign
        best = max(found, key=lambda s: sign * s.grids[0].test.mean)  # type: ignore[union-attr]
        rest = [str(budget) for budget in found[0].plan.budgets if budget not in {s.budget for s in found}]
        return f"{best.budget} of {found[0].budget} to {found[-1].budget}{_without(rest)}"

    return measured


def best_batch_size() -> Measured:
    """Return the batch size with the best test metric at equal steps, of those whose runs are all there."""

    def measured(analysis: Analysis) -> str | None:
        found = series_named(analysis, EQUAL_STEPS)
        grids = [g for s in found for g in s.grids if g.test is not None and g.grid.is_complete]
        if len(grids) < 2:
            return None
        sign = found[0].plan.metric_direction.sign
        best = max(grids, key=lambda g: sign * g.test.mean)  # type: ignore[union-attr]
        sizes = [g.axes.batch_size for g in grids]
        rest = [f"B = {size:,}" for size in found[0].plan.batch_sizes if size not in sizes]
        return f"B = {best.axes.batch_size:,} of {sizes[0]:,} to {sizes[-1]:,}{_without(rest)}"

    return measured


def budget(name: str) -> Measured:
    """Return the one budget of a sweep."""

    def measured(analysis: Analysis) -> str | None:
        (found,) = next(plan.budgets for plan in analysis.plan.sweeps if plan.name == name)
        return f"{found.amount:,}"

    return measured


def metric_at(batch_size: int | None) -> Measured:
    """Return the test metric at equal steps at a batch size; at the best one without."""

    def measured(analysis: Analysis) -> str | None:
        grids = [g for s in series_named(analysis, EQUAL_STEPS) for g in s.grids if g.test is not None]
        grids = [g for g in grids if g.grid.is_complete and batch_size in (None, g.axes.batch_size)]
        if not grids or (batch_size is None and len(grids) < 2):
            return None
        s = series_named(analysis, EQUAL_STEPS)[0]
        sign = s.plan.metric_direction.sign
        best = max(s.scale * g.test.mean * sign for g in grids if g.test is not None) * sign
        return f"{best:.1f}{' %' if s.is_percent else ''}"

    return measured


def hold_of_schedule(num_steps: int) -> str:
    """Return the number of updates at the first learning rate, of so many, with γ = 2.

    >>> hold_of_schedule(9765)
    '4,882'
    """
    return f"{int((multipliers(num_steps, gamma=2.0) == 1.0).sum()):,}"


def drop_of_schedule(num_steps: int) -> str:
    """Return the number of updates from the first drop to the second.

    >>> drop_of_schedule(9765)
    '488'
    """
    return f"{int((multipliers(num_steps, gamma=2.0) == 0.5).sum()):,}"


def _without(names: list[str]) -> str:
    return f"; unfinished: {', '.join(names)}" if names else ""


# -- two learning rates, tuned apart ----------------------------------------------------------------------------------


def saturation() -> Measured:
    """Return the first budget from which on the test metric stays within the margin of the last."""

    def measured(analysis: Analysis) -> str | None:
        rates = best_rates(analysis, "test")
        if rates is None or len(rates) < 2:
            return None
        losses = [float(np.median(r.loss)) for r in rates]
        bounds = analysis.plan.sweeps[0].metric_bounds
        margin = metric_margin(bounds, [np.array([[loss] for loss in losses])])
        return _stays_from(rates, [abs(loss - losses[-1]) <= margin for loss in losses])

    return measured


def constant_initial() -> Measured:
    """Return the first budget from which on the best initial learning rate stays within half an octave of the last."""

    def measured(analysis: Analysis) -> str | None:
        rates = best_rates(analysis, "test")
        if rates is None or len(rates) < 2:
            return None
        places = [float(np.median(r.initial)) for r in rates]
        return _stays_from(rates, [abs(place - places[-1]) <= HALF_STEP for place in places])

    return measured


def decay_factor() -> Measured:
    """Return γ at the best pair of learning rates on the test set, at the largest budget: (ε_0/ε_f)^(1/10)."""

    def measured(analysis: Analysis) -> str | None:
        rates = best_rates(analysis, "test")
        if rates is None:
            return None
        octaves = rates[-1].initial - np.random.default_rng(9).permutation(rates[-1].final)
        return f"{interval_words(2.0 ** (octaves / 10))} is best at {rates[-1].budget}"

    return measured


def _stays_from(rates: list[BestRates], stays: list[bool]) -> str:
    first = next(k for k in range(len(rates)) if all(stays[k:]))
    if first == len(rates) - 1:
        return f"not up to {rates[-1].budget}"
    return f"{rates[first].budget} of {rates[0].budget} to {rates[-1].budget}"
