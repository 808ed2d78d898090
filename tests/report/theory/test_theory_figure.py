"""The figure of a demonstration: what reaches the axes and the files; no pixels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D

from isotherm.errors import UserError
from isotherm.report.theory.figure import figure_format, save_theory_figure, theory_figure
from isotherm.theory.demonstration import Curve, Demonstration, Panel

X = [1.0, 2.0, 4.0, 8.0]


def curve(label: str = "SGD", y: Sequence[float] = (1.0, 2.0, 3.0, 4.0), **changes: Any) -> Curve:
    return Curve(**{"label": label, "x": X, "y": y, **changes})


def panel(*curves: Curve, **changes: Any) -> Panel:
    return Panel(**{"title": "a title", "x_label": "batch size B", "y_label": "loss", "curves": curves, **changes})


def figure_of(*panels: Panel) -> Figure:
    return theory_figure(Demonstration(name="n", title="t", paragraph="p", panels=panels, tables=()))


def axes_of(*curves: Curve, **changes: Any) -> Axes:
    (axes,) = figure_of(panel(*curves, **changes)).axes
    return axes


def line(axes: Axes, label: str) -> Line2D:
    (found,) = (each for each in axes.lines if each.get_label() == label)
    return found


def legend_of(axes: Axes) -> Legend:
    legend = axes.get_legend()
    assert isinstance(legend, Legend)
    return legend


def test_panels_stand_left_to_right_with_letters_titles_and_labels() -> None:
    axes = figure_of(panel(curve()), panel(curve(), title="the ε_opt", x_label="n", y_label="B_simple in all")).axes
    assert [each.get_title(loc="left") for each in axes] == [
        r"$\mathbf{a}$  a title",
        r"$\mathbf{b}$  the $\mathrm{ε}_{\mathrm{opt}}$",
    ]
    assert [each.get_xlabel() for each in axes] == ["batch size B", "n"]
    assert axes[1].get_ylabel() == r"$\mathrm{B}_{\mathrm{simple}}$ in all"
    assert axes[0].get_position().x1 < axes[1].get_position().x0


def test_curves_are_drawn_as_lines_dashes_and_points_with_their_values() -> None:
    axes = axes_of(curve("solid"), curve("broken", style="dashed"), curve("dots", (4, 3, 2, 1), style="points"))
    assert (line(axes, "solid").get_linestyle(), line(axes, "solid").get_marker()) == ("-", "None")
    assert line(axes, "broken").get_linestyle() == "--"
    assert line(axes, "dots").get_linestyle() == "None"
    assert line(axes, "dots").get_marker() not in ("None", "")
    assert np.asarray(line(axes, "dots").get_ydata()).tolist() == [4, 3, 2, 1]
    assert np.asarray(line(axes, "dots").get_xdata()).tolist() == X


def test_bands_are_bars_at_points_and_shaded_around_lines() -> None:
    limits: dict[str, Any] = {"low": [0.5, 1.5, 2.5, 3.5], "high": [1.2, 2.2, 3.2, 4.2]}
    (container,) = axes_of(curve(style="points", **limits)).containers
    (bars,) = container.lines[2]
    assert [sorted(end[1] for end in segment) for segment in bars.get_segments()] == [
        pytest.approx(pair) for pair in zip(limits["low"], limits["high"], strict=True)
    ]
    (shade,) = axes_of(curve(**limits)).collections
    heights = {round(float(y), 9) for _, y in shade.get_paths()[0].vertices}
    assert heights == {*limits["low"], *limits["high"]}


def test_an_estimate_outside_its_interval_is_drawn() -> None:
    axes_of(curve(style="points", low=[2] * 4, high=[3] * 4)).get_figure().draw_without_rendering()


@pytest.mark.parametrize("style", ["line", "points"])
def test_ends_of_a_band_that_cannot_be_shown_are_cut_at_the_panel_s_end(style: str) -> None:
    band = {"low": [0.0, -1.0, 2.5, 3.5], "high": [1.2, 2.2, float("inf"), float("nan")]}
    axes = axes_of(curve(style=style, **band), y_log=True)
    bottom, top = axes.get_ylim()
    assert 0.8 < bottom < 1 < 4 < top < 5  # around what can be shown: 1 to 4
    axes.get_figure().draw_without_rendering()
    if style == "points":
        (bars,) = axes.containers[0].lines[2]
        ends = [sorted(end[1] for end in segment) for segment in bars.get_segments() if len(segment)]
        assert ends[:3] == [pytest.approx(pair) for pair in ([bottom, 1.2], [bottom, 2.2], [2.5, top])]


def test_axes_are_logarithmic_where_asked() -> None:
    assert (axes_of(curve()).get_xscale(), axes_of(curve()).get_yscale()) == ("linear", "linear")
    axes = axes_of(curve(), x_log=True)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")
    assert axes_of(curve(), y_log=True).get_yscale() == "log"


def test_powers_of_two_are_ticks_themselves_and_others_are_decimal() -> None:
    axes = axes_of(curve(), x_log=True)
    assert axes.get_xticks().tolist() == X
    axes = axes_of(curve(x=[0.25, 0.7, 1.0, 3.0]), x_log=True)
    assert {0.5, 1.0, 2.0} <= set(axes.get_xticks().tolist())
    assert axes.xaxis.get_major_formatter()(0.5) == "0.5"


def test_values_around_the_data_leave_a_margin() -> None:
    bottom, top = axes_of(curve()).get_ylim()
    assert (bottom, top) == (pytest.approx(1 - 0.18), pytest.approx(4 + 0.18))
    bottom, top = axes_of(curve(y=[0.0] * 4)).get_ylim()
    assert bottom < 0 < top
    bottom, top = axes_of(curve(y=[1e-6] * 4), y_log=True).get_ylim()
    assert 1e-7 < bottom < 1e-6 < top < 1e-5


@pytest.mark.parametrize("log", [False, True])
def test_nothing_to_show_is_drawn_empty(log: bool) -> None:
    figure_of(panel(x_log=log, y_log=log), panel(curve(x=[], y=[]), x_log=log, y_log=log)).draw_without_rendering()


def test_without_a_positive_value_an_axis_is_linear() -> None:
    axes = axes_of(curve(x=[-3.0, -2.0, -1.0, 0.0], y=[-1.0] * 4), x_log=True, y_log=True)
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "linear")


def test_a_quantity_has_one_colour_and_one_style_only_once() -> None:
    axes = axes_of(
        curve("ε = 0.2"),
        curve("2(1 + m)/ε for ε = 0.2", style="dashed"),
        curve("ε = 0.2, m = 0.3"),
        curve("2(1 + m)/ε for ε = 0.2, m = 0.3", style="dashed"),
        curve("mean, exact"),
        curve("mean ≈ x", style="dashed"),
        curve("mean, simulated", style="points"),
        curve("exact", style="points"),
    )
    colours = [each.get_color() for each in axes.lines]
    first, second, third, other = colours[0], colours[2], colours[4], colours[7]
    assert colours == [first, first, second, second, third, third, third, other]
    assert len({first, second, third, other}) == 4


def test_colours_stay_through_the_panels_and_plain_sgd_has_its_own() -> None:
    left = panel(curve("momentum 0.9"), curve("SGD"), curve("simulated, SGD", style="points"))
    right = panel(curve("start"), curve("end, SGD"), curve("end, momentum 0.9"))
    one, other = figure_of(left, right).axes
    assert line(one, "SGD").get_color() == line(one, "simulated, SGD").get_color() == "#D55E00"
    assert line(other, "end, SGD").get_color() == line(one, "SGD").get_color()
    assert line(other, "end, momentum 0.9").get_color() == line(one, "momentum 0.9").get_color()
    assert len({each.get_color() for each in other.lines}) == 3


def test_two_curves_of_one_quantity_and_style_differ_in_colour() -> None:
    axes = axes_of(curve("start, SGD"), curve("end, SGD"), curve("half-way, SGD"))
    assert len({each.get_color() for each in axes.lines}) == 3


def test_more_quantities_than_colours_are_drawn() -> None:
    axes = axes_of(*(curve(f"number {place}") for place in range(8)))
    assert len({each.get_color() for each in axes.lines}) == 5


def test_a_line_under_another_one_is_wider() -> None:
    axes = axes_of(curve("below", (1, 2, 5, 6)), curve("above", (1, 2.01, 3, 4)), curve("apart", (1, 9, 9, 9)))
    widths = [each.get_linewidth() for each in axes.lines]
    assert widths[0] == 2 * widths[1] == 2 * widths[2]


def test_legend_and_note_stand_below_the_panel_inside_the_figure() -> None:
    note = "points: the mean of very many simulated runs, with its 95 % interval around it"
    figure = figure_of(panel(*(curve(f"number {k}") for k in range(6)), note=note), panel(curve()))
    figure.draw_without_rendering()
    for axes in figure.axes:
        box, label = legend_of(axes).get_window_extent(), axes.xaxis.get_label().get_window_extent()
        assert box.y1 < label.y0 < axes.get_window_extent().y0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert axes.get_window_extent().height > 0.4 * figure.bbox.height
    legend = legend_of(figure.axes[0])
    assert [text.get_text() for text in legend.get_texts()] == [f"number {k}" for k in range(6)]
    assert " ".join(legend.get_title().get_text().split("\n")) == note
    assert "\n" in legend.get_title().get_text()
    first, second = (axes.get_window_extent() for axes in figure.axes)
    assert (first.y0, first.y1) == pytest.approx((second.y0, second.y1))


def test_long_titles_and_labels_are_broken_and_stay_inside() -> None:
    words = "the relative error of one step at the largest learning rate"
    figure = figure_of(panel(curve(), title=words, y_label=words, x_label=words))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    label = axes.yaxis.get_label().get_window_extent()
    assert (label.y0, label.x0) >= (0, 0)
    assert label.y1 <= figure.bbox.y1
    assert axes.get_tightbbox().x1 <= figure.bbox.x1
    assert legend_of(axes).get_window_extent().y1 < axes.xaxis.get_label().get_window_extent().y0


def test_dollar_signs_stay_text() -> None:
    figure_of(panel(curve("$x^$"), title="a $ b", note="$")).draw_without_rendering()


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.PDF", b"%PDF"), ("a.svg", b"<?xml")])
def test_files_are_what_their_suffix_says_and_the_same_every_time(tmp_path: Path, name: str, start: bytes) -> None:
    shown = Demonstration(name="n", title="t", paragraph="p", panels=[panel(curve())], tables=())
    written = save_theory_figure(shown, tmp_path / name)
    content = written.read_bytes()
    assert content.startswith(start)
    assert save_theory_figure(shown, tmp_path / name).read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["figure", "figure.jpg", "-", "png"])
def test_other_suffixes_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"use \.png, \.pdf or \.svg"):
        figure_format(Path(name))
    shown = Demonstration(name="n", title="t", paragraph="p", panels=[panel(curve())], tables=())
    with pytest.raises(UserError, match="not a known format"):
        save_theory_figure(shown, tmp_path / name)
