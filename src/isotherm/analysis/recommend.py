"""One answer from a sweep: the largest batch that loses nothing, and the learning rate to use with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from isotherm.analysis.regimes import Regimes
from isotherm.analysis.series import Series
from isotherm.core.rates import tidy
from isotherm.core.temperature import bare_learning_rate
from isotherm.sweep.protocol import Estimate, Optimum


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """What to use for one budget and momentum, and what it rests on.

    `batch_size` is the largest whose mean test metric lies within one standard deviation, over seeds, of the best.
    """

    budget: str
    momentum: float
    batch_size: int
    effective_learning_rate: float
    interval: tuple[float, float]
    learning_rate: float
    temperature: float
    test_metric: float
    evidence: str

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.budget}, momentum {self.momentum:g}: batch size {self.batch_size}, learning rate "
            f"{self.learning_rate:.4g} (effective {self.effective_learning_rate:.4g}, within [{low:.4g}, {high:.4g}]); "
            f"temperature {self.temperature:.3g}. {self.evidence}"
        )


def recommend(series: Series) -> Recommendation | None:
    """Return what to use for the budget and momentum of a series; None where no test metric is finite."""
    sign = series.plan.metric_direction.sign
    known = {
        grid.axes.batch_size: grid.test
        for grid in series.grids
        if grid.test is not None and math.isfinite(grid.test.mean_all)
    }
    if not known:
        return None
    best = max(known, key=lambda b: sign * known[b].mean_all)
    limit = sign * known[best].mean_all - known[best].standard_deviation_all
    size = max(b for b in known if sign * known[b].mean_all >= limit)
    chosen = next(grid for grid in series.grids if grid.axes.batch_size == size)
    optimum = chosen.optimum
    assert optimum is not None
    momentum = series.momentum
    return Recommendation(
        budget=str(series.budget),
        momentum=momentum,
        batch_size=size,
        effective_learning_rate=optimum.effective_learning_rate,
        interval=optimum.interval,
        learning_rate=tidy(bare_learning_rate(optimum.effective_learning_rate, momentum=momentum)),
        temperature=optimum.effective_learning_rate / size,
        test_metric=known[size].mean,
        evidence=" ".join([_evidence(known, best, size), *_edge_words(optimum), _smaller_batches(series.law, size)]),
    )


def _evidence(known: Mapping[int, Estimate], best: int, size: int) -> str:
    here, top = known[size], known[best]
    n = len(top.values_all)
    if n < 2:
        return f"Rests on a single seed: test metric {top.mean_all:.4g} at B = {best}; run more seeds."
    spread = f"{top.mean_all:.4g} ± {top.standard_deviation_all:.2g}"
    return f"Mean test metric {here.mean_all:.4g}; the best is {spread} at B = {best} (n = {n})."


def _edge_words(optimum: Optimum) -> list[str]:
    return [f"The optimum touches the {optimum.edge}, so it may lie further out."] if optimum.at_edge else []


def _smaller_batches(fit: Regimes | None, size: int) -> str:
    """Say what to do with a smaller batch, as far as the sweep can tell."""
    if fit is None or not fit.shows_kink or fit.kink is None:
        return "How the learning rate scales with the batch is not determined by these batch sizes."
    kink, slope = f"B ≈ {fit.kink.estimate:.0f}", fit.slope
    found = f"B^{slope.estimate:.2f} [{slope.low:.2f}, {slope.high:.2f}]"
    if size > fit.kink.estimate:
        where = f"This batch lies above the kink at {kink}: down to it keep the learning rate, below it"
    else:
        where = f"Below {kink}"
    if slope.contains(1.0):
        return f"{where} keep the temperature, ε_eff ∝ B (found: {found})."
    return f"{where} scale the learning rate as ε_eff ∝ {found}; the optimal temperature is not constant there."
