"""The figure of `isotherm theory NAME`: the panels of a demonstration, left to right."""

from __future__ import annotations

import io
import itertools
import math
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from isotherm.core.statistics import Floats
from isotherm.errors import UserError
from isotherm.report.axes import (
    DOTS_PER_INCH,
    FORMATS,
    METADATA,
    PANEL_HEIGHT,
    PANEL_WIDTH,
    RC,
    finish,
    power_of_two_axis,
    with_math,
)
from isotherm.report.files import write_atomically
from isotherm.report.style import Style, series_styles
from isotherm.report.wording import momentum_label
from isotherm.theory.demonstration import Curve, Demonstration, Panel

LINE_HEIGHT = 0.16  # inches, of small text
CHARACTERS, LARGE_CHARACTERS = 40, 34  # characters across a panel: small text; titles, and labels along its height
MARGIN = 0.06  # margin between the data and the panel's edges, as a fraction of its height
MANY_DECADES = 200  # from this ratio on, ticks of a logarithmic axis are powers of ten


def save_theory_figure(demonstration: Demonstration, path: Path) -> Path:
    """Write the figure as PNG, PDF or SVG, by the suffix of the path."""
    form = figure_format(path)
    content = io.BytesIO()
    with matplotlib.rc_context(RC):
        theory_figure(demonstration).savefig(content, format=form, dpi=DOTS_PER_INCH, metadata=METADATA[form])
    return write_atomically(path, content.getvalue())


def figure_format(path: Path) -> str:
    """Return the format that a path's suffix names.

    >>> figure_format(Path("sde.PNG"))
    'png'
    """
    form = path.suffix.lower().removeprefix(".")
    if form not in FORMATS:
        raise UserError(f"figure {path}: the suffix {path.suffix!r} is not a known format; use .png, .pdf or .svg")
    return form


def theory_figure(demonstration: Demonstration) -> Figure:
    """Return the figure; legends and notes are below their panels, clear of the data."""
    panels = demonstration.panels
    num_lines = max(_num_lines(panel.title, panel.note, *(c.label for c in panel.curves)) for panel in panels)
    size = (PANEL_WIDTH * len(panels), PANEL_HEIGHT + LINE_HEIGHT * num_lines)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.06, wspace=0.04))
    for index, (panel, styles) in enumerate(zip(panels, _styles(panels), strict=True)):
        axes = figure.add_subplot(1, len(panels), index + 1)
        _draw_panel(axes, panel, styles)
        finish(axes, "")
        letter = chr(ord("a") + index)
        axes.set_title(rf"$\mathbf{{{letter}}}$  {_text(panel.title, LARGE_CHARACTERS)}", loc="left", fontsize=9)
    return figure


# -- a panel --------------------------------------------------------------------------------------------------------


def _draw_panel(axes: Axes, panel: Panel, styles: Sequence[Style]) -> None:
    axes.set_xlabel(_text(panel.x_label))
    axes.set_ylabel(_text(panel.y_label, LARGE_CHARACTERS))
    limits = _limits(panel)
    if limits is not None:
        axes.set_yscale("log" if panel.y_log else "linear")
        axes.set_ylim(*limits)
    for index, (curve, style) in enumerate(zip(panel.curves, styles, strict=True)):
        num_on_top = sum(_lies_on(later, curve) for later in panel.curves[index + 1 :])
        _draw_curve(axes, curve, style, limits=limits, num_on_top=num_on_top)
    _set_ticks(axes, panel, limits)
    _put_below(axes, panel)


def _draw_curve(axes: Axes, curve: Curve, style: Style, *, limits: tuple[float, float] | None, num_on_top: int) -> None:
    """Draw a curve and its band, clipped to the panel."""
    kwargs: dict[str, Any] = {"color": style.colour, "label": _text(curve.label)}
    if curve.style == "points":
        axes.plot(curve.x, curve.y, linestyle="none", marker=style.marker, markersize=4, zorder=3, **kwargs)
    elif curve.style == "dashed":
        axes.plot(curve.x, curve.y, linestyle=(0, (4, 2)), linewidth=1.1, zorder=2, **kwargs)
    else:  # a line under others is wider, so that it stays visible
        axes.plot(curve.x, curve.y, linewidth=1.3 + 1.3 * num_on_top, zorder=2.5, **kwargs)
    if curve.low is None or curve.high is None or limits is None:
        return
    low, high = np.clip(_array(curve.low), *limits), np.clip(_array(curve.high), *limits)
    if curve.style == "points":
        bars: dict[str, Any] = {"fmt": "none", "elinewidth": 1.0, "capsize": 2.0, "zorder": 2.8}
        axes.errorbar(curve.x, (low + high) / 2, yerr=(high - low) / 2, ecolor=style.colour, **bars)
    else:
        axes.fill_between(curve.x, low, high, color=style.colour, alpha=0.2, linewidth=0, zorder=1.5)


def _lies_on(upper: Curve, lower: Curve) -> bool:
    """Tell whether two lines visibly coincide over a stretch."""
    if (upper.style, lower.style) != ("line", "line"):
        return False
    y = dict(zip(upper.x, upper.y, strict=True))
    return sum(math.isclose(own, y.get(x, math.nan), rel_tol=0.02) for x, own in zip(lower.x, lower.y, strict=True)) > 1


def _limits(panel: Panel) -> tuple[float, float] | None:
    """Return the limits of a panel around all values that can be shown; None for matplotlib's own."""
    given = [values for c in panel.curves for values in (c.y, c.low, c.high) if values is not None]
    values = np.concatenate([_array(each) for each in given]) if given else np.empty(0)
    shown = values[np.isfinite(values) & ((values > 0) | (not panel.y_log))]
    if not len(shown):
        return None
    low, high = (np.log(shown.min()), np.log(shown.max())) if panel.y_log else (shown.min(), shown.max())
    margin = MARGIN * (high - low) or (0.5 if panel.y_log else 0.5 * abs(low) or 0.5)
    low, high = float(low - margin), float(high + margin)
    return (math.exp(low), math.exp(high)) if panel.y_log else (low, high)


def _set_ticks(axes: Axes, panel: Panel, limits: tuple[float, float] | None) -> None:
    x = {float(value) for curve in panel.curves for value in curve.x if value > 0}
    if panel.x_log and x and all(math.frexp(value)[0] == 0.5 for value in x):
        power_of_two_axis(axes, "x", x)
    elif panel.x_log and x:
        axes.set_xscale("log")
        _plain_log_ticks(axes.xaxis, *axes.get_xlim())
    if panel.y_log and limits is not None:
        _plain_log_ticks(axes.yaxis, *limits)


def _plain_log_ticks(axis: Any, low: float, high: float) -> None:
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < MANY_DECADES else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def _put_below(axes: Axes, panel: Panel) -> None:
    """Put the note and the legend below the panel's label, at a distance in inches, whatever the panel's height."""
    figure = axes.get_figure()
    assert figure is not None
    distance = LINE_HEIGHT * (2 + _num_lines(panel.x_label))
    below = axes.transAxes + ScaledTranslation(0, -distance, figure.dpi_scale_trans)
    frame: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0, 0), "bbox_transform": below}
    spacing: dict[str, Any] = {"borderpad": 0, "borderaxespad": 0, "labelspacing": 0.3, "handletextpad": 0.6}
    text: dict[str, Any] = {"title": _text(panel.note), "fontsize": 7.5, "alignment": "left"}
    legend = axes.legend(handles=axes.get_legend_handles_labels()[0], frameon=False, **text, **frame, **spacing)
    legend.get_title().set_fontsize(7.5)


# -- colours --------------------------------------------------------------------------------------------------------


def _styles(panels: Sequence[Panel]) -> list[list[Style]]:
    """Return a style for every curve; a quantity keeps its colour across panels where possible."""
    plain, *others = series_styles([0.0, *[1.0] * 5])
    known = [(momentum_label(0.0), plain)]
    found = []
    for panel in panels:
        families = _families(panel.curves)
        names = [panel.curves[family[0]].label for family in families]
        chosen: list[Style | None] = []
        for name in names:
            alike = [style for label, style in known if _belong_together(label, name) and style not in chosen]
            chosen.append(alike[0] if alike else None)
        free = itertools.cycle([style for style in others if style not in chosen] or others)
        styles = [style or next(free) for style in chosen]
        known += zip(names, styles, strict=True)
        by_index = {index: style for family, style in zip(families, styles, strict=True) for index in family}
        found.append([by_index[index] for index in range(len(panel.curves))])
    return found


def _families(curves: Sequence[Curve]) -> list[list[int]]:
    """Return the indices of the curves, grouped by quantity; curves of a group differ in style."""
    families: list[list[int]] = []
    for index, curve in enumerate(curves):
        for family in families:
            is_other = all(curves[other].style != curve.style for other in family)
            if is_other and _belong_together(curves[family[0]].label, curve.label):
                family.append(index)
                break
        else:
            families.append([index])
    return families


def _belong_together(one: str, other: str) -> bool:
    """Tell whether two labels name one quantity: they differ in the last part only, or one has a word in front.

    >>> _belong_together("mean, simulated", "mean ≈ x / 2"), _belong_together("SGD", "simulated, SGD")
    (True, True)
    >>> _belong_together("SGD, simulated", "SDE, simulated")
    False
    """
    a, b = (re.split(r", | for | ≈ ", label) for label in (one, other))
    return (a[:-1] or a) == (b[:-1] or b) or a[1:] == b or b[1:] == a


# -- text -----------------------------------------------------------------------------------------------------------


def _text(text: str, characters: int = CHARACTERS) -> str:
    """Return text for matplotlib, wrapped to the panel and with subscripts."""
    subscript = r"$\\mathrm{\1}_{\\mathrm{\2}}$"
    return re.sub(r"\b([^\W\d_])_([^\W_]+)\b", subscript, with_math(textwrap.fill(text, characters)))


def _num_lines(*texts: str) -> int:
    return sum(len(textwrap.wrap(text, CHARACTERS)) for text in texts)


def _array(values: Sequence[float]) -> Floats:
    return np.asarray(values, dtype=np.float64)
