"""docs/results.md and the README say what the result files say."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

import results_report as report
from helpers_tasks import small_built_in
from isotherm.analysis.analysis import Analysis, SweepAnalysis
from isotherm.analysis.series import tuned_grids
from isotherm.analysis.verdicts.claim import STATES, Verdict
from isotherm.core.records import Outcome, RunResult, RunSpec
from isotherm.report.paper.finding import Finding, find_record, origin_words
from isotherm.report.paper.page import findings_by_object
from isotherm.report.paper.tables import results_table
from isotherm.studies.paper.definition import Scale
from isotherm.studies.paper.registry import objects
from isotherm.studies.paper.shipped import Record, records_in
from pages import paper_objects
from pages.paper import TABLE_6, TABLE_7, PaperTable
from pages.results import ROOT

RUN_SO_FAR = [pytest.param(table, id=table.name) for table in (TABLE_6, TABLE_7) if table.file.exists()]


# All objects at laptop scale take a minute of processor time, nearly all of it for fits behind the verdicts. Fits are
# made again for these, which ask every kind of claim, and for all rows of the paper's own networks: this sees changed
# code. Of the other sections everything that needs no fit is compared: this sees changed rows.
JUDGED_AGAIN = ("figure1", "figure2", "figure3", "figure5", "figure9", "figure10", "table1", "x1")
REMEDY = "run python benchmarks/results_report.py"
BLOCK = report.PAGE.block_in(report.DOCUMENTS[0].read_text(), "objects")
SECTIONS = {text.splitlines()[0]: text.strip() for text in re.split(r"(?=^## )", BLOCK, flags=re.MULTILINE)[1:]}
RECORDS = {f"{record.wanted.identifier}_{record.scale}": record for record in records_in(ROOT / "results")}


def without_fits(record: Record) -> Finding:
    """Return what is found without fitting; the verdicts are those that the section has."""
    study = record.results
    analysis = Analysis(
        results=study,
        counts=study.counts(),
        sweeps=tuple(SweepAnalysis(plan=one.plan, grids=tuned_grids(one), series=()) for one in study.sweeps),
        joint_regimes=(),
        verdicts=(),
        recommendations=(),
    )
    finding = Finding(
        wanted=record.wanted, scale=record.scale, analysis=analysis, verdicts=(), origin=origin_words(record)
    )
    cells = [row.split(" | ") for row in SECTIONS.get(paper_objects.heading(finding), "").splitlines()]
    states = {f"| {words}": holds for holds, words in STATES.items()}
    verdicts = [Verdict(claim=row[1], holds=states[row[0]], evidence=row[2]) for row in cells if row[0] in states]
    return dataclasses.replace(finding, verdicts=tuple(verdicts))


def test_there_is_a_section_for_every_record() -> None:
    wanted = {f"## {r.wanted.title}, scale {r.scale}" for r in RECORDS.values()}
    assert set(SECTIONS) == {*wanted, "## Figure 4, scale paper"}, REMEDY


@pytest.mark.parametrize("name", RECORDS)
def test_tables_captions_and_claims_are_those_of_the_rows(name: str) -> None:
    finding = without_fits(RECORDS[name])
    text = SECTIONS[paper_objects.heading(finding)]
    assert paper_objects.caption(finding) in text, REMEDY
    assert paper_objects.titled(results_table(finding.wanted, finding)) in text, REMEDY
    assert [verdict.claim for verdict in finding.verdicts] == [claim.text for claim in finding.wanted.claims], REMEDY


@pytest.mark.parametrize(
    "name", [n for n, r in RECORDS.items() if r.scale is Scale.PAPER or r.wanted.identifier in JUDGED_AGAIN]
)
def test_sections_are_as_generated(name: str) -> None:
    finding = find_record(RECORDS[name])
    assert paper_objects.section(finding) == SECTIONS[paper_objects.heading(finding)], REMEDY


@pytest.mark.parametrize("document", report.DOCUMENTS, ids=lambda document: document.name)
def test_everything_else_is_as_generated(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one-line table counts the verdicts that the sections have."""
    computed = findings_by_object([])["figure4"]
    monkeypatch.setattr(paper_objects, "findings", lambda: [*map(without_fits, RECORDS.values()), *computed])
    text = document.read_text()
    blocks = {**report.PAGE.blocks, "objects": lambda: report.PAGE.block_in(text, "objects")}
    assert dataclasses.replace(report.PAGE, blocks=blocks).filled(text) == text, f"{document.name}: {REMEDY}"
    assert paper_objects.section(*computed) == SECTIONS["## Figure 4, scale paper"], REMEDY


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
