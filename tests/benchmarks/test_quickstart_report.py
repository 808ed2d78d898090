"""docs/quickstart.md and README.md say what the quickstart's committed runs say."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

import quickstart_report as report
from helpers_report import diverged, finished, make_plan, make_study
from isotherm.analysis.analysis import analyse
from isotherm.core.records import RunResult
from isotherm.report.study.tables import write_csv
from isotherm.sweep.plan import GridAxes
from pages import quickstart as page

SHOWN = [(name, document) for name, shown in report.SHOWN.items() for document in shown.documents]


@pytest.mark.parametrize(("name", "document"), SHOWN, ids=lambda value: getattr(value, "name", value))
def test_the_document_is_as_generated(name: str, document: Path) -> None:
    text = document.read_text()
    assert report.page_of(name).filled(text) == text, "run python benchmarks/quickstart_report.py"


@pytest.mark.parametrize("name", report.SHOWN)
def test_every_block_stands_in_a_document(name: str) -> None:
    page_ = report.page_of(name)
    shown = {block for document in report.SHOWN[name].documents for block in page_.names_in(document.read_text())}
    assert shown == set(page_.blocks)


@pytest.mark.parametrize("name", report.SHOWN)
def test_the_committed_runs_are_those_of_the_study_as_it_is(name: str) -> None:
    counts = report.stored(name).counts()
    assert counts == {**page.content(name)["counts"], "missing": 0, "failed": 0}


def test_runs_that_the_study_lacks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head, _first, *rest = report.runs_of("quickstart").read_text().splitlines(keepends=True)
    (tmp_path / "runs.csv").write_text("".join([head, *rest]))
    monkeypatch.setattr(page, "folder_of", lambda _: tmp_path)
    with pytest.raises(ValueError, match=r"runs\.csv lacks 1 runs of quickstart"):
        report.stored("quickstart")


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    def give(axes: GridAxes, rate: float, place: int) -> RunResult:
        return diverged() if rate == 4.0 else finished(0.7 + 0.001 * place, train_loss=0.1 / 3 * rate)

    study = make_study(make_plan(num_evaluations=0), give=give)
    write_csv(analyse(study), tmp_path)
    with (tmp_path / "runs.csv").open(newline="") as file:
        assert {row["key"]: report.result_of(row) for row in csv.DictReader(file)} == study.by_key


def verdict(state: str) -> dict[str, Any]:
    return {"state": state, "claim": "a claim", "evidence": "a slope", "p_corrected": 0.0004}


def test_verdicts_are_counted_and_shown_with_their_evidence() -> None:
    verdicts = [verdict(state) for state in ("holds", "holds", "not determined", "does not hold")]
    found = {"verdicts": verdicts, "counts": {"finished": 600, "diverged": 2}}
    text = " ".join(page.summary_block(found).split())
    assert "trains 602 runs" in text
    assert "4 verdicts and a report. Of the verdicts 2 hold, 1 does not hold and 1 is not determined." in text
    assert "| ✓ holds | a claim | a slope; p < 0.001 |" in page.verdicts_block(found)
    assert "| ? not determined | a claim |" in page.verdicts_block(found)
