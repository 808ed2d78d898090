"""Modules that can be trained as a fleet, and the reasons of those that cannot."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import cases
from isotherm.engine.placed_task import place_task
from isotherm.engine.stack import updates
from isotherm.engine.stack.model import NotVectorisable
from isotherm.engine.stack.parts import StackParts
from isotherm.engine.stack.plan import StackPlan
from isotherm.engine.stack.vmap_check import check_gradients, check_program
from isotherm.tasks.task import Task


def parts_of(task: Task, num_runs: int = 2) -> StackParts:
    specs = [cases.spec(task, seed=seed, num_steps=5) for seed in range(num_runs)]
    return StackParts.of(StackPlan.of(place_task(task, precision="float64"), specs, convolves=False))


@pytest.mark.parametrize("make", [cases.dropout_task, cases.batch_norm_task, cases.frozen_task, cases.tied_task])
def test_networks_that_pass(make: Callable[[], Task]) -> None:
    parts = parts_of(make())
    before = [tensor.clone() for tensor in parts.state.updated]
    check_gradients(parts)
    assert all(torch.equal(old, new) for old, new in zip(before, parts.state.updated, strict=True))
    assert parts.updates.is_prepared


class Noisy(nn.Linear):
    """Draws random numbers in evaluation mode."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input if self.training else input + 0 * torch.randn(1))


@pytest.mark.parametrize(
    ("task", "num_runs", "reason"),
    [
        (cases.unvectorisable_task(), 2, "in BranchingNet: it chooses by the values of its data"),
        (cases.stateful_task(), 2, "its forward pass changes num_calls"),
        (cases.noisy_task(), 2, "in NoisyNet: it draws random numbers"),
        (cases.noisy_task(), 1, "differ from those of one run"),
        (dataclasses.replace(cases.blobs_task(), model=lambda: Noisy(2, 3)), 1, "randomness in evaluation mode"),
    ],
    ids=["branches", "counts", "noise", "noise of one run", "noise in evaluation"],
)
def test_networks_that_are_refused(task: Task, num_runs: int, reason: str) -> None:
    with pytest.raises(NotVectorisable, match=reason):
        check_gradients(parts_of(task, num_runs))


def test_an_error_of_the_module_is_a_refusal_but_memory_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = parts_of(cases.blobs_task())
    for error, expected in ((KeyError("x"), NotVectorisable), (MemoryError(), MemoryError)):

        def trace(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(updates, "trace", trace)
        with pytest.raises(expected):
            check_program(parts)
