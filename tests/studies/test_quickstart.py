"""`isotherm quickstart`: the real study, shrunk to a few updates, through the real command."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.core.budget import Budget
from isotherm.studies import STUDIES
from isotherm.studies.quickstart import quickstart
from isotherm.sweep.study import Study

GRID_KEYS = {
    "batch_size",
    "optimal_effective_learning_rate",
    "interval",
    "at_edge",
    "test_accuracy",
    "train_loss",
    "train_optimal_effective_learning_rate",
    "num_diverged",
}
ACCURACY_KEYS = {"mean", "standard_deviation", "num_kept", "num_seeds", "mean_all", "standard_deviation_all"}


def test_the_study_is_what_it_says() -> None:
    study = quickstart()
    found = [(s.name, s.momenta, str(s.budget), tuple(s.batch_sizes)) for s in study.sweeps]
    sizes = (8, 16, 32, 64, 128, 256, 512, 1024)
    fewer = tuple(size for size in sizes if size != 16)
    assert found == [
        ("constant_steps", (0.9,), "1,500 steps", sizes),
        ("constant_epochs", (0.0,), "20 epochs", fewer),
        ("constant_epochs", (0.9,), "20 epochs", fewer),
    ]
    assert [s.extend_for for s in study.sweeps] == ["tuned_and_train", "tuned", "tuned"]
    for sweep, num in zip(study.sweeps, (4, 3, 3), strict=True):
        plan = sweep.plan()
        assert (len(plan.seeds), plan.num_kept, len(plan.confirming_seeds)) == (num, num, num)
        assert (plan.resolution, plan.smallest_ratio) == ("adaptive", 2**0.5)
        assert plan.tune_on == "test"
        assert plan.l2 == 5e-4
        assert plan.num_train == 4000
        assert min(len(rates) for rates in plan.learning_rates) >= 3


def shrunk(data: Path | None) -> Study:
    study = quickstart(data)
    short = {"constant_steps": Budget.steps(12), "constant_epochs": Budget.epochs(0.4)}
    sweeps = tuple(
        dataclasses.replace(s, batch_sizes=(32, 64, 128, 256), budget=short[s.name], max_extensions=0)
        for s in study.sweeps
    )
    return dataclasses.replace(study, sweeps=sweeps)


@pytest.mark.slow
def test_the_command_writes_everything_it_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STUDIES, "quickstart", shrunk)
    monkeypatch.setenv("COLUMNS", "100")
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["quickstart", "--output", str(out), "--json", str(tmp_path / "q.json")])
    assert result.exit_code == 0, result.output

    content = json.loads((tmp_path / "q.json").read_text())
    assert content["seconds"] > 0
    assert [(s["name"], s["momentum"]) for s in content["sweeps"]] == [
        ("constant_steps", 0.9),
        ("constant_epochs", 0.0),
        ("constant_epochs", 0.9),
    ]
    for sweep, num in zip(content["sweeps"], (4, 3, 3), strict=True):
        assert [g["batch_size"] for g in sweep["grids"]] == [32, 64, 128, 256]
        for grid in sweep["grids"]:
            assert grid.keys() >= GRID_KEYS
            assert grid["test_accuracy"].keys() >= ACCURACY_KEYS
            assert (grid["test_accuracy"]["num_kept"], grid["test_accuracy"]["num_seeds"]) == (num, num)
            low, high = grid["interval"]
            assert low <= grid["optimal_effective_learning_rate"] <= high
            assert 0.0 <= grid["test_accuracy"]["mean"] <= 1.0
    claims = [v["claim"] for v in content["verdicts"]]
    for words in ("proportional", "kink", "below the kink", "equal steps", "best on the test set"):
        assert any(words in claim for claim in claims), words
    assert all(v["holds"] in (True, False, None) and v["evidence"] for v in content["verdicts"])

    names = {p.name for p in out.iterdir()}
    assert {"quickstart.sqlite", "report.html", "optima.csv", "runs.csv"} <= names
    for ending in (".png", ".pdf"):
        assert sum(n.endswith(ending) for n in names) >= 2
    assert "Verdicts" in result.output
    assert "report.html" in result.output
    for words in ("constant_steps", "constant_epochs"):
        assert words in result.output
