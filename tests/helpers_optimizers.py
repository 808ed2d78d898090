"""A made-up study of AdamW and Muon whose optimal learning rate follows a known power of the batch size."""

from __future__ import annotations

import math

import numpy as np

from helpers_protocol import finished, make_plan
from isotherm.core.budget import Budget
from isotherm.core.optimizers import SGD, AdamW, Muon, Optimizer
from isotherm.core.records import RunResult
from isotherm.sweep.plan import StudyPlan
from isotherm.sweep.results import StudyResults
from isotherm.sweep.rounds import all_runs

SIZES = (8, 32, 128, 512)
METHODS = (AdamW(weight_decay=0.1, reference_batch_size=32), Muon())


def study_of_powers(power: float = 0.5, *methods: Optimizer, noise: float = 0.001) -> StudyResults:
    """Return a complete study: accuracy is a parabola in log2 ε around the optimum 2^-9 B^power."""
    chosen = methods or METHODS
    is_sgd = isinstance(chosen[0], SGD)
    plan = make_plan(
        name="made",
        batch_sizes=SIZES,
        rates=tuple(2.0**k for k in range(-10, 2)),
        budgets=(Budget.epochs(20),),
        momenta=tuple(m.momentum for m in chosen if isinstance(m, SGD)),
        optimizers=() if is_sgd else chosen,
        num_train=4000,
        seeds=(0, 1, 2, 3),
        num_kept=4,
        max_extensions=0,
        num_evaluations=1,
    )
    found: dict[str, RunResult] = {}
    for spec in all_runs([plan], {}).values():
        octave = math.log2(spec.effective_learning_rate)
        off = octave - (power * math.log2(spec.batch_size) - 9)
        generator = np.random.default_rng([spec.seed, spec.batch_size, 50 + round(octave)])
        found[spec.key] = finished(
            0.8 - 0.01 * off**2 + noise * float(generator.normal()), train_loss=0.1 * (1 + off**2), l2_penalty=0.0
        )
    return StudyResults(plan=StudyPlan(name="made", question="", sweeps=(plan,)), by_key=found)
