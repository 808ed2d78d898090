"""One cell: its setting, its precision, and its tables in any terminal."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from isotherm.cli.cell import Cell, CellResults, prepare_cell, run_cell
from isotherm.cli.cell_options import CellSettings
from isotherm.cli.show.cell import cell_summary, cell_tables, run_sentences
from isotherm.core.budget import Budget
from isotherm.core.json import json_text
from isotherm.core.records import Outcome, RunResult
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.tasks.task import Task


def small_model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 1), GhostBatchNorm2d(2, ghost_size=4), nn.Flatten(), nn.Linear(8, 2))


def small_cell(*, device: str = "cpu", **changes: object) -> Cell:
    inputs = torch.randn(16, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    targets = (inputs.sum(dim=(1, 2, 3)) > 0).long()
    task = Task(
        name="small",
        model=small_model,
        train=(inputs, targets),
        test=(inputs[:8], targets[:8]),
        l2=1e-3,
        clip_norm=1.0,
        precision="mixed",
    )
    settings = CellSettings(batch_size=8, effective_learning_rate=0.5, budget=Budget.steps(3), num_seeds=3)
    return prepare_cell(task, dataclasses.replace(settings, **changes), device=device)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> CellResults:
    return run_cell(small_cell(), tmp_path_factory.mktemp("cell") / "small.sqlite")


def shown(results: CellResults, width: int) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=width)
    for table in cell_tables(results, width=width):
        console.print(table)
    return stream.getvalue().splitlines()


def with_result(results: CellResults, place: int, **fields: object) -> CellResults:
    runs = list(results.runs)
    runs[place] = dataclasses.replace(runs[place], result=RunResult(**fields))  # type: ignore[arg-type]
    return dataclasses.replace(results, runs=tuple(runs))


@pytest.mark.parametrize(("width", "num_tables"), [(60, 2), (80, 2), (120, 1)])
def test_tables_fit_the_terminal_and_cut_nothing(results: CellResults, width: int, num_tables: int) -> None:
    lines = shown(results, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "…" not in text
    assert sum("seed" in line for line in lines) == num_tables
    assert sum(" mean " in line for line in lines) == num_tables
    for words in ("test loss", "penalty", "loss + L2", "clipped %", "averages"):
        assert words in text


def test_a_diverged_run_is_left_out_of_the_mean_and_named(results: CellResults) -> None:
    changed = with_result(results, 1, outcome=Outcome.DIVERGED, divergence_step=1)
    text = "\n".join(shown(changed, 120))
    assert "mean and sd of the 2 of 3 runs that finished" in text
    assert "–" in text
    assert run_sentences(changed) == [
        "seed 1 diverged: its loss was not finite after 1 update; a smaller learning rate may do"
    ]
    content = cell_summary(changed, store=Path("small.sqlite"), seconds=1.0)
    assert content["counts"] == {"finished": 2, "diverged": 1, "failed": 0}
    losses = [changed.runs[place].result.quantity("test_loss") for place in (0, 2)]
    assert content["summary"]["test_loss"]["mean"] == pytest.approx(sum(losses) / 2)


def test_one_run_has_no_mean_and_none_no_table(results: CellResults) -> None:
    alone = dataclasses.replace(results, runs=results.runs[:1])
    assert not any("mean" in line for line in shown(alone, 120))
    nothing = with_result(alone, 0, outcome=Outcome.FAILED, error="RuntimeError: no")
    assert cell_tables(nothing, width=80) == []
    assert run_sentences(nothing) == ["seed 0 failed: RuntimeError: no"]


def test_json_has_no_infinities(results: CellResults) -> None:
    changed = with_result(results, 0, outcome=Outcome.FINISHED, test_metric=float("inf"), test_loss=1e4)
    text = json_text(cell_summary(changed, store=Path("small.sqlite"), seconds=1.0))
    assert '"test_metric": null' in text


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
    ]
    names = [small_cell(**change).study.name for change in changes]
    assert len(set(names)) == len(names)
    assert names[0] == "small-B8-lr0.5-m0.9-3steps-float32"
    assert small_cell(num_seeds=5).study.name == names[0]  # more seeds of the same cell
