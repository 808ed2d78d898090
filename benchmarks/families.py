"""Synthetic curve families whose answer is known: no training, but real plans, grids and results.

A family is a kind of sweep: how the optimal learning rate rises with the batch size, how the metric falls off around
it, and what the sweep tries. `simulate` draws one such sweep, with a kink and a position of the optima between the
learning rates of its own, and lets the protocol run it: extensions and refinements are those of
`isotherm.sweep.protocol`. Curves are exactly of their shape, or stray from it as those of real networks do.
Logarithms are to base 2.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from isotherm.core.budget import Budget
from isotherm.core.rates import tidy
from isotherm.core.records import Direction, Outcome, RunResult, RunSpec
from isotherm.core.schedule import Schedule
from isotherm.sweep.plan import StudyPlan, SweepPlan
from isotherm.sweep.protocol import Grid
from isotherm.sweep.results import StudyResults
from isotherm.sweep.rounds import missing_runs

SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
Shape = Literal["parabola", "4x", "10x", "cliff"]

CURVATURE = 0.03  # metric lost one octave below the optimum
CLIFF_RISE = 0.05  # metric gained per octave on the way to the edge of a cliff
TRAIN_CURVATURE = 0.3  # relative rise of the training loss one octave from its optimum
TRAIN_NOISE = 0.03  # relative standard deviation of the training loss over seeds
STEEPNESS: dict[Shape, float] = {"parabola": 1.0, "4x": 4.0, "10x": 10.0, "cliff": math.inf}  # above the optimum
DIVERGENCE_STARTS, DIVERGENCE_WIDTH = 0.75, 0.1  # octaves above the optimum at which half of the seeds diverge
EDGE_SPREAD = 0.05  # octaves by which single seeds survive the edge of a cliff
MOMENTUM_REACH = 1.5  # octaves by which momentum moves the kink

# How far curves stray: rounded from the posterior medians of the four families of curves in results/quickstart and
# results/noisy_labels. There optima lie 0.010 to 0.024 octaves off their line, and means 0.014 to 0.076 of how far they
# are below the best one off their curve. Per octave of the batch size the logarithm of the steepness below the optimum
# moves by -0.06 to 0.08, that of its ratio above to below by -0.59 to 0.60. Powers are 1.1 to 1.7 below, 1.1 to
# 2.2 above.
STRAY_OPTIMA = 0.015
STRAY_MEANS = 0.04
DRIFT, DRIFT_OF_RATIO = 0.06, 0.5  # standard deviations over sweeps
POWERS_BELOW, POWERS_ABOVE, LEAST_POWER = (1.5, 0.25), (1.7, 0.4), 1.0  # means and standard deviations over sweeps


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """A kind of sweep, and the truth behind it.

    The metric is an accuracy. `peak` is its height at the optimum with plain SGD; momentum adds `gain_below` up to the
    kink of plain SGD and `gain_above` beyond, and the largest batch size loses `fall`. With `num_test` accuracies are
    multiples of 1/num_test and at most 1. `train_shift` is by how many octaves the training loss has its optimum below
    that of the metric; `train_rise` is its relative rise at the largest batch size. Without a kink the optimum rises up
    to the largest batch size. With `strays` curves are not quite of their shape. With `has_validation` learning rates
    are chosen on validation data, whose noise is their own but for a seed's luck. `plan` changes further fields of the
    plan, by name.
    """

    name: str = ""
    slope: float = 1.0
    has_kink: bool = True
    shape: Shape = "parabola"
    num_points: int = 5
    ratio: float = 2.0
    num_seeds: int = 5
    noise: float = 0.01
    has_diverging_seeds: bool = False
    num_test: int | None = None
    peak: float = 0.7
    momenta: tuple[float, ...] = (0.0,)
    gain_below: float = 0.0
    gain_above: float = 0.0
    fall: float = 0.0
    train_shift: float = 0.0
    train_rise: float = 0.0
    sizes: tuple[int, ...] = SIZES
    strays: bool = False
    has_validation: bool = False
    plan: tuple[tuple[str, Any], ...] = ()

    def but(self, **changes: Any) -> Family:
        """Return the family with some fields changed."""
        return dataclasses.replace(self, **changes)


def coverage_families() -> tuple[Family, ...]:
    """Return the families over which intervals are checked: 24 of slopes and shapes, 6 with special seeds or metrics.

    All of them twice, with curves exactly of their shape and with curves that stray. Points, seeds and ratios go round,
    so that every value of one meets every shape.
    """
    found = []
    for index, (slope, shape) in enumerate(itertools.product((1.0, 0.5, 0.8), STEEPNESS)):
        for turn, ratio in enumerate((2.0, math.sqrt(2.0))):
            num_points, num_seeds = (3, 5, 7)[(index + turn) % 3], (3, 5, 10)[(index // 2 + 2 * turn) % 3]
            found.append(Family(slope=slope, shape=shape, num_points=num_points, num_seeds=num_seeds, ratio=ratio))
    shapes: tuple[Shape, ...] = ("parabola", "10x", "cliff")
    for shape in shapes:
        found.append(Family(shape=shape, has_diverging_seeds=True))
        found.append(Family(shape=shape, num_test=400, peak=0.99, noise=0.005))
    found += [family.but(strays=True) for family in found]
    return tuple(family.but(name=describe(family)) for family in found)


def describe(family: Family) -> str:
    """Return a family in a few words.

    >>> describe(Family(slope=0.5, shape="10x", num_test=400))
    'slope 0.5, 10x, 5 points, ratio 2, 5 seeds, saturated'
    """
    specials = (("diverging", family.has_diverging_seeds), ("saturated", family.num_test), ("straying", family.strays))
    special = [word for word, on in specials if on]
    grid = f"{family.num_points} points, ratio {family.ratio:.3g}, {family.num_seeds} seeds"
    return ", ".join([f"slope {family.slope:g}", family.shape, grid, *special])


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """The shape of a sweep's curves; `drift` and `drift_of_ratio` are per octave of the batch size."""

    shape: Shape
    power_below: float
    power_above: float = 2.0
    drift: float = 0.0
    drift_of_ratio: float = 0.0

    @classmethod
    def exact(cls, shape: Shape) -> Curve:
        """Return a curve that is just of its shape."""
        return cls(shape=shape, power_below=1.0 if shape == "cliff" else 2.0)

    @classmethod
    def straying(cls, shape: Shape, generator: np.random.Generator) -> Curve:
        """Draw the shape of a sweep whose curves stray."""
        below, above = (max(LEAST_POWER, generator.normal(*moments)) for moments in (POWERS_BELOW, POWERS_ABOVE))
        if shape == "cliff":  # a smooth rise that is cut off is straight near the edge, or levels off towards it
            below = max(LEAST_POWER, below - 0.5)
        drift, drift_of_ratio = generator.normal(0.0, (DRIFT, DRIFT_OF_RATIO)).tolist()
        return cls(shape=shape, power_below=below, power_above=above, drift=drift, drift_of_ratio=drift_of_ratio)

    def change(self, octaves: float, *, from_middle: float = 0.0) -> float:
        """Return by how much the metric changes so many octaves above its optimum; -inf beyond the edge of a cliff.

        Args:
            octaves: above the optimum.
            from_middle: octaves of the batch size above the middle one.

        >>> Curve.exact("4x").change(-1.0), Curve.exact("4x").change(1.0)
        (-0.03, -0.12)
        """
        is_above, is_cliff = octaves > 0, self.shape == "cliff"
        if is_above and is_cliff:
            return -math.inf
        steepness = math.exp(self.drift * from_middle)
        if is_cliff:
            return -CLIFF_RISE * steepness * abs(octaves) ** self.power_below
        if is_above:
            steepness *= STEEPNESS[self.shape] * math.exp(self.drift_of_ratio * from_middle)
        return -CURVATURE * steepness * abs(octaves) ** (self.power_above if is_above else self.power_below)


@dataclass(frozen=True, kw_only=True, slots=True)
class Truth:
    """One sweep of a family: where its optima lie, and how high.

    `kink` and `plateau` are those of plain SGD, in log2; without a kink the line passes through (kink, plateau) too.
    `phase` moves all learning rates by a part of a step. `offsets` are octaves from the line to an optimum.
    """

    family: Family
    kink: float
    plateau: float
    phase: float
    curve: Curve
    offsets: Mapping[tuple[int, float], float] = field(default_factory=dict)

    def log_optimum(self, batch_size: int, momentum: float = 0.0) -> float:
        """Return log2 of the effective learning rate that is best for the metric."""
        family = self.family
        reach = MOMENTUM_REACH if momentum > 0 else 0.0
        off = math.log2(batch_size) - self.kink
        line = self.plateau + family.slope * (min(reach, off) if family.has_kink else off)
        return line + self.offsets.get((batch_size, momentum), 0.0)

    def log_train_optimum(self, batch_size: int, momentum: float = 0.0) -> float:
        """Return log2 of the effective learning rate with the lowest training loss."""
        return self.log_optimum(batch_size, momentum) - self.family.train_shift

    def latent_height(self, batch_size: int, momentum: float = 0.0) -> float:
        """Return the mean of the metric at its optimum, before it is rounded and capped."""
        family = self.family
        gain = family.gain_below if math.log2(batch_size) <= self.kink else family.gain_above
        return family.peak + (gain if momentum > 0 else 0.0) - (family.fall if batch_size == family.sizes[-1] else 0.0)

    def height(self, batch_size: int, momentum: float = 0.0) -> float:
        """Return the mean of the metric at its optimum."""
        points, weights = np.polynomial.hermite_e.hermegauss(61)
        values = self._shown(self.latent_height(batch_size, momentum) + self.family.noise * points)
        return float(weights @ values / weights.sum())

    def _shown(self, metric: Any) -> Any:
        num_test = self.family.num_test
        return metric if num_test is None else np.clip(np.round(metric * num_test) / num_test, 0.0, 1.0)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Simulated:
    """A sweep that was simulated, and the truth behind it."""

    truth: Truth
    study: StudyResults

    def grids(self, momentum: float = 0.0) -> list[Grid]:
        """Return the grids of a momentum, over rising batch sizes."""
        return self.study.sweeps[0].grids(momentum=momentum)


def simulate(family: Family, generator: np.random.Generator) -> Simulated:
    """Return a sweep of the family, run to its end."""
    truth = Truth(
        family=family,
        kink=generator.uniform(6.0, 7.0),
        plateau=generator.uniform(0.0, 1.0),
        phase=generator.uniform(0.0, math.log2(family.ratio)),
        curve=Curve.straying(family.shape, generator) if family.strays else Curve.exact(family.shape),
        offsets=_offsets(family, generator) if family.strays else {},
    )
    plan = _plan(truth)
    runs = _Runs(truth, generator)
    results: dict[str, RunResult] = {}
    while specs := missing_runs([plan], results):
        results |= {spec.key: runs.result(spec) for spec in specs}
    study = StudyPlan(name="simulated", question="", sweeps=(plan,))
    return Simulated(truth=truth, study=StudyResults(plan=study, by_key=results))


def _offsets(family: Family, generator: np.random.Generator) -> dict[tuple[int, float], float]:
    cells = list(itertools.product(family.sizes, family.momenta))
    return dict(zip(cells, generator.normal(0.0, STRAY_OPTIMA, size=len(cells)).tolist(), strict=True))


class _Runs:
    """Answers for any run; half of the variance over seeds is luck that a seed has at every learning rate."""

    def __init__(self, truth: Truth, generator: np.random.Generator) -> None:
        self._truth, self._generator = truth, generator
        self._luck: dict[tuple[int, float, int], tuple[float, float]] = {}
        self._strayed: dict[tuple[int, float, float], float] = {}

    def result(self, spec: RunSpec) -> RunResult:
        truth, family = self._truth, self._truth.family
        size, momentum = spec.batch_size, spec.momentum
        octaves = math.log2(spec.effective_learning_rate) - truth.log_optimum(size, momentum)
        if self._diverges(octaves):
            return RunResult(outcome=Outcome.DIVERGED, divergence_step=3)
        luck, train_luck = self._noise(size, momentum, spec.seed)
        change = self._change(size, momentum, min(octaves, 0.0) if family.shape == "cliff" else octaves)
        latent = truth.latent_height(size, momentum) + change
        metric = validation = float(truth._shown(latent + family.noise * luck))
        if family.has_validation:
            own = math.sqrt(0.5) * self._generator.normal()
            luck = self._luck[size, momentum, spec.seed][0] + own
            validation = float(truth._shown(latent + family.noise * luck))
        return RunResult(
            outcome=Outcome.FINISHED,
            test_metric=metric,
            test_loss=1.0 - metric,
            validation_metric=validation,
            validation_loss=1.0 - validation,
            train_loss=self._train_loss(size, octaves + family.train_shift) * math.exp(TRAIN_NOISE * train_luck),
            l2_penalty=0.0,
        )

    def _change(self, batch_size: int, momentum: float, octaves: float) -> float:
        family = self._truth.family
        from_middle = math.log2(batch_size) - (math.log2(family.sizes[0]) + math.log2(family.sizes[-1])) / 2
        change = self._truth.curve.change(octaves, from_middle=from_middle)
        if not family.strays:
            return change
        cell = (batch_size, momentum, octaves)
        return change * (1.0 + STRAY_MEANS * self._strayed.setdefault(cell, self._generator.normal()))

    def _diverges(self, octaves: float) -> bool:
        family, generator = self._truth.family, self._generator
        if family.shape == "cliff":
            limit = EDGE_SPREAD * abs(generator.normal()) if family.has_diverging_seeds else 0.0
            return octaves > limit
        limit = DIVERGENCE_STARTS + DIVERGENCE_WIDTH * generator.logistic()
        return family.has_diverging_seeds and octaves > limit

    def _noise(self, batch_size: int, momentum: float, seed: int) -> tuple[float, float]:
        """Return the noise of the metric and of the log training loss, of variance 1."""
        a, b, c, d = (math.sqrt(0.5) * self._generator.normal(size=4)).tolist()
        luck, train_luck = self._luck.setdefault((batch_size, momentum, seed), (a, b))
        return luck + c, train_luck + d

    def _train_loss(self, batch_size: int, octaves: float) -> float:
        family = self._truth.family
        floor = 0.1 * (1.0 + (family.train_rise if batch_size == family.sizes[-1] else 0.0))
        if family.shape == "cliff" and family.train_shift == 0:  # falls up to the same edge
            return floor * (1.0 + TRAIN_CURVATURE * max(0.0, -octaves))
        return floor * (1.0 + TRAIN_CURVATURE * octaves**2)


def _plan(truth: Truth) -> SweepPlan:
    family = truth.family
    fields: dict[str, Any] = {
        "name": "simulated",
        "task": "synthetic",
        "data_id": "data",
        "model_id": "model",
        "num_train": 4000,
        "metric": "accuracy",
        "metric_direction": Direction.MAXIMISE,
        "metric_bounds": (0.0, 1.0),
        "batch_sizes": family.sizes,
        "learning_rates": tuple(_learning_rates(truth, size) for size in family.sizes),
        "budgets": (Budget.steps(1000),),
        "momenta": family.momenta,
        "l2": 0.0,
        "l2_scope": "weights",
        "schedule": Schedule(),
        "seeds": tuple(range(family.num_seeds)),
        "num_kept": round(0.8 * family.num_seeds) if family.has_diverging_seeds else family.num_seeds,
        "tune_on": "validation" if family.has_validation else "test",
        "tune_quantity": "metric",
        "num_evaluations": 0,
        "max_extensions": 3,
        "extend_for": "tuned_and_train",
        "precision": "float32",
    }
    return SweepPlan(**{**fields, **dict(family.plan)})


def _learning_rates(truth: Truth, batch_size: int) -> tuple[float, ...]:
    """Return the learning rates around the optima of all momenta, on one lattice for all batch sizes."""
    family, step = truth.family, math.log2(truth.family.ratio)
    places = [round((truth.log_optimum(batch_size, m) - truth.phase) / step) for m in family.momenta]
    below, above = (family.num_points - 1) // 2, family.num_points // 2
    indices = range(min(places) - below, max(places) + above + 1)
    return tuple(tidy(2.0 ** (truth.phase + index * step)) for index in indices)
