"""One cell: its precision, and the study it is."""

from __future__ import annotations

import pytest
import torch

from helpers_cli import small_cell
from isotherm.core.budget import Budget
from isotherm.core.optimizers import SGD, AdamW, Muon
from isotherm.core.schedule import Schedule


def test_the_precision_of_the_task_on_a_gpu_and_float32_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu = small_cell()
    assert on_cpu.plan.precision == "float32"
    assert "on this CPU it is trained in float32" in on_cpu.notes[0]
    assert small_cell(precision="mixed").plan.precision == "mixed"
    monkeypatch.setattr("isotherm.cli.cell.checked_device", torch.device)
    on_gpu = small_cell(device="cuda")
    assert (on_gpu.plan.precision, on_gpu.notes) == ("mixed", ())
    assert ", mixed, cuda, " in on_gpu.line()
    assert small_cell(device="cuda", precision="float64").plan.precision == "float64"


ADAMW = {"optimizer": AdamW(), "effective_learning_rate": None, "learning_rate": 0.01}


def test_the_line_of_an_optimiser_without_a_temperature() -> None:
    cell = small_cell(**ADAMW)
    assert "ε = 0.01, AdamW, 3 updates" in cell.line()
    assert "ε_eff" not in cell.line()
    assert "T =" not in cell.line()
    assert cell.temperature is None
    nesterov = small_cell(optimizer=SGD(nesterov=True)).line()
    assert "ε_eff = 0.5, ε = 0.05, Nesterov momentum 0.9, T = 0.0625" in nesterov


def test_every_setting_has_its_own_study() -> None:
    changes: list[dict[str, object]] = [
        {},
        {"batch_size": 4},
        {"effective_learning_rate": 0.5000001},
        {"budget": Budget.steps(4)},
        {"budget": Budget.epochs(4)},
        {"momentum": 0.0},
        {"l2": 0.0},
        {"clip_norm": float("inf")},
        {"clip_norm": 2.0},
        {"precision": "float64"},
        {"first_seed": 3},
        {"num_evaluations": 3},
        {"optimizer": SGD(nesterov=True)},
        {**ADAMW},
        {**ADAMW, "optimizer": AdamW(weight_decay=0.1)},
        {**ADAMW, "optimizer": Muon()},
        {"schedule": Schedule.cosine()},
        {"schedule": Schedule.cosine(warmup_steps=1)},
        {"schedule": Schedule.cosine(final_fraction=0.1)},
        {"schedule": Schedule(warmup_fraction=0.5)},
    ]
    names = [small_cell(**change).study.name for change in changes]
    assert len(set(names)) == len(names)
    assert names[0] == "small-B8-lr0.5-m0.9-3steps-float32"
    assert small_cell(num_seeds=5).study.name == names[0]  # more seeds of the same cell
