from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from helpers_protocol import diverged, fill, finished, log_rates, make_plan
from isotherm.analysis.analysis import SweepAnalysis, analyse
from isotherm.core.rates import powers_of_two
from isotherm.core.records import RunResult, RunSpec
from isotherm.report.study.figure_data import study_figures
from isotherm.report.study.final_rates import final_rate_pictures
from isotherm.report.study.folder import write_report
from isotherm.report.study.table_notes import table_notes
from isotherm.sweep.results import Results
from isotherm.sweep.rounds import missing_runs


def landscape(spec: RunSpec) -> RunResult:
    x, y = log_rates(spec)
    if x > 1:
        return diverged()
    return finished(0.9 - 0.01 * x**2 - 0.001 * (y + 7) ** 2 + 0.003 * spec.seed, train_loss=0.1 + 0.01 * (y + 5) ** 2)


@pytest.fixture(scope="module")
def results() -> Results:
    plan = make_plan(rates=powers_of_two(-2, 2), final_learning_rates=powers_of_two(-8, -4), max_extensions=0)
    found: dict[str, RunResult] = {}
    fill(found, missing_runs([plan], found), landscape)
    return Results(plan=plan, by_key=found)


def first(results: Results) -> SweepAnalysis:
    return analyse(results).sweeps[0]


def test_a_map_for_every_grid_with_all_its_pairs(results: Results) -> None:
    (picture,) = final_rate_pictures(first(results))
    assert len(picture.rows) == 25
    best = max((row for row in picture.rows if row["test_metric_mean"]), key=lambda row: row["test_metric_mean"])
    assert (best["effective_learning_rate"], best["final_learning_rate"]) == (1.0, 2.0**-7)
    assert sum(row["num_diverged"] == 2 and row["test_metric_mean"] is None for row in picture.rows) == 5
    assert "the test optimum is ε_0 = 1 [1, 1], ε_f = 1/128 [2⁻⁸, 1/64]" in picture.caption
    assert "the training optimum is ε_0 = " in picture.caption
    assert "lower edge" in picture.caption


def test_what_is_drawn_is_what_is_told(results: Results) -> None:
    (picture,) = final_rate_pictures(first(results))
    figure = picture.figure()
    test, train = figure.axes[:2]
    assert len(test.collections[0].get_offsets()) == 20  # those that are stable
    assert test.get_xlabel().startswith("learning rate at the start")
    circle, diamond = (line for line in test.lines if line.get_marker() in ("o", "D"))
    assert (circle.get_xdata()[0], circle.get_ydata()[0]) == (1.0, 2.0**-7)
    assert diamond.get_ydata()[0] == 2.0**-5
    assert picture.content("png") == picture.content("png")
    assert train is not test


def test_the_report_has_the_map_and_its_numbers(results: Results, tmp_path: Path) -> None:
    files = write_report(results, tmp_path)
    assert any("final_learning_rates" in file.name and file.suffix == ".pdf" for file in files.figures)
    with (tmp_path / "final_learning_rates.csv").open() as table:
        assert len(list(csv.DictReader(table))) == 25
    (grid,) = json.loads(files.summary.read_text())["sweeps"][0]["grids"]
    assert grid["final_learning_rates"]["tuned"]["final_learning_rate"] == 2.0**-7
    assert grid["final_learning_rates"]["train"]["final_learning_rate"] == 2.0**-5
    page = files.page.read_text()
    assert "data:image/png;base64," in page
    assert "a final learning rate that is swept apart" in page


def test_the_table_names_the_final_learning_rates(results: Results) -> None:
    sweep = first(results)
    (note,) = (note for note in table_notes(sweep.plan, sweep.grids) if "final ε_eff" in note)
    assert note.endswith("final ε_eff: 1/128 [2⁻⁸, 1/64] (lower edge) at B = 16")


def test_other_sweeps_have_no_map() -> None:
    plan = make_plan()
    found: dict[str, RunResult] = {}
    fill(
        found, missing_runs([plan], found), lambda spec: finished(0.9 - 0.01 * abs(log_rates(spec)[0]), train_loss=0.1)
    )
    assert study_figures(analyse(Results(plan=plan, by_key=found))).pictures == ()
