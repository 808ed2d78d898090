"""One answer from a sweep: the largest batch size that is shown to cost nothing, and its learning rate.

Learning rate and batch size are chosen on the quantity that was tuned, never on the test set unless that was tuned on.
A batch size costs nothing where the interval of its loss lies inside a margin that was fixed beforehand: more noise
widens the interval, so that noisier runs pass less easily.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isotherm.analysis.regimes import Regimes
from isotherm.analysis.series import Series, TunedGrid
from isotherm.analysis.verdicts import Verdict
from isotherm.core.rates import tidy
from isotherm.core.statistics import Interval, welch_interval
from isotherm.core.temperature import bare_learning_rate
from isotherm.sweep.protocol import Edge, Estimate, Optimum

LEVEL = 0.05  # the chance that any batch size is wrongly said to cost nothing

_DATA = {"validation": "the validation set", "test": "the test set", "train": "the training set"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """What to use for one budget and momentum, and the evidence.

    `batch_size` is the largest that is shown to lose less than `margin` on the tuned quantity, compared with `best`;
    `best` itself where no larger one is. `undetermined` are larger batch sizes of which these results do not tell.
    `is_determined` is False where the numbers may still move: the optimum lies at the end of its grid, or runs are
    missing. `test_metric` and its interval are over `num_runs` runs: the confirming seeds where `is_confirmed`, else
    all seeds, the best k of n never.
    """

    sweep: str
    budget: str
    momentum: float
    batch_size: int
    effective_learning_rate: float
    interval: tuple[float, float]
    learning_rate: float
    temperature: float
    is_determined: bool
    best: int
    undetermined: tuple[int, ...]
    margin: float
    test_metric: float
    test_interval: tuple[float, float]
    num_runs: int
    is_confirmed: bool
    evidence: str

    def __str__(self) -> str:
        low, high = self.interval
        optimiser = "SGD" if self.momentum == 0 else f"momentum {self.momentum:g}"
        so_far = "" if self.is_determined else "not determined; best so far "
        return (
            f"{self.sweep}, {self.budget}, {optimiser}: {so_far}batch size {self.batch_size}, learning rate "
            f"{self.learning_rate:.4g} (ε_eff = {self.effective_learning_rate:.4g}, interval [{low:.4g}, {high:.4g}]; "
            f"temperature {self.temperature:.3g}). {self.evidence}"
        )


def recommendation(series: Series, scaling: Verdict | None) -> Recommendation | None:
    """Return what to use for the budget and momentum of a series; None if no tuned quantity is finite.

    Args:
        series: over batch sizes.
        scaling: the verdict on its proportional scaling, where there is one.
    """
    known = [_Choice(series, grid) for grid in series.grids if grid.test is not None]
    known = [choice for choice in known if math.isfinite(choice.goodness)]
    if not known:
        return None
    best = max(known, key=lambda choice: choice.goodness)
    larger = [_Rival(best, choice, level=LEVEL) for choice in known if choice.size > best.size]
    larger = [_Rival(best, rival.choice, level=LEVEL / len(larger)) for rival in larger]
    margin = _margin(series, known)
    free = [rival.choice for rival in larger if best.is_determined and rival.is_free(margin)]
    chosen = max(free, key=lambda choice: choice.size, default=best)
    rate, reported = chosen.optimum.effective_learning_rate, chosen.reported
    evidence = [
        *_pick_words(series, best, chosen, larger, margin),
        *chosen.doubts,
        *_test_words(series, chosen),
        _smaller_batches(series.law, scaling, chosen.size),
    ]
    return Recommendation(
        sweep=series.plan.name,
        budget=str(series.budget),
        momentum=series.momentum,
        batch_size=chosen.size,
        effective_learning_rate=rate,
        interval=chosen.optimum.interval,
        learning_rate=tidy(bare_learning_rate(rate, momentum=series.momentum)),
        temperature=rate / chosen.size,
        is_determined=chosen.is_determined,
        best=best.size,
        undetermined=tuple(rival.choice.size for rival in larger if rival.is_open(margin)),
        margin=margin,
        test_metric=reported.mean_all,
        test_interval=(reported.interval_all.low, reported.interval_all.high),
        num_runs=len(reported.values_all),
        is_confirmed=chosen.is_confirmed,
        evidence=" ".join(evidence),
    )


class _Choice:
    """A batch size at its optimum, by the tuned quantity of all its seeds."""

    def __init__(self, series: Series, grid: TunedGrid) -> None:
        assert grid.optimum is not None
        assert grid.test is not None
        self.size = grid.axes.batch_size
        self.optimum: Optimum = grid.optimum
        self.reported: Estimate = grid.test
        self.sign = series.plan.direction.sign
        self.tuned = grid.optimum.estimate
        self.goodness = self.sign * self.tuned.mean_all
        self.is_confirmed, self.selected = grid.is_confirmed, grid.selected
        self._at_end = grid.optimum.lies_at_end_of(grid.grid)

    @property
    def is_determined(self) -> bool:
        """Whether all runs are there, and the optimum is not the lowest or highest learning rate tried."""
        return self.optimum.edge is not Edge.INCOMPLETE and not self._at_end

    @property
    def doubts(self) -> list[str]:
        """Why its numbers may still move; empty where nothing says so."""
        if self.optimum.edge is Edge.INCOMPLETE:
            return ["Runs are missing: the optimum may still move."]
        if self._at_end:
            return ["The best learning rate is the lowest or highest one tried: the optimum may lie beyond."]
        if self.optimum.at_edge:
            return [f"Its interval touches the {self.optimum.edge} of the grid: the optimum may lie beyond."]
        return []


class _Rival:
    """A larger batch size than the best one, and what it loses on the tuned quantity."""

    def __init__(self, best: _Choice, choice: _Choice, *, level: float) -> None:
        self.choice = choice
        ours, theirs = ([c.sign * value for value in c.tuned.values_all] for c in (best, choice))
        self.loss: Interval = welch_interval(ours, theirs, level=1 - level)

    def is_free(self, margin: float) -> bool:
        """Whether its loss is shown to lie inside the margin."""
        return self.choice.is_determined and self.loss.high <= margin

    def is_open(self, margin: float) -> bool:
        """Whether it is neither shown to be free of cost nor to cost anything."""
        return not self.is_free(margin) and (self.loss.low <= 0 or not self.choice.is_determined)


def _margin(series: Series, known: Sequence[_Choice]) -> float:
    """Return the loss on the tuned quantity that is too small to matter."""
    if series.is_percent and series.plan.objective.endswith("_metric"):
        return 0.005
    return 0.01 * float(np.median([abs(choice.goodness) for choice in known]))


def _pick_words(series: Series, best: _Choice, chosen: _Choice, larger: Sequence[_Rival], margin: float) -> list[str]:
    """Say why this batch size, and what is known about the larger ones."""
    where, allowed = _DATA[series.plan.tune_on], _amount(series, margin)
    if chosen is not best:
        (loss,) = (rival.loss for rival in larger if rival.choice is chosen)
        pick = (
            f"Chosen on {where}: the largest batch size shown to lose less than {allowed} there, "
            f"{_loss_text(series, loss)} compared with the best, B = {best.size}."
        )
    else:
        pick = f"Chosen on {where}, where this batch size has the best mean."
    open_ = [r for r in larger if r.choice.size > chosen.size and r.is_open(margin)]
    costly = [r for r in larger if r.choice.size > chosen.size and not r.is_open(margin)]
    words = [pick]
    if open_:
        listed = ", ".join(f"{r.choice.size} ({_loss_text(series, r.loss)})" for r in open_)
        words.append(f"Whether larger ones lose less than {allowed} is not determined: B = {listed}.")
    if costly:
        listed = ", ".join(f"{r.choice.size} ({_loss_text(series, r.loss)})" for r in costly)
        words.append(f"Larger ones lose: B = {listed}.")
    return words


def _test_words(series: Series, chosen: _Choice) -> list[str]:
    """Say what the test set says, over which runs, and what may flatter that."""
    found = chosen.reported
    metric, unit = series.plan.metric.replace("_", " "), " %" if series.is_percent else ""
    if not math.isfinite(found.mean_all):
        return []
    mean, num = f"Test {metric} {_number(series, found.mean_all)}{unit}", len(found.values_all)
    if num < 2:
        return [f"{mean}, from a single seed: run more seeds."]
    limits = f"[{_number(series, found.interval_all.low)}, {_number(series, found.interval_all.high)}]"
    diverged = f"; {found.num_diverged} more diverged" if found.num_diverged else ""
    if chosen.is_confirmed:
        assert chosen.selected is not None
        flattered = f"{_number(series, chosen.selected.mean)}{unit}"
        return [
            f"{mean} {limits} over {num} confirming seeds{diverged}; the seeds that chose the learning rate say "
            f"{flattered}, which the choice flatters."
        ]
    itself = " on the test set itself" if series.plan.tune_on == "test" else ""
    return [
        f"{mean} {limits} over all {num} seeds{diverged}. They also made the choice{itself}, which flatters the "
        "number; confirming seeds (num_confirm) would remove that."
    ]


def _amount(series: Series, value: float) -> str:
    """Return a difference of the tuned quantity with its unit."""
    if series.is_percent and series.plan.objective.endswith("_metric"):
        return f"{100 * value:.2g} points"
    return f"{value:.2g}"


def _loss_text(series: Series, loss: Interval) -> str:
    is_points = series.is_percent and series.plan.objective.endswith("_metric")
    values = (loss.estimate, loss.low, loss.high)
    estimate, low, high = (f"{100 * value:.1f}" if is_points else f"{value:.2g}" for value in values)
    return f"{estimate} [{low}, {high}]"


def _number(series: Series, value: float) -> str:
    return f"{series.scale * value:.1f}" if series.is_percent else f"{value:.4g}"


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
    if slope.contains(1.0) and scaling is not None and scaling.holds:
        return f"{where} keep the temperature, ε_eff ∝ B (found: {found})."
    doubt = "whether that is proportional is not determined"
    if not slope.contains(1.0) or (scaling is not None and scaling.holds is False):
        doubt = "the optimal temperature is not constant there"
    return f"{where} scale the learning rate as ε_eff ∝ {found}; {doubt}."
