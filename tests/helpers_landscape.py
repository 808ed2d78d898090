"""Made-up studies whose answer is known: a landscape over learning rate, batch size and momentum, with seed noise."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from helpers_protocol import diverged, finished, make_cell, make_plan
from isotherm.core.budget import Budget
from isotherm.core.rates import powers_of_two
from isotherm.core.records import Direction, RunSpec
from isotherm.sweep.plan import GridAxes, StudyPlan, SweepPlan
from isotherm.sweep.protocol import Grid
from isotherm.sweep.results import Results, StudyResults
from isotherm.sweep.rounds import all_runs

SIZES = tuple(int(b) for b in powers_of_two(3, 10))
Optimum = Callable[[int, float], float]
Peak = Callable[[int, float], float]
Shape = Callable[[float], float]  # octaves above the optimum -> metric, at most 0; -inf where runs diverge


def landscape_study(
    *,
    optimum: Optimum,
    peak: Peak,
    train_optimum: Optimum | None = None,
    train_floor: Optimum = lambda _b, _m: 0.1,
    budget: Budget | None = None,
    momenta: tuple[float, ...] = (0.0, 0.9),
    noise: float = 0.003,
    sizes: tuple[int, ...] = SIZES,
    num_seeds: int = 5,
) -> StudyResults:
    """Return a complete study: accuracy is a parabola of height peak(B, m) in log2 ε around optimum(B, m)."""
    plan: SweepPlan = make_plan(
        name="made",
        batch_sizes=sizes,
        rates=powers_of_two(-6, 8),
        budgets=(budget or Budget.epochs(20),),
        momenta=momenta,
        num_train=4000,
        seeds=tuple(range(num_seeds)),
        num_kept=num_seeds - 1,
        max_extensions=0,
    )
    train_at = train_optimum or optimum
    results = {}
    for spec in all_runs([plan], {}).values():
        exponent = round(math.log2(spec.effective_learning_rate))
        generator = np.random.default_rng([spec.seed, spec.batch_size, int(10 * spec.momentum), 50 + exponent])
        off = _octaves(spec, optimum)
        off_train = _octaves(spec, train_at)
        results[spec.key] = finished(
            peak(spec.batch_size, spec.momentum) - 0.03 * off**2 + noise * float(generator.normal()),
            train_loss=train_floor(spec.batch_size, spec.momentum) * (1 + off_train**2)
            + 1e-3 * float(generator.uniform()),
            l2_penalty=0.0,
        )
    return StudyResults(plan=StudyPlan(name="made", question="", sweeps=(plan,)), by_key=results)


def parabola(octaves: float) -> float:
    """Falls alike to both sides."""
    return -0.03 * octaves**2


def skewed(octaves: float) -> float:
    """Falls faster above the optimum: twice as fast an octave away, four times two octaves away."""
    return -0.06 * (math.exp(octaves) - octaves - 1)


def limited(octaves: float) -> float:
    """A parabola up to a limit, beyond which runs diverge."""
    return parabola(octaves) if octaves <= 1.2 else -math.inf


def cliff(octaves: float) -> float:
    """Rises gently up to the largest learning rate that trains, as on the plateau of the quickstart."""
    return 0.05 * octaves if octaves <= 0 else -0.5


def steeper(factor: float, octaves: float) -> float:
    """A parabola below the optimum, and one that falls so many times as steeply above it."""
    return parabola(octaves) * (factor if octaves > 0 else 1.0)


def kinked(octaves: float) -> float:
    """Straight to both sides, five times as steep above the optimum."""
    return -0.05 * abs(octaves) * (5.0 if octaves > 0 else 1.0)


def limited_nearby(octaves: float) -> float:
    """A parabola up to a limit just above the optimum, beyond which runs diverge."""
    return parabola(octaves) if octaves <= 0.3 else -math.inf


def landscape_grids(
    optimum: Callable[[int], float],
    generator: np.random.Generator,
    *,
    shape: Shape = parabola,
    noise: float = 0.003,
    step: float = 1.0,
    num_seeds: int = 5,
    num_kept: int = 4,
    sizes: tuple[int, ...] = SIZES,
    momentum: float = 0.9,
) -> list[Grid]:
    """Return grids over batch sizes without a plan behind them, quickly: six octaves of learning rates around the best.

    Half of the variance over seeds is luck that a seed has at every learning rate.
    """
    grids = []
    for size in sizes:
        best = math.log2(optimum(size))
        rates = (round(best / step) + np.arange(-round(3 / step), round(3 / step) + 1)) * step
        luck = generator.normal(size=num_seeds) + generator.normal(size=(len(rates), num_seeds))
        heights = np.array([0.7 + shape(rate - best) for rate in rates])
        metrics = (heights[:, None] + noise * math.sqrt(0.5) * luck).tolist()
        grids.append(
            Grid(
                axes=GridAxes(batch_size=size, budget=Budget.epochs(20), momentum=momentum),
                num_steps=100,
                cells=tuple(
                    make_cell(2.0**rate, [m if math.isfinite(m) else diverged() for m in row], num_kept=num_kept)
                    for rate, row in zip(rates.tolist(), metrics, strict=True)
                ),
                objective="test_metric",
                direction=Direction.MAXIMISE,
            )
        )
    return grids


def first_sweep(study: StudyResults) -> Results:
    return study.sweeps[0]


def broken_line(slope: float, kink: float, plateau: float) -> Optimum:
    """Return the optimal ε_eff as a function of B: rising with a slope up to the kink, then level."""
    return lambda batch_size, _momentum: plateau * min(1.0, batch_size / kink) ** slope


def _octaves(spec: RunSpec, optimum: Optimum) -> float:
    return math.log2(spec.effective_learning_rate / optimum(spec.batch_size, spec.momentum))
