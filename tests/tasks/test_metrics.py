"""Metrics and their directions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from helpers_tasks import REAL, X, sequence_task, task
from isotherm.core.records import Direction
from isotherm.errors import UserError
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
    assert defaults == {
        "bce": "bce",
        "mean_squared_error": "mean_squared_error",
        "mse": "mse",
        "half_squared_error": "squared_error",
    }
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


def test_metrics_say_what_they_are_taken_over_and_their_bounds():
    over_split = {name for name, metric in METRICS.items() if metric.over == "split"}
    assert over_split == {"auc", "f1", "r2"}
    assert {name for name, metric in METRICS.items() if metric.bounds == (0.0, 1.0)} == {"accuracy", "auc", "f1"}
    assert {METRICS[name].direction for name in ("accuracy", "auc", "f1", "r2")} == {Direction.MAXIMISE}
    assert all(metric.name == name for name, metric in METRICS.items())


def mean_of(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).mean()


def test_bounds_are_numbers_of_any_kind_and_change_no_identity():
    metric = Metric(name="mine", function=mean_of, direction="maximise", bounds=[0, 1])
    assert metric.bounds == (0.0, 1.0)
    assert metric == Metric(name="mine", function=mean_of, direction="maximise")
    assert metric != Metric(name="mine", function=mean_of, direction="maximise", over="split")


@pytest.mark.parametrize("bounds", [(1, 0), (0, 0), (0, math.nan), (0,), 1.0, "01", (0, "1")])
def test_bounds_are_a_pair_in_order(bounds):
    with pytest.raises(UserError, match=r"'mine': bounds=.* is no pair \(smallest, largest\); use e\.g\. \(0, 1\)"):
        Metric(name="mine", function=mean_of, direction="maximise", bounds=bounds)
    Metric(name="mine", function=mean_of, direction="maximise", bounds=(0, 1))


def test_a_metric_is_over_examples_or_over_a_split():
    with pytest.raises(UserError, match=r"over='batch' is unknown; use 'examples' .* 'split'"):
        Metric(name="mine", function=mean_of, direction="maximise", over="batch")


def test_a_metric_needs_a_function():
    with pytest.raises(UserError, match=r"not 'mine' and 0\.5; give e\.g\. name='mine' and function=lambda output"):
        Metric(name="mine", function=0.5, direction="maximise")


def test_what_a_metric_is_taken_over_is_part_of_the_key_and_its_bounds_are_not():
    def model_id(**settings) -> str:
        metric = Metric(name="mine", function=mean_of, direction="maximise", **settings)
        return task(train=(X, REAL), test=(X, REAL), loss="mse", metric=metric).identify().model_id

    assert model_id() == model_id(over="examples", bounds=(0, 1))
    assert model_id() != model_id(over="split")
    assert model_id(over="split") == model_id(over="split", bounds=(0, 1))


def test_sequences_have_means_over_tokens():
    for metric in ("f1", Metric(name="mine", function=mean_of, direction="maximise", over="split")):
        with pytest.raises(UserError, match=r"with unroll a metric is a mean over tokens, .* use 'perplexity'"):
            sequence_task(metric=metric)
    assert sequence_task(metric="perplexity").unroll
