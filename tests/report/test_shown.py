"""What results, analyses and diagnoses show: in a console, in a notebook, as tables, frames, figures and pages."""

from __future__ import annotations

import functools
import sys
import types
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

import cases
import isotherm as it
from helpers_diagnosis import make_diagnosis, nothing_recommended
from helpers_report import embedded_study, make_plan, make_results, make_study
from isotherm.analysis.analysis import analyse
from isotherm.core.one_screen import LINES, WIDTH
from isotherm.report.study.runs_table import runs_rows
from isotherm.report.study.tables import optima_rows
from isotherm.running.cost import Estimate
from isotherm.running.store import Store

mpl.use("Agg")


# Not scoped to the module: such a fixture would be made before fits are made quick.


@pytest.fixture
def results() -> it.Results:
    return make_results()


@pytest.fixture
def study() -> it.StudyResults:
    return embedded_study()


@pytest.fixture
def analysis() -> it.Analysis:
    return _analysed()


@functools.cache
def _analysed() -> it.Analysis:
    return analyse(embedded_study())


def public_objects(study: it.StudyResults, analysis: it.Analysis) -> list[Any]:
    sweep = it.Sweep(
        task=cases.blobs_task(),
        batch_sizes=range(4, 54),
        effective_learning_rates=it.powers_of_two(-20, 20),
        budget=[it.Budget.epochs(k) for k in range(1, 40)],
    )
    return [
        sweep.task,
        sweep,
        it.Study(name="many", sweeps=(sweep,) * 30, question="why " * 200),
        study,
        *study.sweeps,
        analysis,
        analysis.recommendations[0],
        analysis.verdicts[0],
        analysis.regimes[0],
        analysis.joint_regimes[0],
        it.power(study.plan)[0],
        Store.in_memory(),
        Estimate(costs=(), num_stored=3),
        make_diagnosis(),
        nothing_recommended(),
        study.table(),
        analysis.table(),
    ]


def test_every_public_object_shows_itself_on_one_screen(study: it.StudyResults, analysis: it.Analysis) -> None:
    for thing in public_objects(study, analysis):
        shown = repr(thing)
        assert shown.isascii(), type(thing)
        assert 0 < len(shown.splitlines()) <= LINES, type(thing)
        assert max(map(len, shown.splitlines())) <= WIDTH, type(thing)


def test_results_say_what_was_run_and_found(results: it.Results) -> None:
    title, names, *rows = repr(results).splitlines()
    assert title.startswith("Results of 'constant_steps' on task ")
    assert "finished" in title
    assert names.split()[:3] == ["B", "budget", "momentum"]
    assert [row.split()[0] for row in rows] == [f"{size:,}" for size in results.plan.batch_sizes]
    empty = it.Results(plan=results.plan, by_key={})
    assert "no optimum yet" in repr(empty)
    assert "missing" in repr(empty).splitlines()[0]


def test_a_study_of_many_sweeps_has_a_line_for_each() -> None:
    found = make_study(*(make_plan(name=f"sweep {k}") for k in range(3)))
    assert [line.strip().split(" on ")[0] for line in repr(found).splitlines()[1:]] == [
        "'sweep 0'",
        "'sweep 1'",
        "'sweep 2'",
    ]


def test_a_table_of_results_needs_no_fit_and_equals_that_of_an_analysis(
    study: it.StudyResults, analysis: it.Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isotherm.report.shown.analyse", None)
    assert study.table() == analysis.table()
    assert study.table().rows == [row for sweep in analysis.sweeps for row in optima_rows(sweep)]
    assert str(study.table()).count("\n\n") == len(study.sweeps) - 1


def test_frames_have_the_rows_of_the_tables(study: it.StudyResults, analysis: it.Analysis) -> None:
    pytest.importorskip("pandas")
    runs, optima = study.to_pandas(), analysis.to_pandas("optima")
    assert len(runs) == len(runs_rows(study))
    assert runs["batch_size"].tolist() == [row["batch_size"] for row in runs_rows(study)]
    assert optima["optimal_effective_learning_rate"].tolist() == [
        row["optimal_effective_learning_rate"] for row in study.table().rows
    ]
    choices = make_diagnosis().to_pandas()
    assert choices["is_recommended"].any()
    assert set(choices["momentum"]) == {0.0, 0.9}
    with pytest.raises(it.UserError, match="rows='optimum' is unknown here; did you mean 'optima'"):
        study.to_pandas("optimum")


def test_without_pandas_there_is_a_remedy(results: it.Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(it.UserError, match=r"install 'isotherm\[pandas\]', or use \.table\(\)\.rows"):
        results.to_pandas()


def test_plots_are_figures_of_their_own_or_in_given_axes(results: it.Results, analysis: it.Analysis) -> None:
    figure = results.plot()
    assert isinstance(figure, Figure)
    assert len(figure.axes) == 3
    assert all(axes.has_data() for axes in figure.axes)
    given = Figure()
    assert results.plot(given.subplots(1, 3)) is given
    assert given.axes[0].has_data()
    own = Figure()
    assert make_diagnosis().plot(own.add_subplot()) is own
    assert make_diagnosis().plot().axes[0].has_data()
    last = analysis.plan.sweeps[-1].name
    assert analysis.plot(sweep=last).axes[0].has_data()
    with pytest.raises(it.UserError, match=r"takes 3 axes, e\.g\. plt\.subplots\(1, 3\)\[1\]; 1 were given"):
        results.plot(Figure().add_subplot())
    with pytest.raises(it.UserError, match="there is no sweep 'other'"):
        analysis.plot(sweep="other")
    with pytest.raises(it.UserError, match="nothing to draw; finish the sweep first"):
        it.Results(plan=results.plan, by_key={}).plot()


class Formatter:
    """What IPython has for one kind of output."""

    def __init__(self) -> None:
        self.known: dict[type, Any] = {}

    def lookup_by_type(self, kind: type) -> Any:
        return self.known[kind]

    def for_type(self, kind: type, function: Any) -> None:
        self.known[kind] = function


def test_a_notebook_learns_to_show_figures_once(monkeypatch: pytest.MonkeyPatch) -> None:
    formatter = Formatter()
    shell = types.SimpleNamespace(display_formatter=types.SimpleNamespace(formatters={"image/png": formatter}))
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell, version_info=(9, 0)))
    figure = make_diagnosis().plot()
    assert formatter.known[Figure](figure).startswith(b"\x89PNG")
    formatter.known[Figure] = None  # another's
    make_diagnosis().plot()
    assert formatter.known[Figure] is None


def test_reports_are_written(results: it.Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isotherm.report.shown.write_report", lambda *given: given)  # has tests of its own
    assert results.report("folder") == (results, "folder")
    page = make_diagnosis().report(tmp_path / "diagnosis.html")
    assert "<html" in page.read_text()
    with pytest.raises(it.UserError, match=r"is one page; name a file, e\.g\. report\.html"):
        make_diagnosis().report(tmp_path)


def test_notebooks_show_sentences_and_tables(results: it.Results, analysis: it.Analysis) -> None:
    assert results._repr_html_().count("<table>") == 1
    shown = analysis._repr_html_()
    assert shown.count("<table>") == len(analysis.sweeps)
    words, _, code = shown.split("<table>")[0].partition("<pre ")
    assert "batch size" in words
    assert "torch.optim" not in words  # lines to paste keep their indentation
    assert "\n" in code
    diagnosis = make_diagnosis()._repr_html_()
    assert "train with batch size" in diagnosis
    assert "<table>" in diagnosis
    assert "<pre" not in diagnosis  # nothing to paste


def test_a_diagnosis_shows_the_lines_to_paste() -> None:
    lines = (
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.9)",
        "scheduler = 'a < b'  # " + 99 * "-",
    )
    diagnosis = make_diagnosis(code={0.0: ("plain",), 0.9: lines})
    shown = repr(diagnosis).splitlines()
    first = shown.index(lines[0])
    assert shown[first + 1] == lines[1]
    assert shown[first + 2].lstrip().startswith("B  momentum")
    assert len(shown) == LINES
    assert f">{lines[0]}\nscheduler = &#x27;a &lt; b&#x27;" in diagnosis._repr_html_()
    assert "plain" not in diagnosis._repr_html_()


def test_a_diagnosis_begins_with_its_answer_and_names_what_is_missing() -> None:
    assert "train with batch size" in repr(make_diagnosis()).splitlines()[0]
    assert "not determined:" in repr(nothing_recommended())
