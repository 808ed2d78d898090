"""The lines to paste train what Isotherm trains: they are executed, and the parameters compared."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import cases
from helpers_engines import assert_same_parameters, by_reference
from isotherm.core.optimizers import SGD, Adam, AdamW, Muon, Optimizer
from isotherm.core.records import RunSpec
from isotherm.core.schedule import Schedule
from isotherm.core.torch_code import torch_code
from isotherm.engine.placed_task import place_task
from isotherm.tasks.losses import cross_entropy
from isotherm.tasks.seeding import DataOrder, initial_model
from isotherm.tasks.task import Task

NUM_STEPS = 43


def function(done: float) -> float:
    return 0.1 + 0.9 * math.exp(-5 * done)


SCHEDULES = {
    "paper": Schedule(),
    "paper, warm-up": Schedule(gamma=1.5, warmup_steps=6),
    "constant": Schedule.constant(),
    "constant, warm-up": Schedule.constant(warmup_steps=5),
    "linear": Schedule.linear(final_fraction=0.1),
    "linear, warm-up": Schedule.linear(warmup_steps=7),
    "linear to a tenth, warm-up of 1": Schedule.linear(warmup_steps=1, final_fraction=0.1),
    "cosine": Schedule.cosine(final_fraction=0.1),
    "cosine, warm-up": Schedule.cosine(warmup_steps=7, final_fraction=0.2),
    "wsd": Schedule.wsd(final_fraction=0.1),
    "wsd, warm-up": Schedule.wsd(warmup_steps=4),
    "piecewise": Schedule.piecewise([(0, 0.5), (0.5, 1), (0.5, 0.25), (1, 0)], warmup_steps=3),
    "a function": Schedule.of(function),
    "a function, warm-up": Schedule.of(lambda done: 2 * function(done), warmup_steps=4),
}
OPTIMIZERS: dict[str, tuple[Optimizer, dict[str, Any]]] = {
    "SGD": (SGD(momentum=0.0), {"l2": 0.0}),
    "momentum": (SGD(momentum=0.9), {"l2": 0.01}),
    "momentum, all decay": (SGD(momentum=0.5), {"l2": 0.01, "l2_scope": "all"}),
    "Nesterov": (SGD(momentum=0.9, nesterov=True), {"l2": 0.0}),
    "Adam": (Adam(beta2=0.99), {"l2": 0.01}),
    "AdamW": (AdamW(weight_decay=0.1, beta1=0.8), {"l2": 0.0}),
    "AdamW, all decay": (AdamW(weight_decay=0.1), {"l2": 0.0, "l2_scope": "all"}),
    "AdamW without decay": (AdamW(weight_decay=0.0), {"l2": 0.0}),
}


def spec_of(task: Task, schedule: Schedule, method: Optimizer, *, rate: float = 0.03, **changes: Any) -> RunSpec:
    gamma, rest = schedule.of_run(num_steps=NUM_STEPS, initial=rate)
    momentum = method.momentum if isinstance(method, SGD) else 0.0
    fields = {"gamma": gamma, "schedule": rest, "momentum": momentum, "optimizer": method, **changes}
    return cases.spec(task, num_steps=NUM_STEPS, effective_learning_rate=rate, **fields)


def by_pasted_lines(task: Task, spec: RunSpec, own: Callable[[float], float] = function) -> dict[str, torch.Tensor]:
    """Train with the lines, in a loop as anyone writes it."""
    inputs, targets = task.train[0].double(), task.train[1]
    model = initial_model(task.model, seed=spec.seed).double()
    names: dict[str, Any] = {"torch": torch, "model": model, "function": own}
    exec("\n".join(torch_code(spec)), names)
    optimizers = names.get("optimizers") or [names["optimizer"]]
    schedulers = names.get("schedulers") or ([names["scheduler"]] if "scheduler" in names else [])
    for batch in DataOrder(seed=spec.seed, num_train=len(inputs), batch_size=spec.batch_size).block(0, spec.num_steps):
        model.zero_grad()
        cross_entropy(model(inputs[batch]), targets[batch]).backward()
        if spec.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), spec.clip_norm)
        for one in (*optimizers, *schedulers):
            one.step()
    return {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", SCHEDULES)
def test_pasted_lines_train_what_isotherm_trains_with_every_schedule(name: str) -> None:
    task, own = cases.blobs_task(), (lambda done: 2 * function(done)) if "warm" in name else function
    spec = spec_of(task, SCHEDULES[name], SGD(momentum=0.9), rate=0.3, l2=0.01)
    _, ours = by_reference(place_task(task, precision="float64"), spec)
    tolerance = 1e-5 if name.startswith("a function") else 1e-10  # a function is kept to within 1e-5
    assert_same_parameters(by_pasted_lines(task, spec, own), ours, tolerance=tolerance)


@pytest.mark.parametrize("schedule", ["paper", "cosine, warm-up"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_pasted_lines_train_what_isotherm_trains_with_every_optimiser(name: str, schedule: str) -> None:
    task, (method, changes) = cases.blobs_task(), OPTIMIZERS[name]
    spec = spec_of(task, SCHEDULES[schedule], method, **changes)
    _, ours = by_reference(place_task(task, precision="float64"), spec)
    assert_same_parameters(by_pasted_lines(task, spec), ours, tolerance=1e-10)


@pytest.mark.parametrize("scope", ["weights", "all"])
def test_pasted_lines_of_muon(scope: str) -> None:
    """PyTorch's Muon orthogonalises in bfloat16, a run in its own precision: they agree as bfloat16 does."""
    task = cases.blobs_task()
    spec = spec_of(task, SCHEDULES["linear, warm-up"], Muon(adamw_ratio=0.5), l2=0.0, l2_scope=scope)
    _, ours = by_reference(place_task(task, precision="float64"), spec)
    pasted = by_pasted_lines(task, spec)
    assert_same_parameters(pasted, ours, tolerance=0.05, smallest=0.5)
    start = dict(initial_model(task.model, seed=spec.seed).double().named_parameters())
    assert all(float((pasted[name] - start[name]).detach().norm()) > 0.2 for name in start if "weight" in name)


def test_clipping_as_the_comment_says() -> None:
    task = cases.blobs_task()
    spec = spec_of(task, SCHEDULES["paper"], SGD(momentum=0.9), rate=0.3, l2=0.0, clip_norm=0.2)
    result, ours = by_reference(place_task(task, precision="float64"), spec)
    assert result.clipped_fraction is not None
    assert result.clipped_fraction > 0.2
    assert_same_parameters(by_pasted_lines(task, spec), ours, tolerance=1e-5)  # PyTorch adds 1e-6 to the norm
    assert "clip_grad_norm_(model.parameters(), 0.2)" in torch_code(spec)[-1]


def test_another_learning_rate_would_be_seen() -> None:
    task = cases.blobs_task()
    spec = spec_of(task, SCHEDULES["cosine"], SGD(momentum=0.9), rate=0.3)
    _, ours = by_reference(place_task(task, precision="float64"), spec)
    other = dataclasses.replace(spec, effective_learning_rate=0.3001)
    with pytest.raises(AssertionError):
        assert_same_parameters(by_pasted_lines(task, other), ours, tolerance=1e-10)
