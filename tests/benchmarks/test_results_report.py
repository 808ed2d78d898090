"""docs/results.md says what the result files say."""

from __future__ import annotations

import json

import pytest

import results_report as report
import table7 as script
from helpers_tasks import small_built_in
from isotherm.core.records import Outcome, RunResult, RunSpec
from isotherm.running.store import StoredRun
from pages import table7


def test_the_document_is_as_generated() -> None:
    text = report.DOCUMENT.read_text()
    assert report.PAGE.names_in(text) == list(report.PAGE.blocks)
    assert report.PAGE.filled(text) == text, "run python benchmarks/results_report.py"


def test_every_row_of_the_file_is_a_run_of_the_table() -> None:
    content = json.loads(script.FILE.read_text())
    specs = [RunSpec.from_json(row["spec"]) for row in content["runs"]]
    results = [RunResult.from_json(row["result"]) for row in content["runs"]]
    assert len({spec.key for spec in specs}) == len(specs) == content["num_runs"]
    assert {spec.num_steps for spec in specs} == {script.NUM_STEPS}
    assert {spec.effective_learning_rate for spec in specs} == set(script.RATES)
    assert {spec.seed for spec in specs} == set(range(script.NUM_SEEDS))
    assert all(result.outcome is Outcome.FINISHED for result in results)


def test_the_rows_are_still_found_under_the_task_s_key() -> None:
    """Results of GPU hours survive moved files and faster kernels; raising the version would give them up."""
    content = json.loads(script.FILE.read_text())
    assert {row["spec"]["model_id"] for row in content["runs"]} == {
        small_built_in("autoencoder_mnist").identify().model_id
    }


def test_the_best_five_of_seven_are_those_with_the_lowest_test_error() -> None:
    results = [{"test_metric": float(k), "train_metric": 10.0 * k} for k in (7, 3, 1, 2, 5, 6, 4)]
    assert table7._kept(results, "test_metric").mean == pytest.approx(3.0)
    assert table7._kept(results, "train_metric").mean == pytest.approx(30.0)


def test_a_batch_size_without_runs_is_said_to_be_so() -> None:
    ((size, _, test, *_),) = table7._rows(4096, [])
    assert (size, test) == ("4,096", "not run")


def test_runs_are_exported_in_the_order_of_the_table() -> None:
    common = {"task": "t", "data_id": "d", "model_id": "m", "num_steps": 1, "momentum": 0.9, "l2": 0.0}
    common |= {"gamma": 2.0, "l2_scope": "all", "precision": "mixed", "num_evaluations": 10}
    settings = [(256, 0.04, 0), (64, 0.08, 1), (64, 0.08, 0), (64, 0.04, 0)]
    runs = [
        StoredRun(
            spec=RunSpec(batch_size=size, effective_learning_rate=rate, seed=seed, **common),
            result=RunResult(outcome=Outcome.FINISHED, test_metric=1.0),
            provenance={"device": "cpu"},
        )
        for size, rate, seed in settings
    ]
    content = script.exported(runs, commit="abc", command="run")
    rows = [RunSpec.from_json(row["spec"]) for row in content["runs"]]
    assert [(spec.batch_size, spec.effective_learning_rate, spec.seed) for spec in rows] == sorted(settings)
    assert content["num_runs"] == 4
