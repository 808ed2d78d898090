"""One answer from a sweep: the largest batch size that costs nothing, and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from isotherm.analysis.regimes import Regimes
from isotherm.analysis.series import Series
from isotherm.analysis.verdicts import Verdict
from isotherm.core.rates import tidy
from isotherm.core.temperature import bare_learning_rate
from isotherm.sweep.protocol import Edge, Estimate, Optimum


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """What to use for one budget and momentum, and the evidence.

    `batch_size` is the largest whose mean test metric is within one standard deviation over seeds of the best.
    """

    sweep: str
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
        optimiser = "SGD" if self.momentum == 0 else f"momentum {self.momentum:g}"
        return (
            f"{self.sweep}, {self.budget}, {optimiser}: batch size {self.batch_size}, learning rate "
            f"{self.learning_rate:.4g} (ε_eff = {self.effective_learning_rate:.4g}, interval [{low:.4g}, {high:.4g}]; "
            f"temperature {self.temperature:.3g}). {self.evidence}"
        )


def recommendation(series: Series, scaling: Verdict | None) -> Recommendation | None:
    """Return what to use for the budget and momentum of a series; None if no test metric is finite.

    Args:
        series: over batch sizes.
        scaling: the verdict on its proportional scaling, where there is one.
    """
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
    evidence = [_evidence(series, known, best=best, size=size), *_edge_words(optimum)]
    momentum = series.momentum
    return Recommendation(
        sweep=series.plan.name,
        budget=str(series.budget),
        momentum=momentum,
        batch_size=size,
        effective_learning_rate=optimum.effective_learning_rate,
        interval=optimum.interval,
        learning_rate=tidy(bare_learning_rate(optimum.effective_learning_rate, momentum=momentum)),
        temperature=optimum.effective_learning_rate / size,
        test_metric=known[size].mean,
        evidence=" ".join([*evidence, _smaller_batches(series.law, scaling, size)]),
    )


def _evidence(series: Series, known: Mapping[int, Estimate], *, best: int, size: int) -> str:
    here, top = known[size], known[best]
    metric, unit = series.plan.metric.replace("_", " "), " %" if series.is_percent else ""
    if len(top.values_all) < 2:
        return f"From a single seed: test {metric} {_number(series, top.mean_all)}{unit} at B = {best}; run more seeds."
    spread = f"{_number(series, top.mean_all)} ± {series.scale * top.standard_deviation_all:.2g}{unit}"
    found = f"Mean test {metric} {_number(series, here.mean_all)}{unit}"
    return f"{found}; the best is {spread} at B = {best} (n = {len(top.values_all)})."


def _number(series: Series, value: float) -> str:
    return f"{series.scale * value:.1f}" if series.is_percent else f"{value:.4g}"


def _edge_words(optimum: Optimum) -> list[str]:
    if optimum.edge is Edge.INCOMPLETE:
        return ["Runs are missing: the optimum may still move."]
    if optimum.at_edge:
        return [f"Its interval touches the {optimum.edge} of the grid: the optimum may lie beyond."]
    return []


def _smaller_batches(fit: Regimes | None, scaling: Verdict | None, size: int) -> str:
    """Say how to scale the learning rate for smaller batches, as far as the sweep can tell."""
    if fit is None or not fit.shows_kink or fit.kink is None:
        return "These batch sizes do not determine how the learning rate scales with the batch size."
    kink, slope = f"B ≈ {fit.kink.estimate:.0f}", fit.slope
    found = f"B^{slope.estimate:.2f} [{slope.low:.2f}, {slope.high:.2f}]"
    if size > fit.kink.estimate:
        where = f"This batch size lies above the kink at {kink}: keep the learning rate down to the kink; below it,"
    else:
        where = f"Below {kink},"
    proportional = slope.contains(1.0) if scaling is None else scaling.holds
    if proportional:
        return f"{where} keep the temperature, ε_eff ∝ B (found: {found})."
    doubt = "whether that is proportional is not determined"
    if proportional is not None:
        doubt = "the optimal temperature is not constant there"
    return f"{where} scale the learning rate as ε_eff ∝ {found}; {doubt}."
