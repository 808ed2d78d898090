"""`runs.csv` is written column by column; what the csv module writes of the same rows is the definition."""

from __future__ import annotations

import csv
import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest

from helpers_optimizers import study_of_powers
from helpers_report import diverged, failed, finished, make_plan, make_study, peaked
from isotherm.core.records import RunResult
from isotherm.report.study.runs_table import runs_csv, runs_rows
from isotherm.running.store import Store, StoredRun
from isotherm.running.stored import open_results
from isotherm.sweep.results import StudyResults


def by_hand(study: StudyResults) -> bytes:
    rows = runs_rows(study)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([list(rows[0]), *(row.values() for row in rows)])
    return text.getvalue().encode()


def mixed(axes: Any, rate: float, place: int) -> RunResult | None:
    """Return runs that are missing, have diverged, have failed, or lack a number or have a strange one."""
    odd = [
        None,
        diverged(),
        failed('boom, "with" commas\nand a line'),
        dataclasses.replace(finished(float("nan")), test_loss=float("inf")),
        dataclasses.replace(finished(0.1 + 0.2, train_loss=1e-300), loss_scale=65_536.0),
    ]
    return odd[place] if rate in (0.25, 1.0) else peaked(axes, rate, place)


def from_store(study: StudyResults, path: Path) -> StudyResults:
    """Return the same results from arrays instead of objects."""
    runs = {**{key: spec for sweep in study.sweeps for key, spec in sweep.runs().items()}}
    with Store.write(path) as store:
        for key, result in study.by_key.items():
            store.put([StoredRun(spec=runs[key], result=result, provenance={})])
        store.put_study(study.plan.name, study.plan.to_json())
    return open_results(path)


@pytest.mark.parametrize("give", [peaked, mixed])
def test_it_is_what_the_csv_module_writes(give: Any, tmp_path: Path) -> None:
    rates = ((0.25, 0.5, 1.0, 2.0, 4.0),) * 2
    plans = make_plan(name='a, "quoted" name'), make_plan(name="other", batch_sizes=(8, 64), learning_rates=rates)
    study = make_study(*plans, give=give)
    expected = by_hand(study)
    assert b"".join(runs_csv(study)) == expected
    stored = from_store(study, tmp_path / "a.sqlite")
    assert b"".join(runs_csv(stored)) == by_hand(stored) == expected


def test_optimisers_other_than_sgd() -> None:
    study = study_of_powers()
    text = b"".join(runs_csv(study))
    assert text == by_hand(study)
    assert b"AdamW" in text


def test_without_runs_there_is_a_header() -> None:
    assert b"".join(runs_csv(make_study(make_plan(), give=lambda *_: None))).count(b"\n") == 1
