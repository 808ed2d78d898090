"""Static figures: a record drawn with matplotlib, in the form of the paper's figures 1 and 5."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from isotherm.errors import UserError
from isotherm.report.axes import (
    DOTS_PER_INCH,
    FORMATS,
    INK,
    MAX_TICKS,
    METADATA,
    PANEL_HEIGHT,
    PANEL_WIDTH,
    RC,
    Format,
    finish,
    power_of_two_axis,
    with_math,
)
from isotherm.report.files import unique_stems, write_atomically
from isotherm.report.study.figures import (
    TRAIN_LOSS_LABEL,
    CellState,
    LearningRateFigure,
    LearningRatePoint,
    LearningRateSeries,
    Spread,
    StudyFigures,
    SweepFigure,
    SweepPoint,
    SweepSeries,
)
from isotherm.report.style import ARROW_GAP, Style, dodges, ordered_styles, series_styles
from isotherm.report.wording import EDGE_FLAGS, TRAIN_OBJECTIVE
from isotherm.sweep.protocol import Edge

LEGEND_WIDTH = 0.9
LABEL_WIDTH = 26  # characters, then it wraps
MIN_OCTAVES = 4
ROW_HEIGHT = 0.024  # of the crosses for unstable learning rates, as a fraction of the panel's height
KINK_ROW = 0.055  # the same for the kinks


def draw(record: SweepFigure | LearningRateFigure, axes: Sequence[Axes]) -> None:
    """Draw a record into its axes: three for a `SweepFigure`, two for a `LearningRateFigure`."""
    needed = num_panels(record)
    if len(axes) != needed:
        raise ValueError(f"a {type(record).__name__} has {needed} panels, got {len(axes)} axes")
    if isinstance(record, SweepFigure):
        _draw_sweep(record, axes)
    else:
        _draw_learning_rates(record, axes)
    for panel, letter in zip(axes, "abc", strict=False):
        finish(panel, letter)


def figure_of(record: SweepFigure | LearningRateFigure) -> Figure:
    """Return a drawn figure with its panels side by side."""
    number = num_panels(record)
    width = PANEL_WIDTH * number + (0.0 if isinstance(record, SweepFigure) else LEGEND_WIDTH)
    layout = ConstrainedLayoutEngine(w_pad=0.06, wspace=0.04)
    figure = Figure(figsize=(width, PANEL_HEIGHT), layout=layout)
    draw(record, [figure.add_subplot(1, number, index + 1) for index in range(number)])
    return figure


def num_panels(record: SweepFigure | LearningRateFigure) -> int:
    """Return how many axes a record is drawn into."""
    return 3 if isinstance(record, SweepFigure) else 2


def save_figures(
    figures: StudyFigures, folder: str | Path, *, formats: Sequence[Format] = ("png", "pdf")
) -> list[Path]:
    """Write every figure of a study that has points, in every format, and return the files."""
    for name in formats:
        if name not in FORMATS:
            raise UserError(f"figure format {name!r} is unknown; use some of {', '.join(FORMATS)}")
    records = _named_records(figures)
    stems = unique_stems([*(name for name, _ in records), *(picture.name for picture in figures.pictures)])
    written = []
    with matplotlib.rc_context(RC):
        for stem, (_, record) in zip(stems, records, strict=False):
            figure = figure_of(record)
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # laid out once, for all formats
            for name in formats:
                content = io.BytesIO()
                figure.savefig(content, format=name, dpi=DOTS_PER_INCH, metadata=METADATA[name])
                written.append(write_atomically(Path(folder) / f"{stem}.{name}", content.getvalue()))
    for stem, picture in zip(stems[len(records) :], figures.pictures, strict=True):
        written += [write_atomically(Path(folder) / f"{stem}.{name}", picture.content(name)) for name in formats]
    return written


def _named_records(figures: StudyFigures) -> list[tuple[str, SweepFigure | LearningRateFigure]]:
    sweeps = [(record.name, record) for record in figures.sweeps if record.points]
    rates = [
        (f"{record.name}_learning_rates_{record.family}", record)
        for record in figures.learning_rates
        if any(series.stable for series in record.series)
    ]
    return [*sweeps, *rates]


# -- the sweep: three panels against batch size or budget ----------------------------------------------------------


def _draw_sweep(record: SweepFigure, axes: Sequence[Axes]) -> None:
    test_axes, loss_axes, rate_axes = axes
    styles = series_styles([series.momentum for series in record.series])
    factors = dodges(len(record.series))
    for series, style, factor in zip(record.series, styles, factors, strict=True):
        x = [point.x * factor for point in series.points]
        label = "\n".join(textwrap.wrap(series.label, LABEL_WIDTH, break_long_words=False))
        _error_bars(test_axes, x, [point.test for point in series.points], style, label=label)
        _error_bars(loss_axes, x, [point.train_loss for point in series.points], style, label=series.label)
        _draw_optima(rate_axes, x, series, style, show_train=record.tuned_on != TRAIN_OBJECTIVE)
        _mark_unfinished(axes, x, series.points, style)
    for start, end in {series.guide for series in record.series if series.guide is not None}:
        rate_axes.plot(*zip(start, end, strict=True), linestyle=":", color=INK, linewidth=1.1, zorder=1)
    test_axes.yaxis.set_major_locator(MaxNLocator(nbins=MAX_TICKS + 2, steps=[1, 2, 5, 10]))
    for start, end in {series.root_guide for series in record.series if series.root_guide is not None}:
        rate_axes.plot(*zip(start, end, strict=True), linestyle="-.", color=INK, linewidth=0.9, zorder=1)
    for panel, label in zip(axes, (record.test_label, TRAIN_LOSS_LABEL, record.optimum_label), strict=True):
        panel.set_ylabel(with_math(label))
        panel.set_xlabel(with_math(record.x_label))
        power_of_two_axis(panel, "x", {point.x for point in record.points})
    _log_if_positive(loss_axes, [point.train_loss for point in record.points])
    power_of_two_axis(rate_axes, "y", None)
    _widen_to_octaves(rate_axes)
    strip = _draw_kinks(rate_axes, record)
    if len(record.series) > 1:
        test_axes.legend(frameon=False, loc="best", handletextpad=0.5)
    _explain_optima(rate_axes, record, above=strip)


def _mark_unfinished(axes: Sequence[Axes], x: Sequence[float], points: Sequence[SweepPoint], style: Style) -> None:
    """Put the tables' sign of missing runs beside the points that may still move."""
    (test_axes, loss_axes, rate_axes), unfinished = axes, EDGE_FLAGS[Edge.INCOMPLETE]
    look: dict[str, Any] = {"textcoords": "offset points", "xytext": (5, 3), "color": style.colour, "fontsize": 9}
    for at, point in zip(x, points, strict=True):
        if point.edge is Edge.INCOMPLETE:
            test_axes.annotate(unfinished, (at, point.test.mean), **look)
            loss_axes.annotate(unfinished, (at, point.train_loss.mean), **look)
            rate_axes.annotate(unfinished, (at, point.effective_learning_rate), **look)


def _draw_optima(axes: Axes, x: Sequence[float], series: SweepSeries, style: Style, *, show_train: bool) -> None:
    """Draw optima with their intervals, and the broken line where one is fitted."""
    points = series.points
    rates = [point.effective_learning_rate for point in points]
    below = [rate - point.interval[0] for rate, point in zip(rates, points, strict=True)]
    above = [point.interval[1] - rate for rate, point in zip(rates, points, strict=True)]
    _line(axes, x, rates, style, errors=(below, above), connected=series.law is None)
    if series.law is not None:
        dashes: Literal["-", "--"] = "-" if series.law.shows_kink else "--"
        axes.plot(*zip(*series.corners, strict=True), color=style.colour, linewidth=1.3, linestyle=dashes, zorder=2.0)
    arrow: dict[str, Any] = {"color": style.colour, "markersize": 4, "linestyle": "none"}
    for at, point in zip(x, points, strict=True):
        if point.edge in (Edge.UPPER, Edge.BOTH):
            axes.plot(at, point.interval[1] * ARROW_GAP, marker="^", **arrow)
        if point.edge in (Edge.LOWER, Edge.BOTH):
            axes.plot(at, point.interval[0] / ARROW_GAP, marker="v", **arrow)
    if show_train:
        inside = [k for k, point in enumerate(points) if not point.train_end_sign]  # at an end it is no optimum
        train = [points[k].train_optimal_effective_learning_rate for k in inside]
        hollow: dict[str, Any] = {"markerfacecolor": "white", "markeredgecolor": style.colour, "markeredgewidth": 1.1}
        at_train = [x[k] for k in inside]
        axes.plot(at_train, train, linestyle="none", marker=style.marker, markersize=7, zorder=1.5, **hollow)


def _draw_kinks(axes: Axes, record: SweepFigure) -> float:
    """Mark every kink with its interval in a strip below the data, one row per series, or say that none is seen.

    Return the height of the strip as a fraction of the panel's.
    """
    styles = series_styles([series.momentum for series in record.series])
    shown = [(series.law, style) for series, style in zip(record.series, styles, strict=True) if series.law is not None]
    total = KINK_ROW * (0.5 + len(shown))
    _add_strip(axes, total)
    strip = axes.get_xaxis_transform()  # x in data, y as a fraction of the panel's height
    for row, (law, style) in enumerate(reversed(shown)):
        height = KINK_ROW * (row + 0.6)
        if law.kink is None or not law.shows_kink:
            words: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": 6.5, "color": style.colour}
            axes.text(0.99, height, law.unseen_words, transform=axes.transAxes, **words)
            continue
        (kink, level), (low, high) = (law.kink.estimate, law.plateau.estimate), (law.kink.low, law.kink.high)
        look: dict[str, Any] = {"color": style.colour, "marker": "d", "markersize": 4, "capsize": 2.0, "linewidth": 1.0}
        axes.errorbar([kink], [height], xerr=([kink - low], [high - kink]), transform=strip, **look)
        foot = axes.transData.inverted().transform(axes.transAxes.transform((0.0, height)))[1]
        axes.plot([kink, kink], [foot, level], color=style.colour, linewidth=0.7, linestyle=(0, (1, 2)), zorder=1)
    return total


def _explain_optima(axes: Axes, record: SweepFigure, *, above: float) -> None:
    """Explain filled and hollow markers and the dotted line, for all series, above the strip of the kinks."""
    handles = [_proxy(f"best {record.tuned_on}", marker="o", markersize=4.5)]
    if record.tuned_on != TRAIN_OBJECTIVE:
        handles.append(_proxy(f"best {TRAIN_OBJECTIVE}", marker="o", markersize=7, markerfacecolor="white"))
    if any(series.law is not None and series.law.shows_kink for series in record.series):
        handles.append(_proxy("kink, 95 % interval", marker="d", markersize=4))
    if any(series.guide is not None for series in record.series):
        handles.append(_proxy(f"{record.symbol} ∝ B", linestyle=":", linewidth=1.1))
    if any(series.root_guide is not None for series in record.series):
        handles.append(_proxy(f"{record.symbol} ∝ √B", linestyle="-.", linewidth=0.9))
    if any(point.edge in (Edge.LOWER, Edge.UPPER, Edge.BOTH) for point in record.points):
        handles.append(_proxy("touches the grid's end", marker="^", markersize=4))
    if any(point.edge is Edge.INCOMPLETE for point in record.points):
        handles.append(_proxy("runs are missing", marker=r"$\ldots$", markersize=6))
    room: dict[str, Any] = {"loc": "best", "bbox_to_anchor": (0.0, above, 1.0, 1.0 - above)}
    axes.legend(handles=handles, frameon=False, fontsize=7.5, handletextpad=0.5, labelspacing=0.3, **room)


def _proxy(label: str, *, linestyle: Literal["none", ":", "-."] = "none", **look: Any) -> Line2D:
    return Line2D([], [], label=with_math(label), linestyle=linestyle, color=INK, **look)


# -- the grids: two panels against learning rate --------------------------------------------------------------------


def _draw_learning_rates(record: LearningRateFigure, axes: Sequence[Axes]) -> None:
    test_axes, loss_axes = axes
    styles = ordered_styles(len(record.series))
    test_axes.yaxis.set_major_locator(MaxNLocator(nbins=MAX_TICKS + 2, steps=[1, 2, 5, 10]))
    for series, style in zip(record.series, styles, strict=True):
        _draw_grid(test_axes, series, style, of=lambda point: point.test)
        _draw_grid(loss_axes, series, style, of=lambda point: point.train_loss)
    losses = [p.train_loss for series in record.series for p in series.stable if p.train_loss is not None]
    _log_if_positive(loss_axes, losses)
    for panel, label in zip(axes, (record.test_label, TRAIN_LOSS_LABEL), strict=True):
        panel.set_ylabel(with_math(label))
        panel.set_xlabel(with_math(record.rate_label))
        power_of_two_axis(panel, "x", None)
    _draw_unstable(record, axes)
    handles = [
        Line2D([], [], label=series.label, color=style.colour, marker=style.marker, markersize=4.5)
        for series, style in zip(record.series, styles, strict=True)
    ]
    handles.append(_proxy("optimum", marker="o", markersize=7, markerfacecolor="none"))
    if _num_unstable(record):
        handles.append(_proxy("unstable", marker="x", markersize=4))
    side: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    loss_axes.legend(handles=handles, frameon=False, fontsize=8, labelspacing=0.35, **side)


def _draw_unstable(record: LearningRateFigure, axes: Sequence[Axes]) -> None:
    """Mark unstable learning rates by crosses in a strip below the data, one row per series."""
    if not _num_unstable(record):
        return
    styles = ordered_styles(len(record.series))
    for panel in axes:
        _add_strip(panel, ROW_HEIGHT * (1 + len(record.series)))
        strip = panel.get_xaxis_transform()  # x in data, y as a fraction of the panel's height
        for row, (series, style) in enumerate(zip(record.series, styles, strict=True)):
            rates = [p.effective_learning_rate for p in series.points if p.state is CellState.UNSTABLE]
            look: dict[str, Any] = {"linestyle": "none", "marker": "x", "markersize": 3.5, "color": style.colour}
            panel.plot(rates, [ROW_HEIGHT * (row + 0.8)] * len(rates), transform=strip, **look)


def _add_strip(axes: Axes, part: float) -> None:
    """Lower the bottom of the panel so that this fraction of its height lies below the data."""
    scale, (low, high) = axes.yaxis.get_transform(), axes.get_ylim()
    bottom, top = scale.transform([low, high])
    axes.set_ylim(float(scale.inverted().transform([bottom - (top - bottom) * part / (1 - part)])[0]), high)


def _num_unstable(record: LearningRateFigure) -> int:
    return sum(p.state is CellState.UNSTABLE for series in record.series for p in series.points)


def _draw_grid(
    axes: Axes, series: LearningRateSeries, style: Style, *, of: Callable[[LearningRatePoint], Spread | None]
) -> None:
    """Draw one grid: its interval as a broad band under the line, its optimum as a ring."""
    shown = [(point.effective_learning_rate, spread) for point in series.stable if (spread := of(point)) is not None]
    _error_bars(axes, [rate for rate, _ in shown], [spread for _, spread in shown], style, label=series.label)
    if series.interval is not None:
        low, high = series.interval
        within = [(rate, spread.mean) for rate, spread in shown if low <= rate <= high]
        axes.plot(*zip(*within, strict=True), color=style.colour, linewidth=5, alpha=0.25, solid_capstyle="round")
    for rate, spread in shown:
        if rate == series.optimum:
            ring: dict[str, Any] = {"markerfacecolor": "none", "markeredgecolor": INK, "markeredgewidth": 1.0}
            axes.plot(rate, spread.mean, marker="o", markersize=7.5, linestyle="none", zorder=4, **ring)


# -- shared ---------------------------------------------------------------------------------------------------------


def _error_bars(axes: Axes, x: Sequence[float], spreads: Sequence[Spread], style: Style, *, label: str) -> None:
    deviations = [spread.standard_deviation for spread in spreads]
    _line(axes, x, [spread.mean for spread in spreads], style, errors=(deviations, deviations), label=label)


def _line(
    axes: Axes,
    x: Sequence[float],
    y: Sequence[float],
    style: Style,
    *,
    errors: tuple[Sequence[float], Sequence[float]],
    label: str | None = None,
    connected: bool = True,
) -> None:
    axes.errorbar(
        x,
        y,
        yerr=errors,
        color=style.colour,
        marker=style.marker,
        markersize=4.5,
        linestyle="-" if connected else "none",
        linewidth=1.3,
        elinewidth=1.0,
        capsize=2.0,
        label=label,
        zorder=2.5,
    )


def _widen_to_octaves(axes: Axes) -> None:
    """Show at least MIN_OCTAVES, so that one step of the grid does not look large."""
    low, high = axes.get_ylim()
    missing = MIN_OCTAVES - math.log2(high / low)
    if missing > 0:
        axes.set_ylim(low / 2 ** (missing / 2), high * 2 ** (missing / 2))


def _log_if_positive(axes: Axes, spreads: Sequence[Spread]) -> None:
    """Use a logarithmic axis if all means are positive; error bars that reach zero are clipped."""
    if not spreads or any(spread.mean <= 0 for spread in spreads):
        return
    axes.set_yscale("log", nonpositive="clip")
    lowest = min(s.mean - s.standard_deviation if s.standard_deviation < s.mean else s.mean / 2 for s in spreads)
    highest = max(s.mean + s.standard_deviation for s in spreads)
    axes.set_ylim(lowest / 1.25, highest * 1.25)
    if highest / lowest < 4:  # 1, 2 and 5 would leave a tick or two
        axes.yaxis.set_major_locator(MaxNLocator(nbins=MAX_TICKS, steps=[1, 2, 5, 10]))
    else:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if highest / lowest < 200 else (1.0,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
