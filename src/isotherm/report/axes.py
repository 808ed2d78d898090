"""What all matplotlib figures share: sizes, formats, axes and symbols."""

from __future__ import annotations

import math
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from isotherm.report.wording import rate_text

Format = Literal["png", "pdf", "svg"]
FORMATS = ("png", "pdf", "svg")
DOTS_PER_INCH = 160
PANEL_WIDTH, PANEL_HEIGHT = 3.0, 2.8  # inches
MAX_TICKS = 6

INK, FAINT = "#222222", "#e4e4e4"
# Text remains text in PDF and SVG, and equal records give equal bytes.
RC: dict[Any, Any] = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "isotherm", "font.size": 9.0}
METADATA: dict[str, dict[str, None]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}


def finish(axes: Axes, letter: str) -> None:
    """Add the panel letter and the common look."""
    axes.set_title(letter, loc="left", fontweight="bold", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, axis="y", color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, color=INK)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_fontsize(8.5)
    axes.tick_params(which="minor", length=2)


def power_of_two_axis(axes: Axes, which: Literal["x", "y"], values: set[float] | None) -> None:
    """Set a base-2 logarithmic axis with ticks at the values, or at powers of two if none are given."""
    if which == "x":
        axes.set_xscale("log", base=2)
    else:
        axes.set_yscale("log", base=2)
    axis = axes.xaxis if which == "x" else axes.yaxis
    if not values:
        axis.set_major_locator(LogLocator(base=2, numticks=MAX_TICKS + 2))
        axis.set_major_formatter(FuncFormatter(lambda value, _: rate_text(value)))
        axis.set_minor_locator(NullLocator())
        return
    positions = sorted(values)
    every = math.ceil(len(positions) / MAX_TICKS)
    axis.set_major_locator(FixedLocator(positions[::every]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(FixedLocator(positions))
    axis.set_minor_formatter(NullFormatter())


def with_math(text: str) -> str:
    """Return text for matplotlib, with ε_eff as mathematics and dollar signs escaped."""
    return text.replace("$", r"\$").replace("ε_eff", r"$\epsilon_{\mathrm{eff}}$")
