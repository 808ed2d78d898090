"""Tables of the paper's objects: ours beside theirs, with holes, and failures in their cells."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from helpers_protocol import failed
from isotherm.report.paper.finding import Finding, find, find_record
from isotherm.report.paper.page import nearest_findings, write_paper_page
from isotherm.report.paper.tables import cells_table, results_table, tables, text_table
from isotherm.studies.paper.definition import Scale
from isotherm.studies.paper.registry import objects
from isotherm.studies.paper.shipped import Record, object_named, read_export, records_in
from isotherm.studies.paper.single_cells import cells_in
from isotherm.sweep.rounds import all_runs

ROOT = Path(__file__).parent.parent.parent.parent
TABLE7 = ROOT / "results" / "table7" / "table7.json"


@pytest.fixture(scope="module")
def record() -> Record:
    (found,) = read_export(TABLE7)
    return found


@pytest.fixture(scope="module")
def finding(record: Record) -> Finding:
    return find_record(record)


@pytest.fixture(scope="module")
def unfinished(record: Record) -> Finding:
    """The finding without the runs of the highest learning rate at the largest batch size."""
    specs = all_runs(record.results.plan.sweeps, record.results.by_key)
    lost = {key for key, spec in specs.items() if (spec.batch_size, spec.effective_learning_rate) == (4096, 0.16)}
    assert len(lost) == 7
    kept = {key: result for key, result in record.results.by_key.items() if key not in lost}
    return find_record(dataclasses.replace(record, results=dataclasses.replace(record.results, by_key=kept)))


def test_ours_stand_beside_the_published_numbers(finding: Finding) -> None:
    table = results_table(finding.wanted, finding)
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["B"] == "64"
    assert row["test squared error"].startswith("2.94")
    assert row["paper, test"] == "2.91 ± 0.01"
    assert len(table.rows) == 4


def test_the_caption_has_scale_and_number_of_runs(finding: Finding, unfinished: Finding) -> None:
    for found, num in ((finding, 84), (unfinished, 77)):
        assert "Scale paper: as in the paper, with 3 learning rates." in found.caption
        assert "best 5 of n = 7 seeds" in found.caption
        assert f"{num} of 84 runs" in found.caption
        assert ("…: runs of the row are missing" in found.caption) is (found is unfinished)


def test_rows_with_fewer_seeds_and_rates_than_their_scale_say_so() -> None:
    (record,) = read_export(ROOT / "results" / "table6" / "table6.json")
    found = find_record(record)
    assert "with 5 seeds instead of 7 and 3 learning rates at a batch size instead of 7." in found.caption
    assert "instead" not in find_record(read_export(TABLE7)[0]).caption
    numbers = {row[0]: row[2] for row in text_table(record.wanted, found).rows}
    assert numbers["batch size with the best test perplexity"] == "–"  # one is whole
    assert numbers["updates"] == "16,560"


def test_only_whole_grids_are_compared(unfinished: Finding) -> None:
    numbers = {row[0]: row[2] for row in text_table(unfinished.wanted, unfinished).rows}
    assert numbers["batch size with the lowest test error"] == "B = 256 of 64 to 1,024; unfinished: B = 4,096"


def test_the_schedule_s_own_numbers_are_computed() -> None:
    wanted = objects()["figure4"]
    rows = text_table(wanted, find(wanted, Scale.PAPER, None)).rows
    assert [row[1] for row in rows] == [row[2] for row in rows] == ["2", "4,882", "488"]


def test_what_was_not_run_is_a_hole(record: Record) -> None:
    plan = record.results.plan.sweeps[0]
    fewer = dataclasses.replace(plan, batch_sizes=plan.batch_sizes[:2], learning_rates=plan.learning_rates[:2])
    results = dataclasses.replace(record.results, plan=dataclasses.replace(record.results.plan, sweeps=(fewer,)))
    table = results_table(record.wanted, find(record.wanted, record.scale, results))
    assert [row[1] for row in table.rows][2:] == ["not run", "not run"]


def test_failed_runs_are_shown_as_failed_in_their_cell(record: Record) -> None:
    results = dataclasses.replace(record.results, by_key={key: failed() for key in record.results.by_key})
    table = results_table(record.wanted, find(record.wanted, record.scale, results))
    assert table.rows[0][1] == "failed (21 of 21 runs)"


def test_batch_sizes_without_rows_are_wanted_too(record: Record) -> None:
    """What lacks the largest batch of a table says nothing about it."""
    plan = record.results.plan.sweeps[0]
    assert plan.batch_sizes == (64, 256, 1024, 4096)
    assert plan.learning_rates == ((0.04, 0.08, 0.16),) * 4


def test_an_object_that_was_not_run_shows_the_published_numbers() -> None:
    found = tables(objects()["table1"], None)
    assert found[0].title == "Table 1: published"
    assert found[0].rows[0][1] == "93.5 ± 0.1"
    assert found[1].rows[0][1:3] == ("2,048", "–")


def test_the_page_has_every_object_and_the_nearest_scale(finding: Finding, tmp_path: Path) -> None:
    smoke = dataclasses.replace(finding, scale=Scale.SMOKE)
    assert nearest_findings([smoke, finding])["table7"] is finding
    page = write_paper_page([smoke, finding], tmp_path / "paper.html").read_text()
    for scale in ("paper", "smoke"):
        assert f"{scale}: 84 of 84 runs" in page
    assert all(f'<section id="{name}">' in page for name in objects())
    assert page.count("Not run.") == 16
    assert page.count("data:image/png") == 2  # figure 4 and table 7


def test_single_cells_are_shown_as_such(tmp_path: Path) -> None:
    found = cells_in(ROOT / "results")
    places = {(cell.wanted.identifier, cell.row.batch_size) for cell in found}
    assert places == {("table1", 256), ("table1", 1024), ("table3", 64), ("table6", 16), ("table6", 64), ("table7", 64)}
    assert {len(cell.results) for cell in found} == {3}
    table = cells_table(objects()["table1"], found[:2])
    assert "not a sweep" in table.title
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert (row["B"], row["test accuracy (%)"], row["paper, test"]) == ("256", "93.9 ± 0.2", "93.5 ± 0.1")
    page = write_paper_page([], tmp_path / "paper.html", cells=found).read_text()
    assert "single cells at B = 256, 1,024; not a sweep" in page
    assert page.count("No sweep has been run.") == 4
    assert page.count("Not run.") == 13


def test_every_shipped_file_is_read() -> None:
    assert {record.wanted.identifier for record in records_in(ROOT / "results")} >= {"table7"}
    assert records_in(ROOT / "no such folder") == []


def test_studies_are_named_after_object_and_scale() -> None:
    found = object_named("figure10_laptop")
    assert found is not None
    assert (found[0].identifier, found[1]) == ("figure10", Scale.LAPTOP)
    assert object_named("quickstart") is None
    assert object_named("figure10_huge") is None
