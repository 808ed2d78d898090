"""`isotherm status --why`: which part of a key keeps stored runs from being reused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isotherm.cli.main import app

CODE = """
import torch, isotherm as it
from torch import nn

def sweep(seed=0, loss="cross_entropy"):
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(32, 3, generator=generator), torch.arange(32) % 2
    task = it.Task(name="mine", model=lambda: nn.Linear(3, 2), train=(x, y), test=(x[:8], y[:8]), metric=loss)
    return it.Sweep(name="tiny", task=task, batch_sizes=[8], effective_learning_rates=[0.125, 0.5],
                    budget=it.Budget.steps(4), num_seeds=2, tune_on="test", max_extensions=0, resolution="paper")

def other_data():
    return sweep(seed=1)
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("mystudy", None)
    Path("mystudy.py").write_text(CODE)


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_why_names_the_part_that_differs() -> None:
    invoke("run", "mystudy:sweep", "--workers", "1", "--store", "runs.sqlite")
    assert invoke("status", "runs.sqlite", "--why", "mystudy:sweep") == "no run is missing"
    text = invoke("status", "runs.sqlite", "--why", "mystudy:other_data", "--json", "why.json")
    assert text == (
        "mine: 4 runs are missing; the store has 4 runs that differ from them only in the data "
        "(train inputs, test inputs); are the data made with a fixed seed?"
    )
    content = json.loads(Path("why.json").read_text())
    assert (content["study"], content["num_missing"], content["num_unlike"]) == ("tiny", 4, 0)
    assert content["near_matches"][0]["differences"][0]["parts"] == ["train inputs", "test inputs"]


def test_why_counts_runs_that_nothing_is_like() -> None:
    invoke("run", "mystudy:sweep", "--workers", "1", "--store", "runs.sqlite")
    text = invoke("status", "runs.sqlite", "--why", "quickstart")
    assert text.startswith("missing, and unlike any other run of the store: ")
