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

from isotherm.analysis.family import FamilyFit
from isotherm.analysis.regimes import Regimes
from isotherm.analysis.series import Series, TunedGrid
from isotherm.analysis.verdicts import Verdict
from isotherm.analysis.verdicts.margins import LEVEL, PROPORTIONAL, metric_margin
from isotherm.core.one_screen import one_screen
from isotherm.core.optimizers import has_temperature
from isotherm.core.rates import tidy
from isotherm.core.statistics import Interval, percentile_limits
from isotherm.core.temperature import bare_learning_rate
from isotherm.core.torch_code import torch_code
from isotherm.sweep.protocol import Estimate, Optimum

_DATA = {"validation": "the validation set", "test": "the test set", "train": "the training set"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """What to use for one budget and optimiser, and the evidence.

    `batch_size` is the largest that is shown to lose less than `margin` on the tuned quantity, compared with `best`;
    `best` itself where no larger one is. `undetermined` are larger batch sizes of which these results do not tell.
    `is_determined` is False where the numbers may still move: the optimum lies at the end of its grid, or runs are
    missing. `test_metric` and its interval are over `num_runs` runs: the confirming seeds where `is_confirmed`, else
    all seeds, the best k of n never. Optimisers other than SGD have no temperature, and their own learning rate stands
    for the effective one. `optimizer` names the optimiser, `code` are the lines of PyTorch that train like this.
    """

    sweep: str
    budget: str
    momentum: float
    batch_size: int
    effective_learning_rate: float
    interval: tuple[float, float]
    learning_rate: float
    temperature: float | None
    is_determined: bool
    best: int
    undetermined: tuple[int, ...]
    margin: float
    test_metric: float
    test_interval: tuple[float, float]
    num_runs: int
    is_confirmed: bool
    evidence: str
    optimizer: str
    code: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([self.words, *self.code])

    @property
    def words(self) -> str:
        """The answer and its evidence, without the lines to paste."""
        return f"{self.answer} {self.evidence}"

    @property
    def answer(self) -> str:
        """What to use, in one sentence."""
        low, high = self.interval
        so_far = "" if self.is_determined else "not determined; best so far "
        head = f"{self.sweep}, {self.budget}, {self.optimizer}: {so_far}batch size {self.batch_size}, learning rate "
        interval = f"interval [{low:.4g}, {high:.4g}]"
        if self.temperature is None:
            return f"{head}{self.learning_rate:.4g} ({interval})."
        return (
            f"{head}{self.learning_rate:.4g} (ε_eff = {self.effective_learning_rate:.4g}, {interval}; "
            f"temperature {self.temperature:.3g})."
        )

    def __repr__(self) -> str:
        return one_screen([f"{type(self).__name__}: {self}"])


def recommendation(series: Series, scaling: Verdict | None) -> Recommendation | None:
    """Return what to use for the budget and optimiser of a series; None if its curves cannot be fitted.

    Args:
        series: over batch sizes.
        scaling: the verdict on its proportional scaling, where there is one.
    """
    if series.fit is None:
        return None
    choices = [_Choice(series, series.fit, index) for index in range(len(series.grids))]
    best = max(choices, key=lambda choice: float(np.median(choice.goodness)))
    num_larger = sum(choice.size > best.size for choice in choices)
    larger = [_Rival(best, choice, level=LEVEL / num_larger) for choice in choices if choice.size > best.size]
    margin = _margin(series, series.fit)
    chosen = max((r.choice for r in larger if r.is_free(margin)), key=lambda choice: choice.size, default=best)
    rate, reported = chosen.optimum.effective_learning_rate, chosen.reported
    evidence = [
        *_pick_words(series, best, chosen, larger, margin),
        *_doubt_words(chosen, [choice for choice in choices if choice.size < chosen.size and choice.doubt]),
        *_test_words(series, chosen),
        _smaller_batches(series.law, scaling, chosen.size),
    ]
    return Recommendation(
        sweep=series.plan.name,
        budget=str(series.budget),
        momentum=series.momentum,
        batch_size=chosen.size,
        effective_learning_rate=rate,
        interval=chosen.interval,
        learning_rate=tidy(bare_learning_rate(rate, momentum=series.momentum)),
        temperature=rate / chosen.size if has_temperature(series.method) else None,
        is_determined=chosen.is_determined,
        best=best.size,
        undetermined=tuple(rival.choice.size for rival in larger if rival.is_open(margin)),
        margin=margin,
        test_metric=reported.mean_all,
        test_interval=(reported.interval_all.low, reported.interval_all.high),
        num_runs=len(reported.values_all),
        is_confirmed=chosen.grid.is_confirmed,
        evidence=" ".join(evidence),
        optimizer=series.method.label,
        code=_code(series, chosen),
    )


def _code(series: Series, chosen: _Choice) -> tuple[str, ...]:
    """Return the lines of PyTorch for the learning rate that was chosen, and the final one where there are several."""
    cell = chosen.grid.grid.cells[chosen.optimum.index]
    spec = series.plan.run_spec(
        chosen.grid.axes,
        effective_learning_rate=cell.effective_learning_rate,
        seed=series.plan.seeds[0],
        final_learning_rate=cell.final_learning_rate,
    )
    so_far = () if chosen.is_determined else ("# not determined; the best so far:",)
    return (*so_far, *torch_code(spec, unroll=series.plan.unroll))


class _Choice:
    """A batch size at its optimum; `goodness` are draws of the tuned quantity there, larger is better."""

    def __init__(self, series: Series, fit: FamilyFit, index: int) -> None:
        self.grid: TunedGrid = series.grids[index]
        assert self.grid.optimum is not None
        assert self.grid.test is not None
        self.size = self.grid.axes.batch_size
        self.optimum: Optimum = self.grid.optimum
        self.reported: Estimate = self.grid.test
        self.goodness = series.plan.direction.sign * fit.heights[:, index]
        self.num_runs = len(series.plan.seeds) + series.plan.num_confirm
        self._optima = fit.optima[:, index]

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the optimal learning rate between those tried; the one recommended lies inside."""
        low, high = (2.0**limit for limit in percentile_limits(self._optima))
        return min(low, self.optimum.effective_learning_rate), max(high, self.optimum.effective_learning_rate)

    @property
    def is_determined(self) -> bool:
        """Whether all runs are there, and the optimum is not the lowest or highest learning rate tried."""
        return self.grid.grid.is_complete and not self.optimum.lies_at_end_of(self.grid.grid)

    @property
    def doubt(self) -> str:
        """Why its numbers may still move; empty where nothing says so."""
        if not self.grid.grid.is_complete:
            return "its runs are not complete"
        return "its best learning rate lies at the end of its grid" if not self.is_determined else ""


class _Rival:
    """A larger batch size than the best one, and what it loses on the tuned quantity."""

    def __init__(self, best: _Choice, choice: _Choice, *, level: float) -> None:
        self.choice = choice
        losses = best.goodness - choice.goodness
        low, high = percentile_limits(losses, level=1 - level)
        self.loss = Interval(estimate=float(np.median(losses)), low=low, high=high)
        self._can_be_judged = best.is_determined and choice.is_determined and best.num_runs > 1

    def is_free(self, margin: float) -> bool:
        """Whether its loss is shown to lie inside the margin."""
        return self._can_be_judged and self.loss.high <= margin

    def is_open(self, margin: float) -> bool:
        """Whether it is neither shown to be free of cost nor to cost anything."""
        return not self._can_be_judged or (self.loss.high > margin and self.loss.low <= 0)


def _margin(series: Series, fit: FamilyFit) -> float:
    """Return the loss on the tuned quantity that is too small to matter."""
    bounds = series.plan.metric_bounds if series.plan.objective.endswith("_metric") else None
    return metric_margin(bounds, [fit.heights])


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
        listed = ", ".join(f"{r.choice.size} ({r.choice.doubt or _loss_text(series, r.loss)})" for r in open_)
        words.append(f"Whether larger ones lose less than {allowed} is not determined: B = {listed}.")
    if costly:
        listed = ", ".join(f"{r.choice.size} ({_loss_text(series, r.loss)})" for r in costly)
        words.append(f"Larger ones lose: B = {listed}.")
    return words


def _doubt_words(chosen: _Choice, smaller: Sequence[_Choice]) -> list[str]:
    """Say why the numbers may still move, and which smaller batch sizes may be better than found."""
    words = []
    if not chosen.grid.grid.is_complete:
        words.append("Runs are missing: the optimum may still move.")
    elif chosen.doubt:
        words.append("The best learning rate is the lowest or highest one tried: the optimum may lie beyond.")
    if smaller:
        listed = ", ".join(f"{choice.size} ({choice.doubt})" for choice in smaller)
        words.append(f"Smaller ones may be better than found: B = {listed}.")
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
    if chosen.grid.is_confirmed:
        assert chosen.grid.selected is not None
        selected = chosen.grid.selected.mean
        is_better = series.plan.metric_direction.sign * (selected - found.mean_all) > 0
        return [
            f"{mean} {limits} over {num} confirming seeds{diverged}; the seeds that chose the learning rate say "
            f"{_number(series, selected)}{unit}{', which the choice may flatter' if is_better else ''}."
        ]
    itself = " on the test set itself" if series.plan.tune_on == "test" else ""
    return [
        f"{mean} {limits} over all {num} seeds{diverged}. They also made the choice{itself}, which may flatter the "
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
    if fit is None or fit.at_end or fit.slope.low <= 0:
        return "These batch sizes do not determine how the learning rate scales with the batch size."
    slope = fit.slope
    found = f"B^{slope.estimate:.2f} [{slope.low:.2f}, {slope.high:.2f}]"
    if fit.kink is None or not fit.shows_kink:
        where = "No kink is shown; for smaller batches,"
    elif size > fit.kink.estimate:
        where = (
            f"This batch size lies above the kink at B ≈ {fit.kink.estimate:.0f}: keep the learning rate down to the "
            "kink; below it,"
        )
    else:
        where = f"Below B ≈ {fit.kink.estimate:.0f},"
    if not has_temperature(fit.method):
        return f"{where} scale the learning rate as ε ∝ {found}; {fit.power_words}."
    if slope.contains(1.0) and scaling is not None and scaling.holds:
        return f"{where} keep the temperature, ε_eff ∝ B (found: {found})."
    doubt = "whether that is proportional is not determined"
    if scaling is not None and scaling.holds:
        doubt = f"that counts as proportional, within [{PROPORTIONAL[0]:g}, {PROPORTIONAL[1]:g}]"
    elif not slope.contains(1.0) or (scaling is not None and scaling.holds is False):
        doubt = "the optimal temperature is not constant there"
    return f"{where} scale the learning rate as ε_eff ∝ {found}; {doubt}."
