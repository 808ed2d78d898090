"""Figure data: what is in a figure, what is left out, and which sweeps share one."""

from __future__ import annotations

import dataclasses
import math

import pytest

from helpers_landscape import first_sweep, landscape_study
from helpers_report import diverged, embedded_study, finished, make_plan, make_results, make_study, peaked
from isotherm.analysis.analysis import SweepAnalysis, analyse
from isotherm.core.budget import Budget
from isotherm.core.records import Direction
from isotherm.report.study.figure_data import figure_groups, learning_rate_figures, study_figures
from isotherm.report.study.figures import CellState, LearningRateFigure, SweepFigure
from isotherm.sweep.protocol import Edge
from isotherm.sweep.results import Results


def first(results: Results) -> SweepAnalysis:
    return analyse(results).sweeps[0]


def figure_of(results: Results) -> SweepFigure:
    """Return the figure of a study that has this sweep alone."""
    (figure,) = study_figures(analyse(results)).sweeps
    return figure


def rate_figures(results: Results) -> list[LearningRateFigure]:
    return learning_rate_figures(first(results))


def test_series_holds_the_optima_over_batch_sizes_in_percent() -> None:
    figure = figure_of(make_results())
    (series,) = figure.series
    point = series.points[0]
    kept = [70.0, 71.0, 72.0, 73.0]
    assert [p.x for p in series.points] == [8, 32, 128]
    assert point.test.mean == pytest.approx(71.5)
    assert point.test.standard_deviation == pytest.approx(math.sqrt(sum((v - 71.5) ** 2 for v in kept) / 3))
    assert point.test.mean_all == pytest.approx((sum(kept) + 60) / 5)
    assert point.test.standard_deviation_all > point.test.standard_deviation
    assert point.train_loss.mean == pytest.approx(0.1)
    assert point.effective_learning_rate == 1.0
    assert point.interval == (1.0, 1.0)
    assert point.edge is Edge.INTERIOR
    assert not point.at_edge
    assert point.train_optimal_effective_learning_rate == 0.25
    assert figure.missing == ()


def test_labels_are_the_papers_words() -> None:
    figure = figure_of(make_results())
    assert (figure.x_label, figure.test_label) == ("batch size B", "test accuracy (%)")
    assert figure.tuned_on == "test accuracy"
    assert figure.runs == "the best 4 of 5 runs"
    assert figure.series[0].label == "momentum 0.9"
    assert figure.setting == "mlp_mnist1d, 2,000 steps, momentum 0.9"


def test_other_metrics_are_shown_as_they_are() -> None:
    plan = make_plan(metric="mean_squared_error", metric_direction=Direction.MINIMISE)
    figure = figure_of(make_results(plan))
    assert figure.test_label == "test mean squared error"
    assert not figure.percent
    assert figure.series[0].points[0].test.mean < 1


def test_one_series_per_budget_and_momentum() -> None:
    plan = make_plan(momenta=(0.0, 0.9), budgets=(Budget.epochs(10), Budget.epochs(20)))
    labels = [series.label for series in figure_of(make_results(plan)).series]
    assert labels == ["SGD, 10 epochs", "momentum 0.9, 10 epochs", "SGD, 20 epochs", "momentum 0.9, 20 epochs"]


@pytest.mark.parametrize(
    ("budgets", "label", "x"),
    [
        ((Budget.epochs(20), Budget.epochs(5)), "number of epochs", [5, 20]),
        ((Budget.steps(400), Budget.steps(100)), "number of steps", [100, 400]),
        ((Budget.epochs(1), Budget.steps(100)), "number of steps", [100, 125]),
    ],
)
def test_budget_is_the_axis_where_batch_size_does_not_vary(
    budgets: tuple[Budget, ...], label: str, x: list[float]
) -> None:
    figure = figure_of(make_results(make_plan(batch_sizes=(32,), budgets=budgets)))
    (series,) = figure.series
    assert figure.x_label == label
    assert [point.x for point in series.points] == x
    assert series.label == "momentum 0.9"
    assert series.guide is None
    assert figure.setting == "mlp_mnist1d, B = 32, momentum 0.9"


def test_guide_is_proportional_and_ends_in_sight() -> None:
    (series,) = figure_of(make_results()).series
    assert series.guide is not None
    (x, rate), (end_x, end_rate) = series.guide
    assert (x, rate) == (8, 1.0)
    assert end_rate / rate == end_x / x == 2.0  # twice the largest rate, well before B = 128


def test_single_batch_size_has_no_guide() -> None:
    (series,) = figure_of(make_results(make_plan(batch_sizes=(8,)))).series
    assert series.guide is None


def test_sgd_and_momentum_have_laws_and_a_comparison() -> None:
    results = first_sweep(
        landscape_study(optimum=lambda b, m: min(b, 256 if m > 0 else 32) / 32, peak=lambda _b, _m: 0.7)
    )
    figure = figure_of(results)
    assert figure.joint == analyse(results).joint_regimes
    assert [s.law for s in figure.series] == [figure.joint[0].plain, figure.joint[0].heavy]
    assert figure.findings == [*(f"{s.label}: {s.law}" for s in figure.series), *figure.joint[0].words]
    for drawn, kink in zip(figure.series, (32, 256), strict=True):
        (first, low), (corner, top), (last, end) = drawn.corners
        assert (first, last) == (pytest.approx(8), pytest.approx(1024))
        assert corner == pytest.approx(kink, rel=0.2)
        assert top == pytest.approx(end)
        assert math.log2(top / low) / math.log2(corner / first) == pytest.approx(drawn.law.slope.estimate, rel=0.1)


def test_other_series_have_laws_of_their_own() -> None:
    sizes = (8, 32, 128, 512)
    study = landscape_study(
        optimum=lambda b, _m: min(b, 64) / 32, peak=lambda _b, _m: 0.7, momenta=(0.0, 0.5, 0.9), sizes=sizes
    )
    figure = figure_of(first_sweep(study))
    assert [pair.heavy.momentum for pair in figure.joint] == [0.5, 0.9]
    assert len({s.law.slope for s in figure.series if s.law is not None}) == 3
    assert figure.findings[2] == f"momentum 0.9: {figure.series[-1].law}"
    alone = figure_of(
        first_sweep(landscape_study(optimum=lambda b, _m: b / 64, peak=lambda _b, _m: 0.7, momenta=(0.9,)))
    )
    assert alone.joint == ()
    assert len(alone.series[0].corners) == 2
    assert "kink not seen below B = 1024" in alone.findings[0]


def test_budgets_have_findings_of_their_own() -> None:
    plan = make_plan(momenta=(0.0, 0.9), budgets=(Budget.epochs(10), Budget.epochs(20)))
    findings = figure_of(make_results(plan)).findings
    several = ["SGD, 10 epochs", "momentum 0.9, 10 epochs", "SGD, 20 epochs", "momentum 0.9, 20 epochs"]
    joint = ["10 epochs"] * 2 + ["20 epochs"] * 2
    found = [words.split(":")[0] for words in findings]
    assert sorted(found[:4]) == sorted(several)
    assert found[4:] == joint


def test_two_batch_sizes_and_budgets_have_no_law() -> None:
    for plan in (
        make_plan(batch_sizes=(8, 32)),
        make_plan(batch_sizes=(32,), budgets=(Budget.epochs(5), Budget.epochs(9))),
    ):
        figure = figure_of(make_results(plan))
        assert figure.series[0].law is None
        assert figure.series[0].corners == figure.findings == []


def test_edge_is_told() -> None:
    results = make_results(give=lambda axes, rate, place: finished(0.1 * rate + 0.001 * place))
    point = figure_of(results).points[0]
    assert point.edge is Edge.UPPER
    assert point.at_edge


def test_grids_without_an_optimum_are_left_out_and_listed() -> None:
    def give(axes, rate, place):  # type: ignore[no-untyped-def]
        if axes.batch_size == 8:
            return diverged()
        return None if axes.batch_size == 32 else peaked(axes, rate, place)

    figure = figure_of(make_results(give=give))
    assert [point.x for point in figure.points] == [128]
    assert [(grid.axes.batch_size, grid.reason) for grid in figure.missing] == [
        (8, Edge.NO_OPTIMUM),
        (32, Edge.INCOMPLETE),
    ]
    assert str(figure.missing[0]) == "constant_steps, B=8, 2,000 steps, m=0.9: no stable learning rate"


def test_incomplete_grid_with_an_optimum_so_far_stays_and_says_so() -> None:
    results = make_results(give=lambda axes, rate, place: None if rate == 4.0 else peaked(axes, rate, place))
    figure = figure_of(results)
    assert [point.edge for point in figure.points] == [Edge.INCOMPLETE] * 3
    assert figure.missing == ()


def test_empty_sweep_has_no_series() -> None:
    figure = figure_of(make_results(give=lambda *_: None))
    assert figure.series == ()
    assert len(figure.missing) == 3


def test_sweeps_that_differ_in_momentum_alone_share_a_figure() -> None:
    figures = study_figures(analyse(embedded_study())).sweeps
    assert [figure.name for figure in figures] == ["constant_steps", "constant_epochs"]
    assert [series.label for series in figures[1].series] == ["SGD", "momentum 0.9"]
    assert figures[1].setting == "mlp_mnist1d, 20 epochs"


@pytest.mark.parametrize(
    "change",
    [{"l2": 0.0}, {"num_kept": 5}, {"tune_on": "validation"}, {"batch_sizes": (8, 32, 64)}, {"momenta": (0.9,)}],
)
def test_sweeps_that_differ_otherwise_do_not(change: dict[str, object]) -> None:
    first = make_plan()
    second = make_plan(**{"momenta": (0.0,), **change})
    assert len(figure_groups(analyse(make_study(first, second)).sweeps)) == 2


def test_a_shared_figure_is_named_by_what_its_sweeps_have_in_common() -> None:
    first = make_plan(name="constant_epochs m=0.0", momenta=(0.0,))
    second = dataclasses.replace(first, name="constant_epochs m=0.9", momenta=(0.9,))
    (figure,) = study_figures(analyse(make_study(first, second))).sweeps
    assert figure.name == "constant_epochs"


def test_learning_rate_figure_has_every_cell() -> None:
    (figure,) = rate_figures(make_results())
    series = figure.series[1]
    assert [s.label for s in figure.series] == ["B = 8", "B = 32", "B = 128"]
    assert [p.effective_learning_rate for p in series.points] == [0.25, 0.5, 1.0, 2.0, 4.0]
    assert [p.test.mean for p in series.points if p.test] == pytest.approx([51.5, 61.5, 71.5, 61.5, 51.5])
    assert [p.train_loss.mean for p in series.points if p.train_loss] == pytest.approx([0.025, 0.05, 0.1, 0.2, 0.4])
    assert (series.optimum, series.interval, series.edge) == (1.0, (1.0, 1.0), Edge.INTERIOR)
    assert figure.setting == "mlp_mnist1d, 2,000 steps, momentum 0.9"


def test_unstable_and_incomplete_cells_are_marked_and_have_no_values() -> None:
    def give(axes, rate, place):  # type: ignore[no-untyped-def]
        if rate == 4.0 and place < 2:
            return diverged()
        return None if rate == 0.25 and place == 3 else peaked(axes, rate, place)

    points = rate_figures(make_results(give=give))[0].series[0].points
    assert [point.state for point in points] == [
        CellState.INCOMPLETE,
        CellState.STABLE,
        CellState.STABLE,
        CellState.STABLE,
        CellState.UNSTABLE,
    ]
    assert points[-1].num_diverged == 2
    assert points[0].test is points[-1].test is points[-1].train_loss is None


def test_one_divergence_leaves_a_best_four_of_five_cell_stable() -> None:
    def give(axes, rate, place):  # type: ignore[no-untyped-def]
        return diverged() if rate == 1.0 and place == 4 else peaked(axes, rate, place)

    (point,) = [p for p in rate_figures(make_results(give=give))[0].series[0].points if p.num_diverged]
    assert point.state is CellState.STABLE
    assert point.test is not None
    assert point.test.mean == pytest.approx(71.5)


def test_learning_rate_figures_come_one_per_momentum_and_budget() -> None:
    plan = make_plan(momenta=(0.0, 0.9), budgets=(Budget.epochs(10), Budget.epochs(20)))
    assert len({figure.family for figure in rate_figures(make_results(plan))}) == 4


def test_learning_rate_figure_over_budgets_has_a_series_per_budget() -> None:
    plan = make_plan(batch_sizes=(32,), budgets=(Budget.epochs(5), Budget.epochs(20)))
    (figure,) = rate_figures(make_results(plan))
    assert [series.label for series in figure.series] == ["5 epochs", "20 epochs"]
