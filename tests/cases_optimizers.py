"""Small runs with every kind of optimiser, whose hyperparameters differ from run to run."""

from __future__ import annotations

import cases
from helpers_engines import Trained
from isotherm.core.optimizers import SGD, Adam, AdamW, Muon, Optimizer
from isotherm.core.records import RunSpec
from isotherm.tasks.task import Task

# Of every kind several, which share a fleet: each run has hyperparameters of its own.
KINDS: dict[str, tuple[Optimizer, ...]] = {
    "nesterov": (SGD(momentum=0.9, nesterov=True), SGD(momentum=0.5, nesterov=True)),
    "adam": (Adam(), Adam(beta1=0.5, beta2=0.9, epsilon=1e-3)),
    "adamw": (AdamW(weight_decay=0.5), AdamW(beta1=0.0, beta2=0.99, weight_decay=0.0), AdamW(weight_decay=0.01)),
    "muon": (Muon(), Muon(momentum=0.5, weight_decay=0.0, adamw_ratio=0.3), Muon(beta1=0.5, weight_decay=1.0)),
    "muon_original": (
        Muon(adjustment="original", nesterov=False),
        Muon(adjustment="original", nesterov=False, momentum=0.0),
    ),
}
RATES = (0.01, 0.03, 0.002)


def spec_of(task: Task, optimizer: Optimizer, rate: float, **changes) -> RunSpec:
    is_sgd = isinstance(optimizer, SGD)
    momentum = optimizer.momentum if is_sgd else 0.0
    coupled = isinstance(optimizer, SGD | Adam)
    fields = {"momentum": momentum, "l2": 5e-3 if coupled else 0.0, "effective_learning_rate": rate}
    return cases.spec(task, optimizer=optimizer, **{**fields, **changes})


def members(task: Task, kind: str, **changes) -> list[RunSpec]:
    """Return runs of one kind that differ in everything that may differ."""
    return [
        spec_of(task, optimizer, RATES[k], seed=k % 2, gamma=(2.0, 1.3)[k % 2], **changes)
        for k, optimizer in enumerate(KINDS[kind])
    ]


def compare_unused_bias(ours: list[Trained], expected: list[Trained]) -> None:
    """Take the bias before a batch norm out of the comparison, after one of its own.

    Its gradient is zero but for rounding, which Adam divides by no more than epsilon = 1e-8.
    """
    for (_, mine), (_, theirs) in zip(ours, expected, strict=True):
        difference = float((mine.pop("0.bias") - theirs["0.bias"]).norm())
        assert difference < 1e-7
    expected[:] = [(result, {n: p for n, p in theirs.items() if n != "0.bias"}) for result, theirs in expected]
