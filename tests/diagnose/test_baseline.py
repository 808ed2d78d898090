"""The best constant output, and whether short runs beat it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from isotherm.core.statistics import Floats
from isotherm.diagnose.baseline import constant_loss, has_learned
from isotherm.tasks.inputs import Split
from isotherm.tasks.task import Task


def labels(*counts: int) -> Split:
    y = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    return torch.zeros(len(y), 2), y


def test_the_constant_of_labels_has_the_classes_frequencies() -> None:
    task = Task(name="t", model=lambda: nn.Linear(2, 2), train=labels(75, 25), test=labels(5, 5))
    assert constant_loss(task, judged_by="test") == pytest.approx(-(math.log(0.75) + math.log(0.25)) / 2, rel=1e-3)


def test_the_constant_of_squared_errors_is_the_mean() -> None:
    x, y = torch.zeros(4, 3), torch.tensor([[0.0], [1.0], [2.0], [5.0]])
    task = Task(name="t", model=lambda: nn.Linear(3, 1), train=(x, y), test=(x[:1], y[:1]), loss="mean_squared_error")
    assert constant_loss(task, judged_by="test") == pytest.approx(4.0, rel=1e-4)


def test_a_loss_of_ones_own_is_fitted_too() -> None:
    x, y = torch.zeros(3, 2), torch.tensor([[1.0], [2.0], [9.0]])

    def distance(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return ((output - target).square() + 1e-6).sqrt().mean()

    task = Task(name="t", model=lambda: nn.Linear(2, 1), train=(x, y), test=(x, y), loss=distance)
    assert constant_loss(task, judged_by="test") == pytest.approx(8 / 3, abs=0.05)  # the median's


def table(best: float, scatter: float) -> Floats:
    return np.array([[9.0, 9.0, 9.0, 9.0], [best - scatter, best + scatter, best - scatter, best + scatter]])


@pytest.mark.parametrize(
    ("best", "scatter", "expected"),
    [(0.5, 0.1, True), (0.9, 0.01, True), (0.9, 0.5, False), (0.998, 0.0001, False), (1.1, 0.01, False)],
)
def test_a_gain_counts_beyond_its_error_and_a_part_of_the_loss(best: float, scatter: float, expected: bool) -> None:
    assert has_learned([table(best, scatter)], np.array([1.0])) is expected
    assert has_learned([table(2.0, 0.1), table(best, scatter)], np.array([1.0])) is expected


def test_each_seed_is_compared_with_the_constant_of_its_own_held_out_part() -> None:
    losses = np.array([[0.8, 1.8, 0.8, 1.8]])
    assert has_learned([losses], np.array([1.0, 2.0]))
    assert not has_learned([losses], np.array([0.8, 1.8]))


def test_runs_that_diverged_have_learned_nothing() -> None:
    assert not has_learned([np.full((3, 4), np.inf)], np.array([1.0]))
