"""docs/results.md and the README say what the result files say."""

from __future__ import annotations

import dataclasses
import json

import pytest

import results_report as report
from helpers_tasks import small_built_in
from isotherm.core.records import Outcome, RunResult, RunSpec
from isotherm.report.paper.page import findings_by_object
from isotherm.studies.paper.definition import Scale
from isotherm.studies.paper.registry import objects
from pages import paper_objects
from pages.paper import TABLE_6, TABLE_7, PaperTable

RUN_SO_FAR = [pytest.param(table, id=table.name) for table in (TABLE_6, TABLE_7) if table.file.exists()]


def test_the_documents_are_as_generated() -> None:
    """One test for both: what the rows say is computed once."""
    for document in report.DOCUMENTS:
        text = document.read_text()
        assert report.PAGE.filled(text) == text, f"{document.name}: run python benchmarks/results_report.py"


def test_every_block_has_a_document() -> None:
    assert report.PAGE.names_in(report.DOCUMENTS[0].read_text()) == list(report.PAGE.blocks)


def test_a_scale_does_not_hide_another(monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = findings_by_object([])["figure4"]
    unfinished = [dataclasses.replace(finding, wanted=objects()["table6"], scale=scale) for scale in Scale]
    monkeypatch.setattr(paper_objects, "findings", lambda: unfinished)
    monkeypatch.setattr(paper_objects, "cells", dict)
    (row,) = [line for line in paper_objects.contents_block().splitlines() if line.startswith("| Table 6")]
    assert row.count("<br>") == 6  # four scales with rows, in two cells


@pytest.mark.parametrize("table", RUN_SO_FAR)
def test_every_row_of_the_file_is_a_run_of_the_table(table: PaperTable) -> None:
    content = json.loads(table.file.read_text())
    specs = [RunSpec.from_json(row["spec"]) for row in content["runs"]]
    results = [RunResult.from_json(row["result"]) for row in content["runs"]]
    assert len({spec.key for spec in specs}) == len(specs) == content["num_runs"]
    assert {spec.num_steps for spec in specs} == {table.num_steps}
    cells = {
        (size, rate, seed) for size, rates in table.rates.items() for rate in rates for seed in range(table.num_seeds)
    }
    assert {(spec.batch_size, spec.effective_learning_rate, spec.seed) for spec in specs} <= cells
    assert all(result.outcome is Outcome.FINISHED for result in results)


@pytest.mark.parametrize("table", RUN_SO_FAR)
def test_the_rows_are_still_found_under_the_task_s_key(table: PaperTable) -> None:
    """Results of GPU hours survive moved files and faster kernels; raising the version would give them up."""
    content = json.loads(table.file.read_text())
    options = {"vocabulary": 10_000} if table.task == "lstm_ptb" else {}
    identity = small_built_in(table.task).with_options(model=options).identify()
    assert {row["spec"]["model_id"] for row in content["runs"]} == {identity.model_id}
