"""What the sweeps of a plan can see: `power.py` with the plan's numbers, and the noise of stored runs.

Verdicts widen differences of heights by `HEIGHT_WIDENING`; the noise of a difference is widened by as much here.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from isotherm.analysis import power as formulas
from isotherm.analysis.family import LEAST_FOR_LINE
from isotherm.analysis.noise import RunNoise, measured_noise
from isotherm.analysis.series import same_but_momentum
from isotherm.analysis.verdicts.draws import HEIGHT_WIDENING
from isotherm.analysis.verdicts.margins import LEVEL, POWER, PROPORTIONAL
from isotherm.analysis.verdicts.remedies import LEAST_SEEDS
from isotherm.core.budget import BudgetUnit
from isotherm.core.checks import require_positive
from isotherm.core.one_screen import one_screen
from isotherm.core.optimizers import has_temperature, heavy_ball_momentum
from isotherm.sweep.plan import StudyPlan, SweepPlan
from isotherm.sweep.protocol import Grid
from isotherm.sweep.results import Results, StudyResults


class Planned(Protocol):
    """A `Sweep` or a `Study`."""

    def plan(self) -> SweepPlan | StudyPlan:
        """Return it without tensors."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class SlopePower:
    """What can be seen of the slope of log2 ε* over log2 B, if all batch sizes lie below the kink.

    `grid_error` is how far the slope can be off where an optimum is known only to the nearest learning rate.
    `smallest_deviation` from 1 is seen with 80 % power, and `power_of_proportional` is the chance that a slope of 1 is
    shown to lie inside [0.8, 1.25]; both are None where the noise or the curvature around the optimum is not known.
    """

    grid_error: float
    smallest_deviation: float | None
    power_of_proportional: float | None

    @property
    def decides_proportional(self) -> bool | None:
        """Whether a slope of 1 is shown to be proportional with 80 % power; None where that is not known."""
        if self.power_of_proportional is None:
            return None
        return self.power_of_proportional >= POWER

    def __str__(self) -> str:
        low, high = PROPORTIONAL
        if self.power_of_proportional is not None:
            return (
                "If all batch sizes lie below the kink and the metric is a parabola around its optimum, a slope of 1 "
                f"is shown to lie inside [{low:g}, {high:g}] with a chance of {_chance(self.power_of_proportional)}."
            )
        enough = "enough" if self.grid_error <= 1 - low else "too coarse"
        return (
            "What can be seen of the slope is not known before a grid of this task is stored; optima rounded to the "
            f"nearest learning rate leave it an error of up to {self.grid_error:.2f}, {enough} for [{low:g}, {high:g}]."
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPower:
    """What one sweep can see at 80 % power.

    Differences are in `unit`: points for an accuracy, else the metric's own; standard deviations between seeds where
    the noise is not known. `level` is 0.05 over the number of comparisons with the best batch size and over the number
    of verdicts of the study. `hidden` is what an optimum halfway between two learning rates can hide, at the smallest
    `ratio` to which the grid is refined: None where the curvature is not known. `seeds_needed` at each optimum,
    confirming ones included, show the `wanted` difference; None where no number does.
    """

    sweep: str
    num_seeds: int
    num_confirm: int
    num_comparisons: int
    num_verdicts: int
    level: float
    unit: str
    noise: RunNoise | None
    smallest_difference: float | None
    ratio: float
    is_refined: bool
    hidden: float | None
    slope: SlopePower | None
    wanted: float | None
    seeds_needed: int | None

    @property
    def words(self) -> list[str]:
        """What the numbers rest on, a sentence each."""
        return [self.noise_words, self.level_words, *self.wanted_words, self.grid_words, *self.slope_words]

    @property
    def noise_words(self) -> str:
        """Where the noise comes from."""
        noise = self.noise
        if noise is None:
            return (
                "No stored run of this task tells the noise: differences are in standard deviations between seeds. "
                "Give --noise, or run a part of the study first."
            )
        if not noise.is_measured:
            return "The noise between seeds is as given."
        return (
            f"The noise is the standard deviation between seeds near the optimum, from {noise.num_runs:,} stored runs "
            f"of this task in {noise.num_cells} cells."
        )

    @property
    def level_words(self) -> str:
        """What is compared, and at which level."""
        too_few = f" Fewer than {LEAST_SEEDS} seeds give no verdict." if self.num_seeds < LEAST_SEEDS else ""
        return (
            f"A difference is one between two batch sizes on the test set, at level {LEVEL:g} / "
            f"({_count(self.num_comparisons, 'comparison')} with the best × {_count(self.num_verdicts, 'verdict')}), "
            f"its error widened by {HEIGHT_WIDENING:g} as in the verdicts.{too_few}"
        )

    @property
    def wanted_words(self) -> list[str]:
        """How many seeds the wished-for difference needs; empty where none was named."""
        if self.wanted is None:
            return []
        difference = f"A difference of {self.wanted:g}"
        if self.noise is None:
            return [f"{difference}: how many seeds it needs depends on the noise between seeds. Give --noise."]
        if self.hidden is not None and self.wanted <= self.hidden:
            return [
                f"{difference} {self.unit} is no more than the grid hides: seeds alone do not show it; refine it first."
            ]
        if self.seeds_needed is None:
            return [f"{difference} {self.unit} needs more than {formulas.MANY_SEEDS:,} seeds."]
        now = self.num_seeds + self.num_confirm
        confirm = ", confirming ones included" if self.num_confirm else ""
        return [
            f"{difference} {self.unit} needs {_count(self.seeds_needed, 'seed')} at each optimum{confirm}; now {now}."
        ]

    @property
    def grid_words(self) -> str:
        """What the spacing of the learning rates can hide."""
        refined = ", where the grid is refined that far," if self.is_refined else ""
        spaced = f"Learning rates a factor of {self.ratio:.3g} apart{refined}"
        if self.hidden is None:
            return (
                f"{spaced} hide a part of the best value where it lies between them, however many seeds are run; how "
                "much is not known before a grid of this task is stored."
            )
        return (
            f"{spaced} hide up to {self.hidden:.2g} {self.unit} where the best value lies halfway between them, "
            "however many seeds are run."
        )

    @property
    def slope_words(self) -> list[str]:
        """What can be seen of the slope; empty below three batch sizes."""
        return [] if self.slope is None else [str(self.slope)]

    def __str__(self) -> str:
        return f"{self.sweep}: {' '.join(self.words)}"

    def __repr__(self) -> str:
        return one_screen([f"{type(self).__name__}: {self}"])


def power(
    plan: SweepPlan | StudyPlan | Planned,
    *,
    results: Results | StudyResults | None = None,
    noise: float | None = None,
    difference: float | None = None,
) -> list[SweepPower]:
    """Return what every sweep of a plan can see, and how many seeds a difference would need.

    Args:
        plan: a sweep, a study, or the plan of either.
        results: earlier runs; those of the same task tell the noise, and how the metric falls off around its optimum.
        noise: the standard deviation between seeds where no run tells it, in points for an accuracy.
        difference: a difference between two batch sizes to be seen, in the same unit.
    """
    for name, value in (("noise", noise), ("difference", difference)):
        if value is not None:
            require_positive(name, value)
    whole = plan if isinstance(plan, SweepPlan | StudyPlan) else plan.plan()
    sweeps = (whole,) if isinstance(whole, SweepPlan) else whole.sweeps
    known = [] if results is None else results.as_study().sweeps if isinstance(results, Results) else results.sweeps
    num_verdicts = _num_verdicts(sweeps)
    return [_sweep_power(p, known, num_verdicts=num_verdicts, given=noise, wanted=difference) for p in sweeps]


def _sweep_power(
    plan: SweepPlan, known: Sequence[Results], *, num_verdicts: int, given: float | None, wanted: float | None
) -> SweepPower:
    scale = 100.0 if plan.metric == "accuracy" else 1.0
    grids = [g for one in known if _same_task(one.plan, plan) for g in one.grids()]
    noise = _with_given(
        measured_noise(grids, "test_metric", plan.metric_direction), None if given is None else given / scale
    )
    num_comparisons = max(1, len(plan.batch_sizes) - 1)
    level = LEVEL / (num_comparisons * num_verdicts)
    spacing = _log_spacing(plan)
    is_refined = plan.resolution == "adaptive" and spacing > math.log2(plan.smallest_ratio)
    finest = math.log2(plan.smallest_ratio) if is_refined else spacing
    hidden = None
    if noise is not None and noise.curvature is not None:
        hidden = scale * formulas.hidden_between(finest, curvature=noise.curvature)
    spread = HEIGHT_WIDENING * (1.0 if noise is None else scale * _effective(noise, plan, spacing))
    seeds = None
    if wanted is not None and noise is not None and (hidden is None or wanted > hidden):
        seeds = formulas.seeds_for_difference(wanted, noise=spread, level=level)
    num_runs = len(plan.seeds) + plan.num_confirm
    smallest = formulas.smallest_difference(noise=spread, num_seeds=num_runs, level=level)
    return SweepPower(
        sweep=plan.name,
        num_seeds=len(plan.seeds),
        num_confirm=plan.num_confirm,
        num_comparisons=num_comparisons,
        num_verdicts=num_verdicts,
        level=level,
        unit=_unit(plan, noise),
        noise=noise,
        smallest_difference=smallest if len(plan.batch_sizes) > 1 else None,
        ratio=2.0**finest,
        is_refined=is_refined,
        hidden=hidden,
        slope=_slope_power(plan, grids, noise, level=LEVEL / num_verdicts),
        wanted=wanted,
        seeds_needed=seeds,
    )


def _slope_power(plan: SweepPlan, grids: Sequence[Grid], noise: RunNoise | None, *, level: float) -> SlopePower | None:
    """Return what can be seen of the slope; None below three batch sizes."""
    if len(plan.batch_sizes) < LEAST_FOR_LINE:
        return None
    spacing = _log_spacing(plan)
    found = SlopePower(
        grid_error=formulas.slope_from_grid(plan.batch_sizes, log_spacing=spacing),
        smallest_deviation=None,
        power_of_proportional=None,
    )
    tuned = noise if plan.objective == "test_metric" else measured_noise(grids, plan.objective, plan.direction)
    if tuned is None or not tuned.curvature or len(plan.seeds) < 2:
        return found
    error = formulas.slope_error(
        plan.batch_sizes,
        error=formulas.error_of_optimum(
            noise=tuned.standard_deviation,
            curvature=tuned.curvature,
            num_seeds=len(plan.seeds),
            log_spacing=spacing,
            num_rates=_num_rates(plan),
            correlation=tuned.correlation,
        ),
    )
    return dataclasses.replace(
        found,
        smallest_deviation=formulas.smallest_slope_deviation(error, level=level),
        power_of_proportional=formulas.power_of_proportionality(error, within=PROPORTIONAL, level=level),
    )


def _chance(value: float) -> str:
    """Return a chance in percent, never 0 or 100.

    >>> _chance(0.9996), _chance(0.834), _chance(0.0)
    ('more than 99 %', '83 %', 'less than 1 %')
    """
    return "more than 99 %" if value > 0.99 else "less than 1 %" if value < 0.01 else f"{100 * value:.0f} %"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _same_task(plan: SweepPlan, other: SweepPlan) -> bool:
    return (plan.data_id, plan.model_id, plan.metric) == (other.data_id, other.model_id, other.metric)


def _with_given(measured: RunNoise | None, given: float | None) -> RunNoise | None:
    """Return what runs tell, with the noise given by hand where there is one."""
    if given is None:
        return measured
    if measured is None:
        return RunNoise(standard_deviation=given)
    return RunNoise(standard_deviation=given, correlation=measured.correlation, curvature=measured.curvature)


def _effective(noise: RunNoise, plan: SweepPlan, spacing: float) -> float:
    return formulas.effective_noise(
        noise.standard_deviation,
        num_seeds=len(plan.seeds),
        num_confirm=plan.num_confirm,
        log_spacing=spacing,
        num_rates=_num_rates(plan),
        correlation=noise.correlation,
    )


def _unit(plan: SweepPlan, noise: RunNoise | None) -> str:
    if noise is None:
        return "standard deviations between seeds"
    return "points" if plan.metric == "accuracy" else plan.metric.replace("_", " ")


def _log_spacing(plan: SweepPlan) -> float:
    """Return the typical step of the learning rates, in octaves; one where there is a single rate."""
    steps = [step for rates in plan.learning_rates for step in np.diff(np.log2(rates))]
    return float(np.median(steps)) if steps else 1.0


def _num_rates(plan: SweepPlan) -> int:
    return min(len(rates) for rates in plan.learning_rates)


def _num_verdicts(plans: Sequence[SweepPlan]) -> int:
    """Return how many verdicts a study makes if it has seeds enough and every optimum lies inside; at least one."""
    judged = [plan for plan in plans if len(plan.batch_sizes) >= LEAST_FOR_LINE]
    series = [(plan, budget, method) for plan in judged for budget in plan.budgets for method in plan.methods]
    pairs = [
        (a, b)
        for a, b in itertools.product(series, series)
        if heavy_ball_momentum(a[2]) == 0
        and (heavy_ball_momentum(b[2]) or 0) > 0
        and a[1] == b[1]
        and same_but_momentum(a[0], b[0])
    ]
    at_steps = sum(budget.unit is BudgetUnit.STEPS for _, budget, _ in series)
    roots = sum(not has_temperature(method) for _, _, method in series)
    return max(1, 2 * len(series) + roots + 2 * len(pairs) + 2 * at_steps)
