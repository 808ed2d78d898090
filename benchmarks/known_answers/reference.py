"""The full sweep of a known task at its intended length, and the best learning rate at every batch size.

The sweep: learning rates a factor of two apart, five seeds each, at every batch size, with and without momentum, tuned
on the test set. Its cost is counted in training examples. Around every optimum, learning rates a factor of √2 apart
with eight or more seeds then say where the optimum really is; these are not counted. The noisy quadratic is solved in
closed form, and the quickstart's optima are those of its own results, on the grid they were refined to. The cost of
every sweep is that of twelve learning rates at all batch sizes.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from isotherm.core.records import Direction
from isotherm.core.statistics import Floats
from isotherm.diagnose.short_runs import ShortGridSpec, ShortRuns
from isotherm.tasks.task import Task
from isotherm.theory.noisy_quadratic import NoisyQuadratic, SecondMoments, Setting, final_losses
from known_answers.tasks import CURVATURES, DISTANCE, SPREAD, Known
from pages.results import ROOT

MOMENTA = (0.0, 0.9)
BATCH_SIZES = (8, 16, 32, 64, 128, 256)
NUM_SEEDS, NUM_FINE_SEEDS = 5, 8
COARSE = tuple(2.0**k for k in range(-8, 4))
NEAR = tuple(k / 2 for k in range(-4, 5))
# Fewest updates of a training that is worth a row.
FEWEST_UPDATES = 16
_NUM_DRAWS = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """The best effective learning rate at one batch size and momentum.

    Args:
        momentum: of the runs.
        batch_size: of the runs.
        rate: the peak of a parabola through the fine grid.
        low: lower limit of its 95 % interval.
        high: upper limit.
        value: the metric there.
        rates: of the fine grid.
        means: the metric there.
    """

    momentum: float
    batch_size: int
    rate: float
    low: float
    high: float
    value: float
    rates: tuple[float, ...]
    means: tuple[float, ...]


def reference(case: Known) -> dict[str, Any]:
    """Return the optima of the full sweep, and its cost in training examples."""
    task = case.build()
    if not case.is_answerable:
        return {"num_examples": _nominal_cost(task, case.epochs), "optima": []}
    if case.name == "noisy quadratic":
        optima = [_closed_form(task, case.epochs, size, m) for m in MOMENTA for size in _sizes(task, case.epochs)]
        return {"num_examples": _nominal_cost(task, case.epochs), "optima": [asdict(best) for best in optima]}
    if case.name == "quickstart":
        return {"num_examples": _nominal_cost(task, case.epochs), "optima": [asdict(best) for best in _of_quickstart()]}
    optima = []
    with ShortRuns((task,), judged_by="test", first_seed=50_000, device="cpu", workers=1) as runs:
        for momentum in MOMENTA:
            for size in _sizes(task, case.epochs):
                spec = ShortGridSpec(
                    batch_size=size,
                    momentum=momentum,
                    num_steps=num_steps(task, case.epochs, size),
                    rates=COARSE,
                    num_seeds=NUM_SEEDS,
                )
                coarse = _bracketed(runs, spec)
                optima.append(_refined(runs, coarse))
    return {"num_examples": _nominal_cost(task, case.epochs), "optima": [asdict(best) for best in optima]}


def _of_quickstart() -> list[Best]:
    """Return the optima at constant epochs in the quickstart's results, at best known to half a step of their grids."""
    content = json.loads((ROOT / "results" / "quickstart" / "quickstart.json").read_text())
    found = []
    for sweep in content["sweeps"]:
        for grid in sweep["grids"] if sweep["name"] == "constant_epochs" else ():
            (low, high), half_step = grid["interval"], math.sqrt(grid["resolution"]["ratio"])
            found.append(
                Best(
                    momentum=sweep["momentum"],
                    batch_size=grid["batch_size"],
                    rate=grid["optimal_effective_learning_rate"],
                    low=low / half_step,
                    high=high * half_step,
                    value=grid["test_accuracy"]["mean_all"],
                    rates=(),
                    means=(),
                )
            )
    return found


def num_steps(task: Task, epochs: float, size: int) -> int:
    """Return the updates of the intended training."""
    return round(epochs * task.num_train / size)


def _sizes(task: Task, epochs: float) -> list[int]:
    most = task.num_train // 4
    return [size for size in BATCH_SIZES if size <= most and num_steps(task, epochs, size) >= FEWEST_UPDATES]


def _nominal_cost(task: Task, epochs: float) -> int:
    return round(len(MOMENTA) * len(_sizes(task, epochs)) * len(COARSE) * NUM_SEEDS * epochs * task.num_train)


def _bracketed(runs: ShortRuns, spec: ShortGridSpec) -> ShortGridSpec:
    """Train a grid, and extend it while its best learning rate lies at an end."""
    for _ in range(6):
        runs.train([spec])
        best = int(np.argmax(_scores(runs, spec).mean(axis=1)))
        if best == 0:
            spec = replace(spec, rates=(spec.rates[0] / 4, spec.rates[0] / 2, *spec.rates))
        elif best == len(spec.rates) - 1:
            spec = replace(spec, rates=(*spec.rates, 2 * spec.rates[-1], 4 * spec.rates[-1]))
        else:
            break
    return spec


def _refined(runs: ShortRuns, coarse: ShortGridSpec) -> Best:
    means = _scores(runs, coarse).mean(axis=1)
    tied = [rate for rate, mean in zip(coarse.rates, means, strict=True) if mean >= means.max() - 1e-9]
    centre = math.sqrt(tied[0] * tied[-1])
    fine = replace(coarse, rates=tuple(centre * 2.0**k for k in NEAR), num_seeds=NUM_FINE_SEEDS)
    runs.train([fine])
    scores = _scores(runs, fine)
    rng = np.random.default_rng(coarse.batch_size)
    x = np.log2(fine.rates)
    peak, value = _peak(x, scores.mean(axis=1))
    draws = [
        _peak(x, scores[:, rng.integers(NUM_FINE_SEEDS, size=NUM_FINE_SEEDS)].mean(axis=1))[0]
        for _ in range(_NUM_DRAWS)
    ]
    low, high = np.quantile(draws, [0.025, 0.975])
    sign = runs.task.metric_definition.direction.sign
    return Best(
        momentum=fine.momentum,
        batch_size=fine.batch_size,
        rate=float(2.0**peak),
        low=float(min(2.0**low, tied[0])) if len(tied) > 1 else float(2.0**low),
        high=float(max(2.0**high, tied[-1])) if len(tied) > 1 else float(2.0**high),
        value=float(sign * value),
        rates=fine.rates,
        means=tuple(float(sign * v) if math.isfinite(v) else math.nan for v in scores.mean(axis=1)),
    )


def _peak(x: Floats, means: Floats) -> tuple[float, float]:
    """Return place and height of the parabola within an octave of the highest point; ties go to their middle."""
    tied = np.flatnonzero(means >= means.max() - 1e-9)
    best = x[tied].mean()
    near = (np.abs(x - best) <= 1.01) & np.isfinite(means)
    near &= means.max() - means <= 4 * np.median(means.max() - means[near])  # not those about to diverge
    if len(tied) > 1 or near.sum() < 4:
        return float(best), float(means.max())
    curvature, slope, height = np.polyfit(x[near] - best, means[near], 2)
    if curvature >= 0:
        return float(best), float(means.max())
    place = float(np.clip(-slope / (2 * curvature), -1, 1))
    return float(best + place), float(height + slope * place + curvature * place**2)


def _scores(runs: ShortRuns, spec: ShortGridSpec) -> Floats:
    """Return the test metric (rates, seeds), larger is better; minus infinity where a run diverged."""
    sign = runs.task.metric_definition.direction.sign
    return np.asarray(np.nan_to_num(sign * runs.values(spec, "test_metric"), nan=-np.inf))


def _closed_form(task: Task, epochs: float, size: int, momentum: float) -> Best:
    """Return the exact optimum of the noisy quadratic, for batches drawn independently."""
    assert task.metric_definition.direction is Direction.MINIMISE
    h = np.asarray(CURVATURES)
    model = NoisyQuadratic(
        curvature=h, noise_variance=h**2 * SPREAD**2, initial=SecondMoments.at_rest(np.full(len(h), DISTANCE**2))
    )
    rates = 2.0 ** np.arange(-10, 4, 1 / 16)
    setting = Setting(batch_size=size, num_steps=num_steps(task, epochs, size), momentum=momentum)
    losses = final_losses(model, setting, effective_learning_rates=rates)
    best = int(np.argmin(losses))
    near = slice(max(0, best - 32), best + 33, 8)
    return Best(
        momentum=momentum,
        batch_size=size,
        rate=float(rates[best]),
        low=float(rates[best]),
        high=float(rates[best]),
        value=float(losses[best]),
        rates=tuple(rates[near].tolist()),
        means=tuple(losses[near].tolist()),
    )
