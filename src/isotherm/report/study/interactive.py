"""Interactive figures: a record as plotly.js takes it, plain dictionaries ready for JSON.

Every panel is a separate plot, so that the page can arrange them side by side or below each other. A trace carries the
index of its series in `meta`, with which the page's legend shows and hides the series in all panels at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from isotherm.analysis.regimes import Regimes
from isotherm.core.json import plain
from isotherm.core.temperature import temperature
from isotherm.report.study.figures import (
    TRAIN_LOSS_LABEL,
    CellState,
    LearningRateFigure,
    LearningRatePoint,
    LearningRateSeries,
    Line,
    Spread,
    SweepFigure,
    SweepPoint,
    SweepSeries,
)
from isotherm.report.study.plotly_parts import (
    INK,
    MARKER_SIZE,
    Plain,
    axis_look,
    bar_look,
    interval_bars,
    log_if_positive,
    log_ticks,
    octaves,
    panel_layout,
    panel_name,
    plotly_text,
    series_meta,
    series_trace,
    spread_bars,
)
from isotherm.report.style import ARROW_GAP, Style, dodges, ordered_styles, series_styles
from isotherm.report.wording import TRAIN_OBJECTIVE, interval_text, power_text, rate_text, spread_text
from isotherm.sweep.protocol import Edge


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One plot: its name for screen readers, plotly's traces and layout."""

    name: str
    data: list[Plain]
    layout: Plain


@dataclass(frozen=True, kw_only=True, slots=True)
class LegendEntry:
    """One series in the page's legend."""

    label: str
    colour: str
    symbol: str


def panels(record: SweepFigure | LearningRateFigure) -> list[Panel]:
    """Return the plots of a record: three for a sweep, two for its grids."""
    made = _sweep_panels(record) if isinstance(record, SweepFigure) else _learning_rate_panels(record)
    return [Panel(name=panel.name, data=plain(panel.data), layout=plain(panel.layout)) for panel in made]


def legend(record: SweepFigure | LearningRateFigure) -> list[LegendEntry]:
    """Return the page's legend, one entry per series."""
    labels = [series.label for series in record.series]
    return [
        LegendEntry(label=label, colour=style.colour, symbol=style.symbol)
        for label, style in zip(labels, _styles(record), strict=True)
    ]


def _styles(record: SweepFigure | LearningRateFigure) -> list[Style]:
    if isinstance(record, SweepFigure):
        return series_styles([series.momentum for series in record.series])
    return ordered_styles(len(record.series))


# -- the sweep: three panels against batch size or budget ----------------------------------------------------------


def _sweep_panels(record: SweepFigure) -> list[Panel]:
    test: list[Plain] = []
    loss: list[Plain] = []
    rates: list[Plain] = []
    factors = dodges(len(record.series))
    for index, (series, style, factor) in enumerate(zip(record.series, _styles(record), factors, strict=True)):
        x = [point.x * factor for point in series.points]
        hover = [_sweep_hover(record, series.label, point) for point in series.points]
        test.append(series_trace(index, x, [p.test.mean for p in series.points], style, hover))
        test[-1]["error_y"] = spread_bars([p.test for p in series.points], style)
        loss.append(series_trace(index, x, [p.train_loss.mean for p in series.points], style, hover))
        loss[-1]["error_y"] = spread_bars([p.train_loss for p in series.points], style)
        if series.guide is not None:
            rates.append(_guide_trace(index, series.guide))
        if series.root_guide is not None:
            rates.append(_guide_trace(index, series.root_guide, dash="8px,3px,2px,3px"))
        if record.tuned_on != TRAIN_OBJECTIVE:
            rates.append(_train_optima_trace(record, index, x, series.points, style))
        rates.append(series_trace(index, x, [p.effective_learning_rate for p in series.points], style, hover))
        rates[-1]["error_y"] = interval_bars(series.points, style)
        if series.law is not None:
            rates[-1]["mode"] = "markers"
            rates.append(_law_trace(index, series, style))
            rates.append(_kink_trace(index, series.law, style, height=_kink_height(record, index)))
        rates.append(_edge_trace(index, x, series.points, style))
    x_axis = axis_look(record.x_label) | log_ticks({p.x for p in record.points}, text=lambda value: f"{value:,g}")
    rate_values = [value for p in record.points for value in (*p.interval, p.train_optimal_effective_learning_rate)]
    rate_values += [end[1] for series in record.series if series.guide for end in series.guide]
    rate_axis = axis_look(record.optimum_label) | log_ticks(octaves(rate_values), text=rate_text)
    loss_axis = axis_look(TRAIN_LOSS_LABEL) | log_if_positive([p.train_loss for p in record.points])
    return [
        Panel(
            name=panel_name(record.test_label, record.x_label),
            data=test,
            layout=panel_layout(x_axis, axis_look(record.test_label)),
        ),
        Panel(name=panel_name(TRAIN_LOSS_LABEL, record.x_label), data=loss, layout=panel_layout(x_axis, loss_axis)),
        Panel(
            name=panel_name(record.optimum_label, record.x_label), data=rates, layout=panel_layout(x_axis, rate_axis)
        ),
    ]


def _sweep_hover(record: SweepFigure, label: str, point: SweepPoint) -> str:
    rate = point.effective_learning_rate
    size, symbol = point.axes.batch_size, plotly_text(record.symbol)
    ratios = f"T = {power_text(temperature(rate, size))}"
    if not record.has_temperature:
        ratios = f"ε/B = {power_text(rate / size)}, ε/√B = {power_text(rate / math.sqrt(size))}"
    lines = [
        f"<b>{plotly_text(label)}</b>, B = {point.axes.batch_size:,}, {point.num_steps:,} steps",
        f"{symbol} = {interval_text(rate, point.interval)}, {ratios}",
        *_spread_lines(record, point.test, point.train_loss),
        f"lowest {TRAIN_OBJECTIVE} at {symbol} {point.train_end_sign or '= '}"
        f"{rate_text(point.train_optimal_effective_learning_rate)}, "
        f"without L2 at {rate_text(point.train_loss_optimal_effective_learning_rate)}",
    ]
    if point.at_edge:
        lines.append(f"interval: {point.edge}")
    return "<br>".join(lines)


def _spread_lines(record: SweepFigure | LearningRateFigure, test: Spread, train_loss: Spread) -> list[str]:
    kept = spread_text(test.mean, test.standard_deviation, percent=record.percent)
    everyone = spread_text(test.mean_all, test.standard_deviation_all, percent=record.percent)
    loss = spread_text(train_loss.mean, train_loss.standard_deviation, percent=False)
    return [
        f"{plotly_text(record.test_label)}: {kept} ({record.runs})"
        + (f", {everyone} (all)" if everyone != kept else ""),
        f"{TRAIN_LOSS_LABEL}: {loss}",
    ]


def _guide_trace(index: int, guide: Line, *, dash: str = "2px,4px") -> Plain:
    (x, y), (end_x, end_y) = guide
    line = {"color": INK, "width": 1.3, "dash": dash}
    return series_meta(index) | {"x": [x, end_x], "y": [y, end_y], "mode": "lines", "line": line, "hoverinfo": "skip"}


def _law_trace(index: int, series: SweepSeries, style: Style) -> Plain:
    """Return the broken line, dashed if the data determine no kink."""
    dash = "solid" if series.law is not None and series.law.shows_kink else "dash"
    line = {"color": style.colour, "width": 2, "dash": dash}
    ends = {"x": [x for x, _ in series.corners], "y": [y for _, y in series.corners]}
    return series_meta(index) | ends | {"mode": "lines", "line": line, "hoverinfo": "skip"}


def _kink_trace(index: int, law: Regimes, style: Style, *, height: float) -> Plain:
    """Return the kink with its interval below the data, or a text that none is seen."""
    hover = {"hovertemplate": f"<b>{plotly_text(law.label)}</b>: {plotly_text(law.kink_words)}<extra></extra>"}
    if law.kink is None or not law.shows_kink:
        words = {"mode": "text", "text": [plotly_text(law.unseen_words)], "textposition": "middle left"}
        return (
            series_meta(index)
            | {"x": [law.batch_sizes[-1]], "y": [height], "textfont": {"color": style.colour}}
            | words
            | hover
        )
    kink = law.kink
    limits = {"symmetric": False, "array": [kink.high - kink.estimate], "arrayminus": [kink.estimate - kink.low]}
    marker = {"symbol": "diamond", "size": MARKER_SIZE, "color": style.colour}
    bar = {"mode": "markers", "marker": marker, "error_x": bar_look(style) | limits}
    return series_meta(index) | {"x": [kink.estimate], "y": [height]} | bar | hover


def _kink_height(record: SweepFigure, index: int) -> float:
    """Return the height of a kink's marker: below all optima, lower for every further series."""
    lowest = min(min(p.interval[0], p.train_optimal_effective_learning_rate) for p in record.points)
    return lowest / math.pow(1.5, 1.5 + index)


def _train_optima_trace(
    record: SweepFigure, index: int, x: Sequence[float], points: Sequence[SweepPoint], style: Style
) -> Plain:
    inside = [k for k, point in enumerate(points) if not point.train_end_sign]  # at an end it is no optimum
    y = [points[k].train_optimal_effective_learning_rate for k in inside]
    hover = [f"lowest {TRAIN_OBJECTIVE} at {plotly_text(record.symbol)} = {rate_text(value)}" for value in y]
    trace = series_trace(index, [x[k] for k in inside], y, style, hover)
    marker = {"symbol": f"{style.symbol}-open", "size": MARKER_SIZE + 4, "color": style.colour}
    return trace | {"mode": "markers", "marker": marker}


def _edge_trace(index: int, x: Sequence[float], points: Sequence[SweepPoint], style: Style) -> Plain:
    """Return arrows beyond intervals that touch an end of the grid."""
    arrows: list[tuple[float, float, str]] = []
    for at, point in zip(x, points, strict=True):
        if point.edge in (Edge.LOWER, Edge.BOTH):
            arrows.append((at, point.interval[0] / ARROW_GAP, "arrow-down"))
        if point.edge in (Edge.UPPER, Edge.BOTH):
            arrows.append((at, point.interval[1] * ARROW_GAP, "arrow-up"))
    marker = {"symbol": [symbol for _, _, symbol in arrows], "size": MARKER_SIZE + 2, "color": style.colour}
    positions = {"x": [at for at, _, _ in arrows], "y": [rate for _, rate, _ in arrows]}
    return series_meta(index) | positions | {"mode": "markers", "marker": marker, "hoverinfo": "skip"}


# -- the grids: two panels against learning rate --------------------------------------------------------------------


def _learning_rate_panels(record: LearningRateFigure) -> list[Panel]:
    points = [point for series in record.series for point in series.points]
    rates = log_ticks(octaves([point.effective_learning_rate for point in points]), text=rate_text)
    losses = [spread for point in points if (spread := point.train_loss) is not None]
    choices: list[tuple[str, Plain, Callable[[LearningRatePoint], Spread | None]]] = [
        (record.test_label, {}, lambda point: point.test),
        (TRAIN_LOSS_LABEL, log_if_positive(losses), lambda point: point.train_loss),
    ]
    made = []
    for label, scale, of in choices:
        data: list[Plain] = []
        spreads = [spread for point in points if (spread := of(point)) is not None]
        floors = _rows_below(spreads, len(record.series), log=scale.get("type") == "log")
        for index, (series, style) in enumerate(zip(record.series, _styles(record), strict=True)):
            data += _grid_traces(record, series, index, style, of=of, floor=floors[index])
        layout = panel_layout(axis_look(record.rate_label) | rates, axis_look(label) | scale)
        made.append(Panel(name=panel_name(label, record.rate_label), data=data, layout=layout))
    return made


def _grid_traces(
    record: LearningRateFigure,
    series: LearningRateSeries,
    index: int,
    style: Style,
    *,
    of: Callable[[LearningRatePoint], Spread | None],
    floor: float,
) -> list[Plain]:
    shown = [(point, spread) for point in series.stable if (spread := of(point)) is not None]
    low, high = series.interval or (math.inf, -math.inf)
    within = [(p, s) for p, s in shown if low <= p.effective_learning_rate <= high]
    best = [(p, s) for p, s in shown if p.effective_learning_rate == series.optimum]
    unstable = [p for p in series.points if p.state is CellState.UNSTABLE]
    line = series_trace(
        index,
        [p.effective_learning_rate for p, _ in shown],
        [s.mean for _, s in shown],
        style,
        [_cell_hover(record, series, point) for point, _ in shown],
    )
    line["error_y"] = spread_bars([s for _, s in shown], style)
    band = {"mode": "lines", "line": {"color": style.colour, "width": 9}, "opacity": 0.25, "hoverinfo": "skip"}
    ring_marker = {"symbol": "circle-open", "size": 14, "color": INK, "line": {"width": 1.5}}
    cross_marker = {"symbol": "x-thin", "size": 6, "color": style.colour, "line": {"color": style.colour, "width": 1.5}}
    ring = {"mode": "markers", "marker": ring_marker, "hoverinfo": "skip"}
    crosses = {
        "x": [p.effective_learning_rate for p in unstable],
        "y": [floor] * len(unstable),
        "mode": "markers",
        "marker": cross_marker,
        "text": [_unstable_hover(record, series, p) for p in unstable],
        "hovertemplate": "%{text}<extra></extra>",
    }
    return [
        series_meta(index) | _at(within) | band,
        line,
        series_meta(index) | _at(best) | ring,
        series_meta(index) | crosses,
    ]


def _at(chosen: Sequence[tuple[LearningRatePoint, Spread]]) -> Plain:
    return {"x": [p.effective_learning_rate for p, _ in chosen], "y": [s.mean for _, s in chosen]}


def _cell_hover(record: LearningRateFigure, series: LearningRateSeries, point: LearningRatePoint) -> str:
    assert point.test is not None
    assert point.train_loss is not None
    head = _cell_head(record, series, point)
    diverged = [f"{point.num_diverged} of {record.num_seeds} diverged"] if point.num_diverged else []
    return "<br>".join([head, *_spread_lines(record, point.test, point.train_loss), *diverged])


def _unstable_hover(record: LearningRateFigure, series: LearningRateSeries, point: LearningRatePoint) -> str:
    head = _cell_head(record, series, point)
    return f"{head}<br>{point.num_diverged} of {record.num_seeds} diverged"


def _cell_head(record: LearningRateFigure, series: LearningRateSeries, point: LearningRatePoint) -> str:
    rate = f"{plotly_text(record.symbol)} = {rate_text(point.effective_learning_rate)}"
    return f"<b>{plotly_text(series.label)}</b>, {rate}"


def _rows_below(spreads: Sequence[Spread], number: int, *, log: bool) -> list[float]:
    """Return the heights of the crosses, one row per series, below all data."""
    means = [math.log(s.mean) if log else s.mean for s in spreads] or [0.0]
    height = (max(means) - min(means)) or 1.0
    rows = [min(means) - height * (0.08 + 0.025 * (number - k)) for k in range(number)]
    return [math.exp(row) for row in rows] if log else rows
