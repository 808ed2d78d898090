"""What a report says of optimisers that have neither an effective learning rate nor a temperature."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from helpers_optimizers import METHODS, SIZES, study_of_powers
from isotherm.analysis.analysis import Analysis, analyse
from isotherm.core.optimizers import SGD
from isotherm.report.study.figure_data import study_figures
from isotherm.report.study.folder import write_report
from isotherm.report.study.methods import protocol_paragraphs
from isotherm.report.study.runs_table import runs_rows
from isotherm.report.study.summary import study_summary
from isotherm.report.study.tables import optima_rows, optima_table, optima_text, write_csv
from isotherm.sweep.results import StudyResults

# Words of SGD; the methods may say that there is no such thing.
FOREIGN = ("temperature", "ε_eff", "effective", "T =")


@functools.cache
def analysis() -> Analysis:
    return analyse(study_of_powers(0.5))


def assert_own_words(text: str) -> None:
    assert [word for word in FOREIGN if word in text] == []


def test_the_table_has_both_ratios_in_place_of_a_temperature() -> None:
    (sweep,) = analysis().sweeps
    table = optima_text(sweep)
    assert table.columns[:5] == ("optimizer", "B", "ε (interval)", "ε/B", "ε/√B")
    first = table.rows[0]
    rate = sweep.grids[0].rate
    assert rate is not None
    assert float(sweep.grids[0].rate_over(1.0) or 0) == pytest.approx(rate / SIZES[0])
    assert len(first) == len(table.columns)
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(optima_table(sweep))
    assert_own_words(console.export_text())


def test_rows_and_summary_name_the_optimiser_and_both_ratios() -> None:
    (sweep,) = analysis().sweeps
    for row in optima_rows(sweep):
        assert row["momentum"] is None
        assert row["optimal_learning_rate"] == row["learning_rate"]
        assert row["rate_over_batch_size"] == row["learning_rate"] / row["batch_size"]
        assert row["rate_over_root_batch_size"] == row["learning_rate"] / row["batch_size"] ** 0.5
    entries = study_summary(analysis())["sweeps"]
    assert [entry["optimizer"]["name"] for entry in entries] == ["adamw", "muon"]
    assert all(entry["momentum"] is None for entry in entries)
    assert all(grid["temperature"] is None and grid["rate_over_batch_size"] for e in entries for grid in e["grids"])
    rows = runs_rows(analysis().results)
    assert {row["optimizer"] for row in rows} == {"Muon", *(METHODS[0].at(size).label for size in SIZES)}
    assert all(row["learning_rate"] > 0 for row in rows)


def test_columns_of_sgd_are_empty_for_others_beside_it(tmp_path: Path) -> None:
    others, plain = study_of_powers(0.5), study_of_powers(1.0, SGD(momentum=0.9))
    both = dataclasses.replace(others.plan, sweeps=(*others.plan.sweeps, *plain.plan.sweeps))
    write_csv(analyse(StudyResults(plan=both, by_key={**others.by_key, **plain.by_key})), tmp_path)
    for name, rate in (("optima.csv", "optimal_effective_learning_rate"), ("runs.csv", "effective_learning_rate")):
        with (tmp_path / name).open() as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            is_sgd = row["optimizer"].startswith("momentum")
            assert (row[rate] != "", row["temperature"] != "") == (is_sgd, is_sgd)
            assert row["learning_rate"] != ""
        assert len({row["optimizer"].partition("(")[0] for row in rows}) == 3


def test_methods_name_every_hyperparameter_and_no_temperature() -> None:
    text = " ".join(protocol_paragraphs(analysis().plan.sweeps))
    assert "AdamW and Muon with weight decay of weights only, no L2 penalty" in text
    assert "AdamW(beta1=0.9, beta2=0.999, epsilon=1e-08, weight_decay=0.1, reference_batch_size=32)" in text
    assert "have neither an effective learning rate nor a temperature" in text
    assert "ε_eff" not in text
    assert "SGD" not in text
    assert "T = " not in text


def test_figures_have_their_own_axes_and_both_guides() -> None:
    figures = study_figures(analysis())
    (record,) = figures.sweeps
    assert record.optimum_label == "optimal learning rate ε"
    assert [series.label for series in record.series] == [method.label for method in METHODS]
    for series in record.series:
        assert series.guide is not None
        assert series.root_guide is not None
        (x, y), (end_x, end_y) = series.root_guide
        assert end_y / y == pytest.approx((end_x / x) ** 0.5)
    assert {one.rate_label for one in figures.learning_rates} == {"learning rate ε"}
    plain = study_figures(analyse(study_of_powers(1.0, SGD(momentum=0.9)))).sweeps[0]
    assert plain.optimum_label == "optimal effective learning rate ε_eff"
    assert plain.series[0].root_guide is None


@pytest.mark.slow
def test_a_whole_report_says_nothing_of_temperatures(tmp_path: Path) -> None:
    write_report(analysis(), tmp_path)
    page = (tmp_path / "report.html").read_text()
    start = page.index("<body")
    body = page[start:]
    for word in ("ε_eff", "ε<sub>eff</sub>", "momentum 0", "T = "):
        assert word not in body, word
    scripts = re.findall("<script.*?</script>", body, flags=re.DOTALL)
    for library in (script for script in scripts if len(script) > 500_000):  # has a palette of this name
        body = body.replace(library, "")
    body = re.sub("<pre.*?</pre>", "", body, flags=re.DOTALL)  # the plan as JSON, with the names of its fields
    shown = body.replace("have neither an effective learning rate nor a temperature", "", 1)
    for word in ("temperature", "effective"):
        assert word not in shown.lower(), shown[max(0, shown.lower().find(word) - 80) :][:200]
    tables = list(tmp_path.rglob("*.csv"))
    assert {"optima.csv", "runs.csv"} <= {path.name for path in tables}
    for path in tables:
        with path.open() as file:
            columns = next(csv.reader(file))
        assert not [name for name in columns if "effective" in name or "temperature" in name], path.name
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert all("ε_eff" not in verdict["claim"] + verdict["evidence"] for verdict in summary["verdicts"])
