"""Stores of earlier schemas: read as they are, brought to the present schema by the first writer, never reused."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from helpers_protocol import Recorder, tiny_sweep
from isotherm.cli.main import app
from isotherm.core.records import Identity, Outcome, RunSpec
from isotherm.errors import StoreError
from isotherm.running.runner import run
from isotherm.running.store import SCHEMA_VERSION, Store
from isotherm.sweep.plan import StudyPlan
from isotherm.sweep.results import StudyResults

# As it was written by schemas 1 and 2; do not take it from the code, which may change.
OLD_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    key TEXT PRIMARY KEY,
    outcome TEXT NOT NULL CHECK (outcome IN ('finished', 'diverged', 'failed')),
    task TEXT NOT NULL,
    batch_size INTEGER NOT NULL,
    num_steps INTEGER NOT NULL,
    effective_learning_rate REAL NOT NULL,
    momentum REAL NOT NULL,
    seed INTEGER NOT NULL,
    spec TEXT NOT NULL,
    result TEXT NOT NULL,
    provenance TEXT NOT NULL,
    stored_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS studies (
    name TEXT PRIMARY KEY,
    definition TEXT NOT NULL,
    stored_at REAL NOT NULL
) WITHOUT ROWID;
PRAGMA application_id = 352841283;
PRAGMA journal_mode = WAL;
"""
SPEC: dict[str, Any] = {
    "task": "mine",
    "data_id": "a" * 64,
    "model_id": "b" * 64,
    "batch_size": 16,
    "num_steps": 10,
    "momentum": 0.9,
    "gamma": 2.0,
    "l2": 0.0005,
    "l2_scope": "weights",
    "precision": "float32",
    "num_evaluations": 0,
}
RESULT: dict[str, Any] = {
    "outcome": "finished",
    "train_loss_running": 0.5,
    "last_batch_loss": 0.25,
    "train_loss": 0.375,
    "l2_penalty": 0.125,
    "weight_norm_squared": 500.0,
    "validation_loss": None,
    "validation_metric": None,
    "test_loss": 0.75,
    "test_metric": 0.625,
    "divergence_step": None,
    "curve": [{"step": 10, "test_loss": 0.75, "test_metric": 0.625}],
    "error": None,
}
RATES = [0.25, 0.5, 1.0]
PLAN: dict[str, Any] = {
    "name": "old",
    **{key: SPEC[key] for key in ("task", "data_id", "model_id", "l2", "l2_scope", "precision", "num_evaluations")},
    "num_train": 64,
    "metric": "accuracy",
    "metric_direction": "maximise",
    "batch_sizes": [16],
    "learning_rates": [RATES],
    "budgets": [{"unit": "steps", "amount": 10}],
    "momenta": [0.9],
    "schedule": {"gamma": 2.0, "final_effective_learning_rate": None},
    "seeds": [0, 1],
    "num_kept": 2,
    "tune_on": "test",
    "tune_quantity": "metric",
    "max_extensions": 0,
}
# What schema 2 added.
SINCE_2: dict[str, dict[str, Any]] = {
    "spec": {"clip_norm": None},
    "result": {"train_metric": 0.875, "test_metric_running": None, "clipped_fraction": None, "loss_scale": 1.0},
    "plan": {"extend_for": "tuned", "clip_norm": None, "unroll": None},
}


def old_store(path: Path, *, schema: int) -> Path:
    """Write a store with a finished study of six runs as Isotherm did then."""
    added = SINCE_2 if schema == 2 else {key: {} for key in SINCE_2}
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(OLD_SCHEMA)
        connection.execute(f"PRAGMA user_version = {schema}")
        for rate in RATES:
            for seed in (0, 1):
                spec = {**SPEC, "effective_learning_rate": rate, "seed": seed, **added["spec"]}
                result = {**RESULT, "test_metric": 0.5 + rate / 4, **added["result"]}
                connection.execute(
                    "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        RunSpec.from_json(spec).key,
                        *("finished", "mine", 16, 10, rate, 0.9, seed),
                        *(json.dumps(spec), json.dumps(result), '{"device": "cpu"}', 1.5e9 + seed),
                    ),
                )
        study = {"name": "old", "question": "", "sweeps": [{**PLAN, **added["plan"]}]}
        connection.execute("INSERT INTO studies VALUES ('old', ?, 1.5e9)", (json.dumps(study),))
    return path


def content(path: Path) -> tuple[int, list[Any], list[Any]]:
    """Return the schema's number and every row of runs and studies as it is in the file, checksums left out."""
    with closing(sqlite3.connect(path)) as connection:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        runs, studies = (connection.execute(f"SELECT * FROM {name}").fetchall() for name in ("runs", "studies"))
        return version, [row[:12] for row in runs], [row[:3] for row in studies]


@pytest.fixture(params=[1, 2], ids=["schema 1", "schema 2"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return old_store(tmp_path / "old.sqlite", schema=request.param)


def test_an_old_store_is_read_and_stays_as_it_is(path: Path) -> None:
    before = content(path)
    with Store.read(path) as store:
        assert store.counts()[Outcome.FINISHED] == 6
        assert {run.result.test_metric for run in store.runs()} == {0.5625, 0.625, 0.75}
        plan = StudyPlan.from_json(store.studies()["old"])
        results = StudyResults(plan=plan, by_key=store.results())
        assert (store.parts(), store.num_unidentified()) == ({}, 6)
    assert results.sweeps[0].counts() == {"finished": 6, "diverged": 0, "failed": 0, "missing": 0}
    assert content(path) == before


def test_a_writer_brings_it_to_the_present_schema_and_keeps_every_row(path: Path) -> None:
    _, runs, studies = content(path)
    for _ in range(2):
        with Store.write(path) as store:
            assert (store.parts(), store.num_unidentified()) == ({}, 6)
    assert content(path) == (SCHEMA_VERSION, runs, studies)
    with Store.write(path) as store:
        identity = Identity(
            data_id=SPEC["data_id"], model_id=SPEC["model_id"], data_parts={"x": "1"}, model_parts={"y": "2"}
        )
        store.put_identity(identity)
        assert store.num_unidentified() == 0


def test_a_run_into_an_old_store_says_that_its_runs_are_not_reused(path: Path) -> None:
    recorder, again = Recorder(), Recorder()
    run(tiny_sweep(), store=path, progress=recorder)
    assert len(recorder.notes) == 1
    assert recorder.notes[0].startswith("6 runs were stored by an earlier version with different keys")
    assert "kept and reported but not reused" in recorder.notes[0]
    run(tiny_sweep(), store=path, progress=again)
    assert (again.rounds, len(again.notes)) == ([], 1)
    with Store.read(path) as store:
        assert len(store.results()) == 12
        assert list(store.studies()) == ["old", "sweep"]


def test_a_store_of_now_has_nothing_to_say(tmp_path: Path) -> None:
    recorder = Recorder()
    run(tiny_sweep(), store=tmp_path / "new.sqlite")
    run(tiny_sweep(), store=tmp_path / "new.sqlite", progress=recorder)
    assert recorder.notes == []


def test_commands_show_an_old_store(path: Path, tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["status", str(path)])
    assert shown.exit_code == 0, shown.output
    assert "old" in shown.output
    report = CliRunner().invoke(app, ["report", str(path), "--output", str(tmp_path / "report")])
    assert report.exit_code == 0, report.output
    assert (tmp_path / "report" / "report.html").is_file()


# -- identities -------------------------------------------------------------------------------------------------


def test_the_parts_of_a_runs_key_are_kept_once(tmp_path: Path) -> None:
    sweep = tiny_sweep(batch_sizes=[8, 16])
    path = tmp_path / "store.sqlite"
    run(sweep, store=path)
    expected = sweep.prepared_task.identify()
    with Store.read(path) as store:
        assert store.parts() == {expected.data_id: expected.data_parts, expected.model_id: expected.model_parts}
        assert {(stored.spec.data_id, stored.spec.model_id) for stored in store.runs()} == {expected.ids}


def test_damaged_parts_are_named(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    run(tiny_sweep(), store=path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE parts SET content = '{'")
    with Store.read(path) as store, pytest.raises(StoreError, match="damaged row"):
        store.parts()
