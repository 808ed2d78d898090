from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from helpers_protocol import fill, finished, make_plan
from isotherm.analysis.analysis import analyse
from isotherm.core.budget import Budget
from isotherm.core.records import RunResult, RunSpec
from isotherm.report.study.budgets import budget_pictures
from isotherm.report.study.folder import write_report
from isotherm.sweep.results import Results
from isotherm.sweep.rounds import missing_runs

NO_GAIN = "doubling gains no more than the error"


def accuracy(spec: RunSpec) -> RunResult:
    """Return an accuracy that rises to 4 epochs at B = 8 and to 8 at B = 16."""
    epochs = spec.num_steps * spec.batch_size / 64
    off = math.log2(epochs / (4 if spec.batch_size == 8 else 8))
    rate = math.log2(spec.effective_learning_rate)
    return finished(0.9 - 0.02 * abs(off) - 0.01 * rate**2 + 0.001 * spec.seed, train_loss=0.1 + 0.01 * rate**2)


def results_of(**changes: Any) -> Results:
    until = Budget.until(first=1, at_most=32, target=changes.pop("target", None))
    fields = {"budgets": until.budgets, "until": until, "batch_sizes": (8, 16), "max_extensions": 0}
    plan = make_plan(**{**fields, **changes})
    found: dict[str, RunResult] = {}
    while specs := missing_runs([plan], found):
        fill(found, specs, accuracy)
    return Results(plan=plan, by_key=found)


def test_budgets_on_the_left_and_updates_to_a_common_target_on_the_right() -> None:
    (picture,) = budget_pictures(analyse(results_of()).sweeps[0])
    left, right = picture.figure().axes
    assert left.get_xlabel() == "number of epochs"
    assert right.get_ylabel() == "updates to the target"
    assert f"B = 8, m = 0: best at 4 epochs, 0.9005; ends at 8 epochs: {NO_GAIN}" in picture.caption
    assert "updates to 90.05, the best value that every batch size reaches" in picture.caption
    assert [row["budget"] for row in picture.rows if row["batch_size"] == 8] == [
        "1 epoch",
        "2 epochs",
        "4 epochs",
        "8 epochs",
    ]
    assert [row["ends"] for row in picture.rows if row["ends"]] == [NO_GAIN] * 2


def test_the_target_of_the_sweep_is_used_where_there_is_one() -> None:
    (picture,) = budget_pictures(analyse(results_of(target=0.87)).sweeps[0])
    assert "updates to 87, the target" in picture.caption
    assert "the target is met" in picture.caption


def test_the_report_and_the_summary_have_them(tmp_path: Path) -> None:
    files = write_report(results_of(), tmp_path)
    page = files.page.read_text()
    assert "budgets that double" in page
    assert "Budgets double from 1 epoch, each with its own optimum" in page
    with (tmp_path / "budgets.csv").open() as table:
        assert len(list(csv.DictReader(table))) == 4 + 5
    content = json.loads(files.summary.read_text())
    assert [entry["best"] for entry in content["budgets"]] == ["4 epochs", "8 epochs"]
    assert [entry["reason"] for entry in content["budgets"]] == [NO_GAIN] * 2
    assert {sweep["budget"]["amount"] for sweep in content["sweeps"]} == {1, 2, 4, 8, 16}


def test_what_an_estimate_saved_is_in_the_report(tmp_path: Path) -> None:
    plan = {"budgets": (Budget.epochs(4),), "until": None, "estimate_at": Budget.epochs(1)}
    files = write_report(results_of(**plan), tmp_path)
    (saving,) = json.loads(files.summary.read_text())["savings"]
    assert saving["fraction"] == pytest.approx((2 * 4 - 5) / (5 * 4))
    page = files.page.read_text()
    assert "Grids were estimated at 1 epoch" in page
    assert "Every grid is run at 1 epoch first" in page


def test_other_sweeps_have_no_such_figure() -> None:
    results = results_of(budgets=(Budget.epochs(4),), until=None)
    assert budget_pictures(analyse(results).sweeps[0]) == []
