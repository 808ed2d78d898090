"""Drawing: what reaches the axes and the files; no pixels."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from helpers_landscape import first_sweep, landscape_study
from helpers_report import embedded_study, finished, make_plan, make_results, make_study, peaked
from isotherm.analysis.analysis import analyse
from isotherm.core.records import RunResult
from isotherm.errors import UserError
from isotherm.report.study.draw import draw, figure_of, save_figures
from isotherm.report.study.figure_data import study_figures
from isotherm.report.study.figures import StudyFigures, SweepFigure
from isotherm.sweep.plan import GridAxes
from isotherm.sweep.protocol import Edge
from isotherm.sweep.results import Results, StudyResults


def records(study: StudyResults | Results) -> StudyFigures:
    return study_figures(analyse(study))


def sweep_figure(results: Results) -> SweepFigure:
    (record,) = records(results).sweeps
    return record


def test_panels_carry_the_records_labels_on_the_papers_axes() -> None:
    record = records(embedded_study()).sweeps[1]
    test, loss, rate = figure_of(record).axes
    assert test.get_ylabel() == "test accuracy (%)"
    assert loss.get_ylabel() == "training loss"
    assert rate.get_ylabel() == r"optimal effective learning rate $\epsilon_{\mathrm{eff}}$"
    assert {panel.get_xlabel() for panel in (test, loss, rate)} == {"batch size B"}
    assert [panel.get_xscale() for panel in (test, loss, rate)] == ["log"] * 3
    assert [panel.get_yscale() for panel in (test, loss, rate)] == ["linear", "log", "log"]
    assert [panel.get_title(loc="left") for panel in (test, loss, rate)] == ["a", "b", "c"]


def test_series_are_told_apart_by_colour_and_marker() -> None:
    record = records(embedded_study()).sweeps[1]
    lines = [container.lines[0] for container in figure_of(record).axes[0].containers]
    assert len({line.get_color() for line in lines}) == 2
    assert len({line.get_marker() for line in lines}) == 2
    legend = figure_of(record).axes[0].get_legend()
    assert isinstance(legend, Legend)
    assert [text.get_text() for text in legend.get_texts()] == ["SGD", "momentum 0.9"]


def test_means_and_error_bars_are_those_of_the_record() -> None:
    record = sweep_figure(make_results())
    (container,) = figure_of(record).axes[0].containers
    line, _, (bars,) = container.lines
    assert line.get_ydata().tolist() == pytest.approx([point.test.mean for point in record.points])
    (low, high) = (bars.get_segments()[0][end][1] for end in (0, 1))
    assert high - low == pytest.approx(2 * record.points[0].test.standard_deviation)


def test_momentum_looks_the_same_in_every_figure() -> None:
    steps, epochs = records(embedded_study()).sweeps
    alone = figure_of(steps).axes[0].containers[0].lines[0]
    together = figure_of(epochs).axes[0].containers[1].lines[0]
    assert alone.get_color() == together.get_color()


def fits_best_at_half(axes: GridAxes, rate: float, place: int) -> RunResult | None:
    """Best on the test set at ε_eff = 1, on the training set at 0.5; at B = 8 at the lowest learning rate tried."""
    found = peaked(axes, rate, place)
    loss = 0.1 * rate if axes.batch_size == 8 else 0.1 * abs(rate - 0.5)
    return found if found is None else dataclasses.replace(found, train_loss=loss)


def test_guide_train_optima_and_legend_stand_in_the_last_panel() -> None:
    record = sweep_figure(make_results(give=fits_best_at_half))
    panel = figure_of(record).axes[2]
    dotted = [line for line in panel.lines if line.get_linestyle() == ":"]
    hollow = [line for line in panel.lines if line.get_markerfacecolor() == "white"]
    assert [line.get_xdata()[0] for line in dotted] == [8]
    assert hollow[0].get_xdata().tolist() == [32, 128]  # at the end of a grid it is no optimum
    assert hollow[0].get_ydata().tolist() == [0.5, 0.5]
    legend = panel.get_legend()
    assert isinstance(legend, Legend)
    assert [text.get_text() for text in legend.get_texts()][:2] == ["best test accuracy", "best training loss + L2"]


def rate_panel(limit: float) -> tuple[SweepFigure, Axes]:
    """Return the panel of optima that rise up to a limit, of plain SGD and momentum."""
    study = landscape_study(optimum=lambda b, _m: min(b / 32, limit), peak=lambda _b, _m: 0.7)
    record = sweep_figure(first_sweep(study))
    return record, figure_of(record).axes[2]


def test_broken_lines_go_through_the_optima_and_kinks_stand_at_the_foot() -> None:
    record, panel = rate_panel(2.0)
    for place, series in enumerate(record.series):
        optima, kink = panel.containers[place].lines[0], panel.containers[len(record.series) + 1 - place].lines
        assert optima.get_linestyle() == "None"
        (law,) = [x for x in panel.lines if x.get_xydata().tolist() == [list(corner) for corner in series.corners]]
        assert (law.get_linestyle(), law.get_color()) == ("-", optima.get_color())
        assert series.law is not None
        assert series.law.kink is not None
        marker, _, (bar,) = kink
        assert marker.get_xdata().tolist() == [series.law.kink.estimate]
        assert marker.get_color() == optima.get_color()
        assert bar.get_segments()[0][:, 0].tolist() == pytest.approx([series.law.kink.low, series.law.kink.high])
        assert 0 < marker.get_ydata()[0] < 0.15  # as a part of the panel's height, below all data
    lowest = min(point.interval[0] for point in record.points)
    assert panel.transAxes.inverted().transform(panel.transData.transform((8, lowest)))[1] > 0.11
    legend = panel.get_legend()
    assert isinstance(legend, Legend)
    assert "kink, 95 % interval" in [text.get_text() for text in legend.get_texts()]


def test_a_kink_that_is_not_seen_is_said_so_and_the_line_is_dashed() -> None:
    record, panel = rate_panel(1e9)
    assert [text.get_text() for text in panel.texts] == ["kink not seen below B = 1024"] * 2
    assert sum(line.get_linestyle() == "--" for line in panel.lines) == 2
    assert len(panel.containers) == len(record.series)
    legend = panel.get_legend()
    assert isinstance(legend, Legend)
    assert "kink, 95 % interval" not in [text.get_text() for text in legend.get_texts()]


def test_arrows_point_beyond_the_end_that_an_interval_touches() -> None:
    record = sweep_figure(make_results(give=lambda axes, rate, place: finished(0.1 * rate + 0.001 * place)))
    panel = figure_of(record).axes[2]
    arrows = [line for line in panel.lines if line.get_marker() == "^"]
    assert [line.get_xdata()[0] for line in arrows] == [8, 32, 128]
    assert all(line.get_ydata()[0] > 4.0 for line in arrows)
    legend = panel.get_legend()
    assert isinstance(legend, Legend)
    assert legend.get_texts()[-1].get_text() == "touches the grid's end"


def test_tuning_on_training_loss_shows_one_optimum() -> None:
    record = sweep_figure(make_results(make_plan(tune_on="train")))
    assert not [line for line in figure_of(record).axes[2].lines if line.get_markerfacecolor() == "white"]


def test_a_loss_that_is_not_positive_gets_a_linear_axis() -> None:
    record = sweep_figure(
        make_results(give=lambda axes, rate, place: finished(0.5 - abs(rate - 1) / 9, train_loss=-1.0))
    )
    assert figure_of(record).axes[1].get_yscale() == "linear"


def test_a_deviation_larger_than_its_loss_is_drawn() -> None:
    record = sweep_figure(
        make_results(
            give=lambda a, rate, place: finished(0.5 - abs(rate - 1) / 9 - place / 99, 10.0 ** -(4 * (place % 2)))
        )
    )
    assert record.points[0].train_loss.standard_deviation > record.points[0].train_loss.mean
    figure_of(record).draw_without_rendering()


def test_a_loss_that_hardly_changes_still_has_ticks() -> None:
    give = lambda axes, rate, place: finished(0.5 - abs(rate - 1) / 9, train_loss=2.0 + axes.batch_size / 256)  # noqa: E731
    panel = figure_of(sweep_figure(make_results(give=give))).axes[1]
    low, high = panel.get_ylim()
    assert len([tick for tick in panel.get_yticks() if low <= tick <= high]) >= 3


def test_points_whose_runs_are_missing_are_marked_in_every_panel() -> None:
    whole = sweep_figure(make_results())
    points = whole.series[0].points
    open_ended = dataclasses.replace(points[-1], edge=Edge.INCOMPLETE)
    series = dataclasses.replace(whole.series[0], points=(*points[:-1], open_ended))
    panels = figure_of(dataclasses.replace(whole, series=(series, *whole.series[1:]))).axes
    assert [[text.get_text() for text in panel.texts].count("…") for panel in panels] == [1, 1, 1]
    assert "runs are missing" in [text.get_text() for text in panels[2].get_legend().get_texts()]
    assert "…" not in [text.get_text() for panel in figure_of(whole).axes for text in panel.texts]


def test_learning_rate_panels() -> None:
    record = records(embedded_study()).learning_rates[0]
    test, loss = figure_of(record).axes
    assert test.get_xlabel() == r"effective learning rate $\epsilon_{\mathrm{eff}}$"
    assert len(test.containers) == len(loss.containers) == 8
    crosses = [line for line in test.lines if line.get_marker() == "x"]
    assert sum(len(line.get_xdata()) for line in crosses) == 8


def test_dollar_signs_in_a_users_metric_stay_text() -> None:
    record = dataclasses.replace(sweep_figure(make_results()), test_label="test cost in $ and $x^$")
    figure_of(record).draw_without_rendering()


def test_draw_wants_as_many_axes_as_panels() -> None:
    with pytest.raises(ValueError, match="3 panels, got 1"):
        draw(sweep_figure(make_results()), [Figure().add_subplot()])


def test_empty_record_can_be_drawn() -> None:
    figure_of(sweep_figure(make_results(give=lambda *_: None))).draw_without_rendering()


def test_save_figures_writes_png_and_pdf(tmp_path: Path) -> None:
    study = make_study(make_plan(), name="small")
    written = save_figures(records(study), tmp_path / "new")
    assert [path.name for path in written] == [
        "constant_steps.png",
        "constant_steps.pdf",
        "constant_steps_learning_rates_momentum_0.9.png",
        "constant_steps_learning_rates_momentum_0.9.pdf",
    ]
    for path in written:
        start = b"\x89PNG\r\n\x1a\n" if path.suffix == ".png" else b"%PDF-"
        assert path.read_bytes().startswith(start)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(path.name for path in written)


@pytest.mark.slow
def test_equal_results_give_equal_files(tmp_path: Path) -> None:
    study = make_study(make_plan(batch_sizes=(8, 32)))
    first = save_figures(records(study), tmp_path / "a", formats=("svg", "pdf"))
    second = save_figures(records(study), tmp_path / "b", formats=("svg", "pdf"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert b"<svg" in first[0].read_bytes()


def test_names_that_clash_or_climb_give_files_in_the_folder(tmp_path: Path) -> None:
    plans = [make_plan(name="../up", batch_sizes=(8,), l2=l2) for l2 in (0.0, 0.1)]
    written = save_figures(records(make_study(*plans)), tmp_path, formats=("svg",))
    assert len(set(written)) == 4
    assert {path.parent for path in written} == {tmp_path}


def test_a_study_without_results_has_no_figures(tmp_path: Path) -> None:
    assert save_figures(records(make_study(make_plan(), give=lambda *_: None)), tmp_path) == []


def test_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'gif' is unknown; use some of png, pdf, svg"):
        save_figures(records(make_study(make_plan())), tmp_path, formats=("gif",))  # type: ignore[arg-type]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot be written"):
        save_figures(records(make_study(make_plan(batch_sizes=(8,)))), tmp_path / "file" / "folder", formats=("svg",))
