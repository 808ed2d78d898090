from __future__ import annotations

import csv
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from helpers_protocol import diverged, fill, finished, log_rates, make_plan
from isotherm.analysis.analysis import SweepAnalysis, analyse
from isotherm.core.records import CurvePoint, RunResult, RunSpec
from isotherm.core.schedule import Schedule
from isotherm.report.study.along_training import along_training_pictures, training_curves
from isotherm.report.study.folder import write_report
from isotherm.sweep.plan import SweepPlan
from isotherm.sweep.results import Results
from isotherm.sweep.rounds import missing_runs


def landscape(spec: RunSpec) -> RunResult:
    """Give the best accuracy at ε = 1 and the lowest training loss at 1/2; at 4 one of two seeds diverges late."""
    x = log_rates(spec)[0]
    points = [CurvePoint(step=5 * k, test_loss=1.0 / k, test_metric=0.3 * k + 0.01 * spec.seed) for k in (1, 2)]
    if x == 2 and spec.seed == 1:
        return dataclasses.replace(diverged(), curve=tuple(points[:1]))
    return finished(0.9 - 0.01 * x**2 + 0.001 * spec.seed, train_loss=0.1 + (x + 1) ** 2, curve=tuple(points))


def results_of(**changes: Any) -> Results:
    plan = make_plan(**{"max_extensions": 0, "num_evaluations": 2, **changes})
    found: dict[str, RunResult] = {}
    while specs := missing_runs([plan], found):
        fill(found, specs, landscape)
    return Results(plan=plan, by_key=found)


def first(results: Results) -> SweepAnalysis:
    return analyse(results).sweeps[0]


def test_every_run_of_the_chosen_cell_and_of_the_training_optimum() -> None:
    (picture,) = along_training_pictures(first(results_of()))
    (axes,) = picture.figure().axes
    lines = [line for line in axes.lines if len(line.get_xdata()) == 2 and line.get_linewidth() < 1]
    assert len(lines) == 4
    assert list(lines[0].get_xdata()) == [5, 10]
    assert list(lines[1].get_ydata()) == pytest.approx([31.0, 61.0])
    assert [line.get_linestyle() for line in lines] == ["-", "-", "--", "--"]
    assert {row["effective_learning_rate"] for row in picture.rows} == {1.0, 0.5}
    assert len(picture.rows) == 4 * 2


@pytest.mark.parametrize(
    ("schedule", "fall", "words"),
    [
        (Schedule(), 5, "The learning rate first drops at the vertical line."),
        (Schedule.wsd(decay_fraction=0.2), 8, "The learning rate begins to fall at the vertical line."),
        (Schedule.linear(), None, "where it is another."),
    ],
)
def test_a_line_stands_where_the_learning_rate_begins_to_fall(schedule: Schedule, fall: int | None, words: str) -> None:
    results = results_of()
    plan = dataclasses.replace(results.plan, schedule=schedule)
    found = {spec.key: results.by_key[old.key] for spec, old in zip(_specs(plan), _specs(results.plan), strict=True)}
    (picture,) = along_training_pictures(first(Results(plan=plan, by_key=found)))
    (axes,) = picture.figure().axes
    vertical = [line.get_xdata()[0] for line in axes.lines if list(line.get_ydata()) == [0, 1]]
    assert vertical == ([] if fall is None else [fall])
    assert picture.caption.endswith(words)


def _specs(plan: SweepPlan) -> list[RunSpec]:
    (axes,) = plan.grids()
    rates = plan.base_learning_rates(axes)
    return [plan.run_spec(axes, effective_learning_rate=rate, seed=seed) for rate in rates for seed in plan.seeds]


def test_confirming_seeds_are_runs_of_the_cell_too() -> None:
    results = results_of(num_confirm=3)
    cell = results.grids()[0].cells[2]
    assert [curve.seed for curve in training_curves(results.plan, cell)] == [0, 1, 2, 3, 4]


def test_a_run_that_diverged_is_shown_as_far_as_it_went() -> None:
    results = results_of()
    curves = training_curves(results.plan, results.grids()[0].cells[-1])
    assert [len(curve.points) for curve in curves] == [2, 1]


def test_three_of_many_grids_are_shown() -> None:
    (picture,) = along_training_pictures(first(results_of(batch_sizes=(1, 2, 4, 8, 16))))
    assert picture.num_panels == 3
    assert {row["batch_size"] for row in picture.rows} == {1, 4, 16}


def test_a_sweep_without_evaluations_has_no_such_figure() -> None:
    plan = make_plan(max_extensions=0)
    found: dict[str, RunResult] = {}
    fill(found, missing_runs([plan], found), lambda spec: dataclasses.replace(landscape(spec), curve=()))
    assert along_training_pictures(first(Results(plan=plan, by_key=found))) == []


def test_the_report_has_the_figure_and_its_numbers(tmp_path: Path) -> None:
    files = write_report(results_of(), tmp_path)
    assert "along training" in files.page.read_text()
    with (tmp_path / "along_training.csv").open() as table:
        assert len(list(csv.DictReader(table))) == 8
