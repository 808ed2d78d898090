"""Metrics and their directions."""

from __future__ import annotations

import torch

from helpers_tasks import REAL, X, task
from isotherm.core.records import Direction
from isotherm.tasks.losses import LOSSES
from isotherm.tasks.metrics import METRICS


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
