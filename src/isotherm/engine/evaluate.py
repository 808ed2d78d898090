"""Loss and metric over a split in evaluation mode, for one model or for a fleet: the same sums in both."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from isotherm.engine.problem import Problem
from isotherm.records import CurvePoint, Outcome, RunResult

# Examples per evaluation batch; bounds the memory of a fleet's activations.
CHUNK = 500

# inputs, targets -> loss and metric, each a mean over the batch, shape () or (runs,)
EvaluateBatch = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Loss and metric of one run over one split."""

    loss: float
    metric: float


def evaluate_split(evaluate: EvaluateBatch, inputs: Tensor, targets: Tensor) -> list[Scores]:
    """Return the scores of every run over a whole split; one run gives a list of one."""
    sums: Tensor | None = None
    with torch.no_grad():
        for x, y in zip(torch.split(inputs, CHUNK), torch.split(targets, CHUNK), strict=True):
            means = torch.stack(evaluate(x, y)).reshape(2, -1).double() * len(x)
            sums = means if sums is None else sums + means
    assert sums is not None
    losses, metrics = (sums / len(inputs)).cpu().tolist()
    return [Scores(loss=loss, metric=metric) for loss, metric in zip(losses, metrics, strict=True)]


def evaluate_all(problem: Problem, evaluate: EvaluateBatch) -> dict[str, list[Scores]]:
    """Return the scores of every run over every split."""
    return {name: evaluate_split(evaluate, *split) for name, split in problem.splits.items()}


def final_result(
    scores: Mapping[str, Scores],
    *,
    num_steps: int,
    train_loss_running: float,
    last_batch_loss: float,
    l2_penalty: float,
    weight_norm_squared: float,
    curve: tuple[CurvePoint, ...],
) -> RunResult:
    """Return the record of a run that made all its updates; diverged if its final losses are not finite."""
    if not all(math.isfinite(score.loss) for score in scores.values()):
        return diverged(num_steps, curve=curve)
    validation = scores.get("validation")
    return RunResult(
        outcome=Outcome.FINISHED,
        train_loss_running=train_loss_running,
        last_batch_loss=last_batch_loss,
        train_loss=scores["train"].loss,
        l2_penalty=l2_penalty,
        weight_norm_squared=weight_norm_squared,
        validation_loss=None if validation is None else validation.loss,
        validation_metric=None if validation is None else validation.metric,
        test_loss=scores["test"].loss,
        test_metric=scores["test"].metric,
        curve=curve,
    )


def diverged(step: int, *, curve: tuple[CurvePoint, ...]) -> RunResult:
    """Return the record of a run whose loss was first not finite at update `step`."""
    before = tuple(p for p in curve if p.step <= step and math.isfinite(p.test_loss))
    return RunResult(outcome=Outcome.DIVERGED, divergence_step=step, curve=before)
