"""Metrics and shapes in both engines: metrics over a split, binary losses, labels with more than one dimension."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cases
from helpers_engines import assert_same, by_fleet, by_reference
from isotherm.core.records import Outcome
from isotherm.data.augment import Scaled
from isotherm.engine.fleet import run_fleet
from isotherm.engine.placed_task import place_task
from isotherm.engine.stack import scoring
from isotherm.tasks.metrics import METRICS, Metric
from isotherm.tasks.task import Task


def binary(num: int, *, seed: int) -> tuple[Tensor, Tensor]:
    x, labels = cases.blobs(num, seed=seed)
    return x, (labels == 0).long()


def build_one_logit() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))


def build_line() -> nn.Module:
    return nn.Linear(3, 1)


def binary_task(metric: str | Metric = "auc", **changes) -> Task:
    fields = {"train": binary(64, seed=0), "test": binary(30, seed=1), "loss": "bce"}
    return Task(name="binary", model=build_one_logit, metric=metric, **{**fields, **changes})


def line_task(metric: str) -> Task:
    splits = {"train": cases.line(64, seed=0), "test": cases.line(30, seed=1)}
    return Task(name="line", model=build_line, loss="mse", metric=metric, **splits)


class Tagger(nn.Module):
    """Three logits for each of four positions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def rows(num: int, *, seed: int) -> tuple[Tensor, Tensor]:
    x, labels = cases.blobs(4 * num, seed=seed)
    return x.view(num, 4, 2), labels.view(num, 4)


def rows_task(metric: str = "accuracy") -> Task:
    return Task(name="rows", model=Tagger, train=rows(16, seed=0), test=rows(9, seed=1), metric=metric)


TASKS = {
    "f1": lambda: cases.classification("f1", cases.build_mlp, metric="f1"),
    "f1 of one logit": lambda: binary_task("f1"),
    "auc": binary_task,
    "bce": lambda: binary_task("bce"),
    "mse": lambda: line_task("mse"),
    "r2": lambda: line_task("r2"),
    "rows": rows_task,
    "rows by f1": lambda: rows_task("f1"),
    "rows by cross entropy": lambda: rows_task("cross_entropy"),
}


@pytest.mark.parametrize("name", TASKS)
def test_engines_agree_and_chunks_do_not_matter(name, monkeypatch):
    task = TASKS[name]()
    placed = place_task(task, precision="float64")
    rates = (0.1, 0.3, 1.0)
    specs = [
        cases.spec(task, num_steps=12, seed=seed, effective_learning_rate=rate, num_evaluations=2)
        for seed, rate in enumerate(rates)
    ]
    expected = [by_reference(placed, spec) for spec in specs]
    monkeypatch.setattr(scoring, "CHUNK", 7)
    assert_same(by_fleet(placed, specs), expected)
    assert_same(by_fleet(placed, specs[:1]), expected[:1])
    assert all(math.isfinite(result.test_metric) for result, _ in expected)
    assert len({result.test_metric for result, _ in expected}) > 1


def value_by_hand(name: str, output: np.ndarray, target: np.ndarray) -> float:
    if name == "auc":
        positive, negative = output[target == 1][:, None], output[target == 0][None]
        return float(np.mean((positive > negative) + 0.5 * (positive == negative)))
    if name == "bce":
        return float(np.mean(np.logaddexp(0, output) - output * target))
    if name == "r2":
        return float(1 - np.sum((output - target) ** 2) / np.sum((target - target.mean()) ** 2))
    return float(np.mean((output - target) ** 2))


@pytest.mark.parametrize("name", ["auc", "bce", "mse", "r2"])
def test_the_stored_metric_is_the_plain_definition_of_the_trained_model(name, monkeypatch):
    monkeypatch.setattr(scoring, "CHUNK", 8)
    task = TASKS[name]()
    placed = place_task(task, precision="float64")
    [(result, parameters)] = by_fleet(placed, [cases.spec(task, num_steps=15)])
    module = task.model().double()
    module.load_state_dict(parameters)
    x, y = placed.splits["test"]
    with torch.no_grad():
        by_hand = value_by_hand(name, module(x).numpy(), y.numpy())
    assert result.test_metric == pytest.approx(by_hand, rel=1e-12)


def test_a_metric_over_the_split_is_one_run_at_a_time_and_may_use_numpy():
    seen: list[tuple[int, ...]] = []

    def median_error(output: Tensor, target: Tensor) -> float:
        seen.append(tuple(output.shape))
        target.zero_()  # a copy: nobody's data
        return float(np.median(np.abs(output.numpy())))

    metric = Metric(name="median", function=median_error, direction="minimise", over="split")
    task = binary_task(metric)
    before = task.test[1].clone()
    results = run_fleet(place_task(task, precision="float64"), [cases.spec(task, num_steps=5, seed=s) for s in (0, 1)])
    assert set(seen) == {(64,), (30,)}
    assert torch.equal(task.test[1], before)
    assert len({result.test_metric for result in results}) == 2


def test_what_a_diverged_run_gives_reaches_no_metric_over_the_split():
    def strict(output: Tensor, target: Tensor) -> float:
        if not bool(output.isfinite().all()):
            raise ValueError("not finite")
        return float(METRICS["mse"].function(output, target))

    metric = Metric(name="strict", function=strict, direction="minimise", over="split")
    task = Task(
        name="line",
        model=build_line,
        loss="mse",
        metric=metric,
        train=cases.line(64, seed=0),
        test=cases.line(9, seed=1),
    )
    specs = [
        cases.spec(task, num_steps=400, seed=0, effective_learning_rate=rate, num_evaluations=40, momentum=0.0)
        for rate in (0.1, 40.0)
    ]
    results = run_fleet(place_task(task, precision="float64"), specs)
    assert [result.outcome for result in results] == [Outcome.FINISHED, Outcome.DIVERGED]


def test_a_metric_over_the_split_sees_the_targets_of_the_transform():
    x = torch.randint(256, (24, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    task = Task(
        name="coded",
        model=lambda: nn.Linear(3, 3),
        train=(x, x),
        test=(x[:9], x[:9]),
        loss="mse",
        metric="r2",
        transform=Scaled(),
    )
    placed = place_task(task, precision="float64")
    spec = cases.spec(task, num_steps=5)
    result, parameters = by_reference(placed, spec)
    assert_same(by_fleet(placed, [spec]), [(result, parameters)])
    inputs = Scaled().evaluate(x[:9]).double().numpy()
    output = inputs @ parameters["weight"].numpy().T + parameters["bias"].numpy()
    by_hand = 1 - np.sum((output - inputs) ** 2) / np.sum((inputs - inputs.mean(axis=0)) ** 2)
    assert result.test_metric == pytest.approx(by_hand, rel=1e-12)
