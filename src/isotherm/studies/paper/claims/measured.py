"""Our numbers beside those of text and captions, in words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from isotherm.analysis.analysis import Analysis
from isotherm.studies.paper.claims.common import fit_of, interval_words, series_named
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
    """Return the budget with the best test metric."""

    def measured(analysis: Analysis) -> str | None:
        found = [s for s in series_named(analysis, name) if s.grids[0].test is not None]
        if not found:
            return None
        sign = found[0].plan.metric_direction.sign
        best = max(found, key=lambda s: sign * s.grids[0].test.mean)  # type: ignore[union-attr]
        return f"{best.budget} of {found[0].budget} to {found[-1].budget}"

    return measured


def best_batch_size() -> Measured:
    """Return the batch size with the best test metric at equal steps."""

    def measured(analysis: Analysis) -> str | None:
        found = series_named(analysis, EQUAL_STEPS)
        grids = [g for s in found for g in s.grids if g.test is not None]
        if not grids:
            return None
        sign = found[0].plan.metric_direction.sign
        best = max(grids, key=lambda g: sign * g.test.mean)  # type: ignore[union-attr]
        return f"B = {best.axes.batch_size:,} of {grids[0].axes.batch_size:,} to {grids[-1].axes.batch_size:,}"

    return measured
