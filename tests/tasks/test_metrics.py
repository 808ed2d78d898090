"""Metrics and their directions."""

from __future__ import annotations

import torch
from torch import Tensor

from helpers_tasks import REAL, X, task
from isotherm.core.records import Direction
from isotherm.tasks.losses import LOSSES
from isotherm.tasks.metrics import METRICS, Metric


def test_accuracy_counts_the_largest_logit():
    logits = torch.tensor([[3.0, 1.0], [0.0, 2.0], [5.0, 4.0], [1.0, 0.0]])
    metric = METRICS["accuracy"]
    assert float(metric.function(logits, torch.tensor([0, 1, 1, 0]))) == 0.75
    assert metric.direction is Direction.MAXIMISE


def test_losses_as_metrics_are_minimised():
    """Whatever a loss is judged by where nothing is said, except accuracy."""
    defaults = {
        name: task(train=(X, REAL), test=(X, REAL), loss=name).metric for name in LOSSES.keys() - {"cross_entropy"}
    }
    assert defaults == {"mean_squared_error": "mean_squared_error", "half_squared_error": "squared_error"}
    assert {METRICS[name].direction for name in (*defaults.values(), "cross_entropy", "perplexity")} == {
        Direction.MINIMISE
    }


def test_a_new_loss_is_its_own_metric(monkeypatch):
    """One entry in the table of losses is enough to use it."""

    def absolute_error(output: Tensor, target: Tensor) -> Tensor:
        return (output - target).abs().mean()

    monkeypatch.setitem(LOSSES, "absolute_error", absolute_error)
    metric = task(train=(X, REAL), test=(X, REAL), loss="absolute_error").metric
    assert metric == Metric(name="absolute_error", function=absolute_error, direction=Direction.MINIMISE)
