"""The figure: every run's test metric next to the paper's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from isotherm.report.style import Style, ordered_styles
from pages.calibration.runs import (
    LSTM_B16,
    SKIP_INIT,
    ZERO_PADDED,
    Reference,
    Run,
    dropout,
    load,
    rate_texts,
    reference,
    runs_at,
)

_INK, _FAINT, _PAPER = "#222222", "#e4e4e4", "#CC79A7"
_RC: dict[Any, Any] = {"font.size": 9.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One run's test metric against updates; the last point is the final evaluation."""

    series: str
    steps: tuple[int, ...]
    metrics: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """The curves of one setting, or of its variants, next to the paper's value."""

    title: str
    quantity: str
    num_steps: int
    paper: Reference
    curves: tuple[Curve, ...]
    ticks: tuple[float, ...]
    limits: tuple[float, float]
    has_inset: bool = False

    @property
    def first_drop(self) -> int:
        """The number of updates before the learning rate first drops."""
        return self.num_steps // 2

    @property
    def series(self) -> list[str]:
        """The names of the series, in the order of the curves."""
        return list(dict.fromkeys(curve.series for curve in self.curves))


def save(path: Path) -> None:
    """Write the figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_RC):
        figure().savefig(path, dpi=160)


def figure() -> Figure:
    """Return the whole figure."""
    drawn = Figure(figsize=(9.0, 5.6), layout="constrained")
    shown = panels()
    for index, panel in enumerate(shown):
        axes = drawn.add_subplot(2, 3, index + 1)
        draw(panel, axes)
        if index >= 3:
            axes.set_xlabel("updates (thousands)")
    handles: list[Any] = [
        (Patch(color=_PAPER, alpha=0.3, linewidth=0), Line2D([], [], color=_PAPER, linewidth=1.2)),
        Line2D([], [], color="#888888", linewidth=0.9, linestyle=":"),
    ]
    labels = ["the paper's final value ± sd", "first learning-rate drop"]
    drawn.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8.5, frameon=False)
    return drawn


def panels() -> list[Panel]:
    """Return the panels of the figure, in reading order."""
    zero = ("wrn_b256", "wrn_b256_zero")
    described: tuple[tuple[tuple[str, ...], str, str, tuple[float, ...], tuple[float, float]], ...] = (
        (("autoencoder",), "autoencoder, B = 64", "test squared error", (3, 5, 10, 20, 50), (2.65, 75)),
        (("lstm_b64",), "LSTM, B = 64", "test perplexity", (80, 90, 100, 110), (79, 115)),
        (LSTM_B16, "LSTM, B = 16", "test perplexity", (90, 110, 130, 150), (84, 160)),
        (zero, "WRN-16-4, ghost BN, B = 256", "test error (%)", (5, 7, 10, 15, 20), (4.5, 23)),
        (("wrn_b1024",), "WRN-16-4, ghost BN, B = 1,024", "test error (%)", (5, 7, 10, 15, 20), (4.5, 23)),
        ((SKIP_INIT,), "WRN-16-4, SkipInit, B = 64", "test error (%)", (5, 7, 10, 15, 20), (4.5, 23)),
    )
    found = []
    for names, title, quantity, ticks, limits in described:
        in_error = "error (%)" in quantity
        paper = reference(names[0], "test")
        if in_error:
            paper = Reference(mean=100 - paper.mean, sd=paper.sd, text=paper.text)
        found.append(
            Panel(
                title=title,
                quantity=quantity,
                num_steps=load(names[0])["runs"][0]["spec"]["num_steps"],
                paper=paper,
                curves=tuple(curve for name in names for curve in _curves(name, in_error=in_error)),
                ticks=ticks,
                limits=limits,
                has_inset=names == ("autoencoder",),
            )
        )
    return found


def _curves(name: str, *, in_error: bool) -> list[Curve]:
    """Return the curves of one result file, by learning rate."""
    texts = rate_texts(name)
    variant = ""
    if name in LSTM_B16:
        variant = f", dropout {dropout(name)}"
    elif name == ZERO_PADDED[0]:
        variant = ", zero padding"

    def shown(metric: float) -> float:
        return 100 * (1 - metric) if in_error else metric

    def curve(text: str, run: Run) -> Curve:
        metrics = (*(point["test_metric"] for point in run["curve"][:-1]), run["test_metric"])
        return Curve(
            series=f"ε_eff = {text}{variant}",
            steps=tuple(point["step"] for point in run["curve"]),
            metrics=tuple(map(shown, metrics)),
        )

    return [curve(text, run) for rate, text in texts.items() for run in runs_at(name, rate)]


def draw(panel: Panel, axes: Axes) -> None:
    """Draw one panel."""
    styles = _styles(panel)
    _draw_content(panel, axes, styles)
    axes.set_yscale("log")
    axes.set_ylim(*panel.limits)
    axes.set_xlim(0, panel.num_steps * 1.03)
    axes.yaxis.set_major_locator(FixedLocator(panel.ticks))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1000:g}"))
    axes.set_title(panel.title, fontsize=9, color=_INK)
    axes.set_ylabel(panel.quantity)
    axes.grid(color=_FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if panel.has_inset:
        _draw_inset(panel, axes, styles)
    handles = [
        Line2D([], [], color=style.colour, marker=style.marker, markersize=3.5, linewidth=1.1)
        for style in styles.values()
    ]
    names = list(styles)
    axes.legend(
        handles=handles,
        labels=[names[0], *(name.removeprefix("ε_eff = ") for name in names[1:])] if panel.has_inset else names,
        loc="upper right",
        bbox_to_anchor=(1.04, 0.89) if panel.has_inset else (1.02, 1.02),
        fontsize=7.5,
        facecolor="white",
        edgecolor="none",
        framealpha=0.9,
        ncols=len(names) if panel.has_inset else 1,
        handlelength=1.4,
        columnspacing=0.8,
        handletextpad=0.5,
        borderpad=0.2,
    )


def _styles(panel: Panel) -> dict[str, Style]:
    """Return the styles of the series: a single one, or the first of two, from the middle of the scale."""
    names = panel.series
    styles = ordered_styles(3)[1:] if len(names) < 3 else ordered_styles(len(names))
    return dict(zip(names, styles, strict=False))


def _draw_content(panel: Panel, axes: Axes, styles: dict[str, Style]) -> None:
    paper = panel.paper
    axes.axhspan(paper.mean - paper.sd, paper.mean + paper.sd, color=_PAPER, alpha=0.3, linewidth=0)
    axes.axhline(paper.mean, color=_PAPER, linewidth=1.2)
    axes.axvline(panel.first_drop, color="#888888", linewidth=0.9, linestyle=":")
    for curve in panel.curves:
        style = styles[curve.series]
        axes.plot(
            curve.steps,
            curve.metrics,
            "-",
            color=style.colour,
            marker=style.marker,
            markersize=2.6,
            linewidth=1.0,
            alpha=0.9,
        )


def _draw_inset(panel: Panel, axes: Axes, styles: dict[str, Style]) -> None:
    """Draw the end of the runs that did not collapse once more, on a linear axis."""
    inset = axes.inset_axes((0.28, 0.27, 0.71, 0.47))
    _draw_content(panel, inset, styles)
    inset.set_xlim(0.58 * panel.num_steps, 1.02 * panel.num_steps)
    inset.set_ylim(2.87, 3.36)
    inset.yaxis.set_major_locator(FixedLocator([2.9, 3.0, 3.1, 3.2, 3.3]))
    inset.xaxis.set_major_locator(FixedLocator([100_000, 125_000, 150_000]))
    inset.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1000:g}"))
    inset.tick_params(labelsize=6.5, length=2, pad=1.5)
    inset.grid(color=_FAINT, linewidth=0.5)
    inset.set_axisbelow(True)
    for spine in inset.spines.values():
        spine.set_color("#999999")
