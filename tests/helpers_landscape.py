"""Made-up studies whose answer is known: a landscape over learning rate, batch size and momentum, with seed noise."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from helpers_protocol import finished, make_plan
from isotherm.budget import Budget
from isotherm.protocol import all_runs
from isotherm.records import RunSpec
from isotherm.results import Results, StudyResults
from isotherm.study import StudyPlan
from isotherm.sweep import SweepPlan, powers_of_two

SIZES = tuple(int(b) for b in powers_of_two(3, 10))
Optimum = Callable[[int, float], float]
Peak = Callable[[int, float], float]


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


def first_sweep(study: StudyResults) -> Results:
    return study.sweeps[0]


def broken_line(slope: float, kink: float, plateau: float) -> Optimum:
    """Return the optimal ε_eff as a function of B: rising with a slope up to the kink, then level."""
    return lambda batch_size, _momentum: plateau * min(1.0, batch_size / kink) ** slope


def _octaves(spec: RunSpec, optimum: Optimum) -> float:
    return math.log2(spec.effective_learning_rate / optimum(spec.batch_size, spec.momentum))
