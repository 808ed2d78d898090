"""Traces, error bars and axes of plotly.js that all panels share."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from typing import Any

from isotherm.report.study.figures import Spread, SweepPoint
from isotherm.report.style import Style

Plain = dict[str, Any]  # what plotly.js takes

INK, MARKER_SIZE = "#1f2933", 7
_GRID, _AXIS = "#e8ebee", "#9aa5b1"
_MAX_TICKS = 7


def series_meta(index: int) -> Plain:
    """Return what every trace of a series has."""
    return {"type": "scatter", "meta": {"series": index}, "showlegend": False}


def series_trace(index: int, x: Sequence[float], y: Sequence[float], style: Style, hover: Sequence[str]) -> Plain:
    """Return a line with markers and hover texts."""
    return series_meta(index) | {
        "x": list(x),
        "y": list(y),
        "mode": "lines+markers",
        "line": {"color": style.colour, "width": 2},
        "marker": {"symbol": style.symbol, "size": MARKER_SIZE, "color": style.colour},
        "text": list(hover),
        "hovertemplate": "%{text}<extra></extra>",
    }


def spread_bars(spreads: Sequence[Spread], style: Style) -> Plain:
    """Return error bars of one standard deviation."""
    return bar_look(style) | {"array": [spread.standard_deviation for spread in spreads]}


def interval_bars(points: Sequence[SweepPoint], style: Style) -> Plain:
    """Return error bars over the intervals of optima."""
    return bar_look(style) | {
        "symmetric": False,
        "array": [point.interval[1] - point.effective_learning_rate for point in points],
        "arrayminus": [point.effective_learning_rate - point.interval[0] for point in points],
    }


def bar_look(style: Style) -> Plain:
    """Return how error bars look."""
    return {"type": "data", "color": style.colour, "thickness": 1.3, "width": 3}


def panel_layout(x_axis: Plain, y_axis: Plain) -> Plain:
    """Return the layout of a panel with these axes."""
    return {
        "xaxis": x_axis,
        "yaxis": y_axis,
        "margin": {"l": 8, "r": 8, "t": 30, "b": 8},  # the toolbar is above the data
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 12, "color": INK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": "white", "font": {"color": INK}, "align": "left"},
        "dragmode": "zoom",
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": _AXIS, "activecolor": INK},
        "showlegend": False,
    }


def axis_look(label: str) -> Plain:
    """Return an axis with its label."""
    return {
        "title": {"text": plotly_text(label), "standoff": 8},
        "automargin": True,
        "gridcolor": _GRID,
        "linecolor": _AXIS,
        "showline": True,
        "zeroline": False,
        "ticks": "outside",
        "tickcolor": _AXIS,
    }


def log_ticks(values: set[float], *, text: Callable[[float], str]) -> Plain:
    """Return a logarithmic axis with ticks at up to seven of the values."""
    positions = sorted(values)
    positions = positions[:: math.ceil(len(positions) / _MAX_TICKS) or 1]
    return {"type": "log", "tickmode": "array", "tickvals": positions, "ticktext": [text(value) for value in positions]}


def octaves(values: Sequence[float]) -> set[float]:
    """Return the powers of two that span the values."""
    if not values:
        return set()
    return {2.0**k for k in range(math.floor(math.log2(min(values))), math.ceil(math.log2(max(values))) + 1)}


def log_if_positive(spreads: Sequence[Spread]) -> Plain:
    """Return a logarithmic axis if all means are positive."""
    if not spreads or any(spread.mean <= 0 for spread in spreads):
        return {}
    return {"type": "log", "tickformat": "~g", "dtick": "D2", "minor": {"ticks": ""}}


def panel_name(y_label: str, x_label: str) -> str:
    """Return a panel's name for screen readers."""
    return f"{y_label} against {x_label}"


def plotly_text(label: str) -> str:
    """Return text for plotly, which reads some HTML; a user's text is escaped."""
    return html.escape(label, quote=False).replace("ε_eff", "ε<sub>eff</sub>")
