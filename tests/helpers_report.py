"""Results made by hand: plans without training, runs from numbers like those of the design's section 5."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from isotherm.core.budget import Budget
from isotherm.core.records import Direction, Outcome, RunResult
from isotherm.core.schedule import Schedule
from isotherm.sweep.plan import GridAxes, StudyPlan, SweepPlan
from isotherm.sweep.results import Results, StudyResults

# (axes, effective learning rate, place of the seed) -> what the run gave; None leaves the run out.
Give = Callable[[GridAxes, float, int], RunResult | None]

# Accuracy at each distance, in powers of two, from the best learning rate; beyond +2 runs diverge.
LOSSES_OFF_OPTIMUM = {-2: 0.06, -1: 0.02, 0: 0.0, 1: 0.008, 2: 0.09}


def make_plan(**changes: object) -> SweepPlan:
    plan = SweepPlan(
        name="constant_steps",
        task="mlp_mnist1d",
        data_id="d" * 64,
        model_id="m" * 64,
        num_train=4000,
        metric="accuracy",
        metric_direction=Direction.MAXIMISE,
        batch_sizes=(8, 32, 128),
        learning_rates=((0.25, 0.5, 1.0, 2.0, 4.0),) * 3,
        budgets=(Budget.steps(2000),),
        momenta=(0.9,),
        l2=5e-4,
        l2_scope="weights",
        schedule=Schedule(),
        seeds=(0, 1, 2, 3, 4),
        num_kept=4,
        tune_on="test",
        tune_quantity="metric",
        num_evaluations=5,
        max_extensions=0,
        extend_for="tuned",
        precision="float32",
    )
    if "batch_sizes" in changes and "learning_rates" not in changes:
        changes["learning_rates"] = (plan.learning_rates[0],) * len(changes["batch_sizes"])  # type: ignore[arg-type]
    return dataclasses.replace(plan, **changes)  # type: ignore[arg-type]


def finished(test_metric: float, train_loss: float = 0.1) -> RunResult:
    return RunResult(
        outcome=Outcome.FINISHED,
        train_loss=train_loss,
        l2_penalty=0.02,
        test_loss=0.5,
        test_metric=test_metric,
        validation_metric=test_metric,
        validation_loss=0.5,
    )


def diverged(step: int = 12) -> RunResult:
    return RunResult(outcome=Outcome.DIVERGED, divergence_step=step)


def failed(error: str = "out of memory") -> RunResult:
    return RunResult(outcome=Outcome.FAILED, error=error)


def peaked(axes: GridAxes, rate: float, place: int) -> RunResult | None:
    """Best at ε_eff = 1 whatever the batch size: 0.7 there; seed 4 is 0.1 worse, the others differ by 0.01."""
    distance = abs(round(np.log2(rate)))
    spread = -0.1 if place == 4 else 0.01 * place
    return finished(0.7 - 0.1 * distance + spread, train_loss=0.1 * rate)


def fill(plan: SweepPlan, give: Give = peaked, rates: Sequence[float] | None = None) -> dict[str, RunResult]:
    found = {}
    for axes in plan.grids():
        for rate in rates or plan.base_learning_rates(axes):
            for place, seed in enumerate(plan.seeds):
                result = give(axes, rate, place)
                if result is not None:
                    found[plan.run_spec(axes, effective_learning_rate=rate, seed=seed).key] = result
    return found


def make_results(plan: SweepPlan | None = None, give: Give = peaked) -> Results:
    plan = make_plan() if plan is None else plan
    return Results(plan=plan, by_key=fill(plan, give))


def make_study(*plans: SweepPlan, name: str = "a study", question: str = "Why?", give: Give = peaked) -> StudyResults:
    found = {key: result for plan in plans for key, result in fill(plan, give).items()}
    return StudyResults(plan=StudyPlan(name=name, question=question, sweeps=plans), by_key=found)


def embedded_study() -> StudyResults:
    """The embedded study with made-up runs around the numbers of the design's section 5."""
    sizes = (8, 16, 32, 64, 128, 256, 512, 1024)
    steps = make_plan(
        name="constant_steps",
        batch_sizes=sizes,
        learning_rates=_around(sizes, (1 / 8, 1 / 4, 1, 2, 4, 8, 8, 4)),
    )
    epochs = dataclasses.replace(steps, name="constant_epochs", budgets=(Budget.epochs(20),))
    plain = dataclasses.replace(epochs, momenta=(0.0,), learning_rates=_around(sizes, (1 / 4, 1 / 2, 1, 1, 2, 2, 2, 1)))
    heavy = dataclasses.replace(epochs, learning_rates=_around(sizes, (1 / 4, 1 / 2, 1, 1, 2, 4, 8, 4)))
    found = {
        **fill(
            steps,
            _published(
                steps,
                (58.0, 65.4, 70.7, 73.6, 75.0, 76.0, 73.4, 64.9),
                (0.90, 0.53, 0.37, 0.16, 0.066, 0.039, 0.023, 0.024),
            ),
        ),
        **fill(
            plain,
            _published(
                plain,
                (73.3, 73.3, 73.2, 71.0, 68.8, 66.2, 56.1, 43.6),
                (0.15, 0.15, 0.16, 0.25, 0.40, 0.62, 1.05, 1.42),
            ),
        ),
        **fill(
            heavy,
            _published(
                heavy,
                (73.2, 72.5, 71.2, 71.0, 70.2, 68.3, 65.5, 54.4),
                (0.15, 0.16, 0.17, 0.2, 0.3, 0.45, 0.6, 1.1),
            ),
        ),
    }
    question = "Does SGD have a noise dominated and a curvature dominated regime, and does noise help it generalise?"
    return StudyResults(
        plan=StudyPlan(name="quickstart", question=question, sweeps=(steps, plain, heavy)), by_key=found
    )


def _around(sizes: Sequence[int], centres: Sequence[float]) -> tuple[tuple[float, ...], ...]:
    assert len(sizes) == len(centres)
    return tuple(tuple(centre * 2.0**k for k in range(-2, 4)) for centre in centres)


def _published(plan: SweepPlan, accuracies: Sequence[float], losses: Sequence[float]) -> Give:
    generator = np.random.default_rng(0)

    def give(axes: GridAxes, rate: float, place: int) -> RunResult:
        row = plan.batch_sizes.index(axes.batch_size)
        distance = round(np.log2(rate / plan.learning_rates[row][2]))
        noise = float(generator.normal())
        if distance > 2 or (distance == 2 and place == 0):
            return diverged()
        accuracy = accuracies[row] / 100 - LOSSES_OFF_OPTIMUM[distance] + 0.008 * noise
        train_best = distance + 1 if axes.batch_size > 16 else distance
        return finished(accuracy, train_loss=losses[row] * 1.5 ** abs(train_best) * (1 + 0.05 * noise))

    return give
