"""The figures of a diagnosis: failures, short grids, and the map of learning rate against batch size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from isotherm.core.statistics import Interval
from isotherm.diagnose.boundary import ceiling
from isotherm.diagnose.diagnosis import Boundary, Diagnosis, ShortGrid
from isotherm.report.axes import FAINT, INK, finish, power_of_two_axis, with_math
from isotherm.report.study.figures import BATCH_SIZE_LABEL, RATE_LABEL
from isotherm.report.style import Style, ordered_styles, series_styles
from isotherm.report.wording import is_percent, momentum_label, rate_text

WIDTH, HEIGHT, MAP_HEIGHT = 7.2, 3.2, 4.6  # inches
BAND = 0.15  # opacity of intervals
MARGIN = 2.0  # factor between the outermost values and the edges of the map
# Estimates of B* beyond the batch sizes by more than this factor become arrows at the map's edges.
FARTHEST = 16.0
STRIP_ROW = 0.06  # fraction of the map's height for one source of B*
CROSS_ROW = 0.035  # fraction of the panel's height for the crosses of one batch size
# A mean loss above this multiple of the initial one only means that runs fail.
HIGHEST_LOSS = 2.0
NARROW = 4.0  # losses within this factor get a linear axis
_SOFT = "#7b8794"


def failure_figure(diagnosis: Diagnosis) -> Figure:
    """Return the failure rate against the effective learning rate, with the limits."""
    figure, axes = _empty(HEIGHT)
    draw_failures(diagnosis, axes)
    return figure


def loss_figure(diagnosis: Diagnosis) -> Figure:
    """Return the held-out metric of the short grids, with their optima."""
    figure, axes = _empty(HEIGHT)
    draw_losses(diagnosis, axes)
    return figure


def map_figure(diagnosis: Diagnosis) -> Figure:
    """Return the map of learning rate against batch size: isotherm, ceilings, optima, B* and the setting in use."""
    figure, axes = _empty(MAP_HEIGHT)
    draw_map(diagnosis, axes)
    return figure


def has_map(diagnosis: Diagnosis) -> bool:
    """Tell whether anything was found that can be shown on the map."""
    limits = [stability.limit for stability in diagnosis.stability]
    optima = [grid.optimum for grid in diagnosis.grids]
    return any(found is not None for found in (diagnosis.isotherm.temperature, *limits, *optima))


def _empty(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.add_subplot()


# -- failures -------------------------------------------------------------------------------------------------------


def draw_failures(diagnosis: Diagnosis, axes: Axes) -> None:
    """Draw the fraction of failed runs, one line per momentum; limits are vertical, their intervals bands."""
    styles = _momentum_styles(diagnosis)
    rates = [rate for stability in diagnosis.stability for rate in stability.rates]
    power_of_two_axis(axes, "x", None)
    if rates:
        axes.set_xlim(min(rates) / 1.4, max(rates) * 1.4)
    handles: list[Any] = []
    for stability in diagnosis.stability:
        style = styles[stability.momentum]
        parts = [failed / runs for failed, runs in zip(stability.num_failed, stability.num_runs, strict=True)]
        axes.plot(stability.rates, parts, **_line_style(style), linewidth=1.3, zorder=2.5)
        found = ": no limit found" if stability.limit is None else ""
        handles.append(_handle(f"{momentum_label(stability.momentum)}{found}", style))
        if stability.limit is not None:
            low, high = _clipped(stability.limit, axes.get_xlim())
            axes.axvspan(low, high, color=style.colour, alpha=BAND, linewidth=0)
            axes.axvline(stability.limit.estimate, color=style.colour, linewidth=1.1, linestyle="--")
    axes.axhline(0.5, color=_SOFT, linewidth=0.8, linestyle=":")
    axes.set_ylim(-0.04, 1.04)
    axes.set_xlabel(with_math(RATE_LABEL))
    axes.set_ylabel("fraction of failed runs")
    if any(stability.limit is not None for stability in diagnosis.stability):
        handles.append(Line2D([], [], color=INK, linestyle="--", linewidth=1.1, label="limit: half fail"))
        handles.append(_patch_handle("its 95 % interval"))
    _finish_panel(axes, handles)


# -- losses ---------------------------------------------------------------------------------------------------------


def draw_losses(diagnosis: Diagnosis, axes: Axes) -> None:
    """Draw the held-out metric of every short grid; rings are optima with their intervals, crosses are failures."""
    grids = diagnosis.grids
    styles = ordered_styles(len(grids))
    names_momentum = len({grid.momentum for grid in grids}) > 1
    names_steps = len({grid.batch_size for grid in grids}) < len(grids)
    power_of_two_axis(axes, "x", None)
    if rates := [rate for grid in grids for rate in grid.rates]:
        axes.set_xlim(min(rates) / 1.4, max(rates) * 1.4)
    handles = []
    for grid, style in zip(grids, styles, strict=True):
        shown = _finite_points(grid)
        x, y, deviations = zip(*shown, strict=True) if shown else ((), (), ())
        errors = [deviation if math.isfinite(deviation) else 0.0 for deviation in deviations]
        axes.errorbar(x, y, yerr=errors, **_line_style(style), linewidth=1.3, elinewidth=1.0, capsize=2.0, zorder=2.5)
        _draw_optimum(axes, grid, style)
        more = f", {momentum_label(grid.momentum)}" if names_momentum else ""
        more += f", {grid.num_steps:,} updates" if names_steps else ""
        handles.append(_handle(f"B = {grid.batch_size:,}{more}", style))
    _loss_axis(diagnosis, axes)
    if any(len(_finite_points(grid)) < len(grid.rates) for grid in grids):
        _draw_crosses(axes, grids, styles)
        handles.append(Line2D([], [], color=INK, linestyle="none", marker="x", markersize=4, label="runs fail"))
    if any(grid.optimum is not None for grid in grids):
        handles.append(_ring_handle("optimum, 95 % interval"))
    axes.set_xlabel(with_math(RATE_LABEL))
    axes.set_ylabel(f"held-out {diagnosis.metric.replace('_', ' ')}")
    _finish_panel(axes, handles)


def _finite_points(grid: ShortGrid) -> list[tuple[float, float, float]]:
    every = zip(grid.rates, grid.means, grid.standard_deviations, strict=True)
    return [(rate, mean, deviation) for rate, mean, deviation in every if math.isfinite(mean)]


def _draw_optimum(axes: Axes, grid: ShortGrid, style: Style) -> None:
    """Ring the optimum, on the line through the means."""
    shown = _finite_points(grid)
    if grid.optimum is None or not shown:
        return
    positions = np.log2([rate for rate, _, _ in shown])
    height = float(np.interp(math.log2(grid.optimum.estimate), positions, [mean for _, mean, _ in shown]))
    low, high = _clipped(grid.optimum, axes.get_xlim())
    axes.plot([low, high], [height, height], color=style.colour, linewidth=5, alpha=0.3, solid_capstyle="butt")
    axes.plot(grid.optimum.estimate, height, marker="o", markersize=8, linestyle="none", zorder=4, **_ring())


def _loss_axis(diagnosis: Diagnosis, axes: Axes) -> None:
    """Show losses up to a useful limit, on a logarithmic axis if they span a wide range; accuracies as they are."""
    points = [point for grid in diagnosis.grids for point in _finite_points(grid)]
    means = [mean for _, mean, _ in points]
    if not means or min(means) <= 0 or is_percent(diagnosis.metric):
        return
    initial = [stability.initial_loss for stability in diagnosis.stability if stability.initial_loss > 0]
    highest = min(max(means), HIGHEST_LOSS * max(initial)) if initial else max(means)
    lowest = min(mean - deviation if 0 < deviation < mean else mean for _, mean, deviation in points)
    if highest / lowest > NARROW:
        axes.set_yscale("log", nonpositive="clip")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(lowest / 1.05, highest * 1.05)


def _draw_crosses(axes: Axes, grids: Sequence[ShortGrid], styles: Sequence[Style]) -> None:
    """Mark learning rates without a mean by crosses in a strip below the data, a row per batch size."""
    _add_strip(axes, CROSS_ROW * (len(grids) + 0.5))
    for row, (grid, style) in enumerate(zip(grids, styles, strict=True)):
        rates = [rate for rate, mean in zip(grid.rates, grid.means, strict=True) if not math.isfinite(mean)]
        kwargs: dict[str, Any] = {"linestyle": "none", "marker": "x", "markersize": 4, "color": style.colour}
        axes.plot(rates, [CROSS_ROW * (row + 0.7)] * len(rates), transform=axes.get_xaxis_transform(), **kwargs)


# -- the map --------------------------------------------------------------------------------------------------------


def draw_map(diagnosis: Diagnosis, axes: Axes) -> None:
    """Draw everything in the plane of batch size and effective learning rate.

    A strip below has the estimates of B*, a row per source; one that lies outside is an arrow at the edge.
    """
    styles = _momentum_styles(diagnosis)
    for which in ("x", "y"):
        power_of_two_axis(axes, which, None)
    sizes = _spanned(_batch_sizes(diagnosis))
    axes.set_xlim(*sizes)
    rates = _spanned(_rates(diagnosis, sizes=(sizes[0] * MARGIN, sizes[1] / MARGIN)))
    axes.set_ylim(*rates)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: rate_text(value) if value >= rates[0] else ""))
    sources = list(dict.fromkeys(boundary.source for boundary in diagnosis.boundaries if boundary.batch_size))
    _add_strip(axes, STRIP_ROW * len(sources))
    handles = [*_draw_isotherm(diagnosis, axes), *_draw_ceilings(diagnosis, axes, styles)]
    handles += _draw_points(diagnosis, axes, styles)
    handles += [_patch_handle("95 % intervals")]
    strip = Rectangle((0, 0), 1, STRIP_ROW * len(sources), transform=axes.transAxes, color=FAINT, linewidth=0)
    axes.add_patch(strip)
    for row, source in enumerate(reversed(sources)):
        height = STRIP_ROW * (row + 0.5)
        kwargs: dict[str, Any] = {"transform": axes.transAxes, "fontsize": 8, "color": INK, "va": "center"}
        axes.text(1.02, height, f"B* by {source}", **kwargs)
        own = [b for b in diagnosis.boundaries if b.source == source]
        for shift, boundary in zip(_shifts(len(own)), own, strict=True):
            _draw_boundary(axes, boundary, styles[boundary.momentum], height=height + shift)
    axes.set_xlabel(with_math(BATCH_SIZE_LABEL))
    axes.set_ylabel(with_math(RATE_LABEL))
    _finish_panel(axes, handles)


def _draw_isotherm(diagnosis: Diagnosis, axes: Axes) -> list[Any]:
    temperature = diagnosis.isotherm.temperature
    if temperature is None:
        return []
    isotherm = diagnosis.isotherm
    ends = np.array(axes.get_xlim())
    low, high = _clipped(temperature, (axes.get_ylim()[0] / ends[1], axes.get_ylim()[1] / ends[0]))
    best = np.array([isotherm.rate(size) for size in ends], dtype=float)
    factors = (low / temperature.estimate, high / temperature.estimate)
    axes.fill_between(ends, factors[0] * best, factors[1] * best, color=INK, alpha=BAND, linewidth=0)
    (line,) = axes.plot(ends, best, color=INK, linewidth=1.3)
    words = f"isotherm ε_eff = T B, T = {temperature.estimate:.3g}"
    if isotherm.used_slope != 1.0:
        words = f"best ε_eff, rising as B^{isotherm.used_slope:.2f}"
    line.set_label(with_math(words))
    return [line]


def _draw_ceilings(diagnosis: Diagnosis, axes: Axes, styles: dict[float, Style]) -> list[Any]:
    handles = []
    for stability in diagnosis.stability:
        if stability.limit is None:
            continue
        style, top = styles[stability.momentum], ceiling(stability.limit)
        axes.axhspan(*_clipped(top, axes.get_ylim()), color=style.colour, alpha=BAND, linewidth=0)
        line = axes.axhline(top.estimate, color=style.colour, linewidth=1.3, linestyle="--")
        border = diagnosis.boundary(stability.momentum)
        if border is not None and math.isfinite(border.estimate):  # down from the intersection with the isotherm
            size = border.estimate
            kwargs: dict[str, Any] = {"color": style.colour, "linewidth": 1.1, "linestyle": ":"}
            axes.plot([size, size], [axes.get_ylim()[0], top.estimate], **kwargs)
        line.set_label(f"ceiling, {momentum_label(stability.momentum)}")
        handles.append(line)
    return handles


def _draw_points(diagnosis: Diagnosis, axes: Axes, styles: dict[float, Style]) -> list[Any]:
    """Draw optima, the recommendation, and the user's setting."""
    handles: list[Any] = []
    for momentum, style in styles.items():
        found = _longest_optima(diagnosis, momentum)
        if not found:
            continue
        limits = [_clipped(optimum, axes.get_ylim()) for optimum in found.values()]
        rates = [optimum.estimate for optimum in found.values()]
        below = [rate - low for rate, (low, _) in zip(rates, limits, strict=True)]
        above = [high - rate for rate, (_, high) in zip(rates, limits, strict=True)]
        kwargs = _line_style(style) | {"linestyle": "none", "elinewidth": 1.1, "capsize": 2.5, "zorder": 3}
        axes.errorbar(list(found), rates, yerr=[below, above], **kwargs)
        handles.append(_handle(f"best of longest grid, {momentum_label(momentum)}", style, linestyle="none"))
    if diagnosis.choice is not None:
        for size, momentum in zip((12, 8), sorted(diagnosis.recommended), strict=False):  # nested if they coincide
            choice = diagnosis.choice_with(momentum)
            if choice is None or momentum not in choice.rates:
                continue
            ring = _ring() | {"markeredgecolor": styles[momentum].colour, "markeredgewidth": 1.6}
            rate = choice.rates[momentum].estimate
            axes.plot(choice.batch_size, rate, marker="D", markersize=size, linestyle="none", zorder=4, **ring)
        handles.append(_ring_handle("recommended", marker="D"))
    if (current := diagnosis.current) is not None:
        star: dict[str, Any] = {"marker": "*", "markersize": 12, "color": INK, "linestyle": "none", "zorder": 5}
        (mark,) = axes.plot(current.batch_size, current.effective_learning_rate, **star, label="your setting")
        handles.append(mark)
    return handles


def _longest_optima(diagnosis: Diagnosis, momentum: float) -> dict[int, Interval]:
    """Return the optimum of the longest grid that has one, by batch size."""
    grids = sorted(diagnosis.grids, key=lambda grid: (grid.batch_size, grid.num_steps))
    return {g.batch_size: g.optimum for g in grids if g.momentum == momentum and g.optimum is not None}


def _draw_boundary(axes: Axes, boundary: Boundary, style: Style, *, height: float) -> None:
    if boundary.batch_size is None:
        return
    start, end = axes.get_xlim()
    low, high = _clipped(boundary.batch_size, (start, end))
    strip = axes.get_xaxis_transform()
    axes.plot([low, high], [height, height], color=style.colour, linewidth=1.2, transform=strip, zorder=3)
    estimate = boundary.batch_size.estimate
    kwargs: dict[str, Any] = {"color": style.colour, "linestyle": "none", "transform": strip, "clip_on": False}
    if start <= estimate <= end:
        axes.plot(estimate, height, marker=style.marker, markersize=4.5, zorder=3.5, **kwargs)
    else:
        marker, edge = (">", end) if estimate > end else ("<", start)
        axes.plot(edge, height, marker=marker, markersize=6, zorder=3.5, **kwargs)


def _shifts(number: int) -> list[float]:
    """Return heights around a row's middle, so that bars of one source do not hide each other."""
    return [STRIP_ROW * 0.36 * ((number - 1) / 2 - k) for k in range(number)]


# -- the range of the map -------------------------------------------------------------------------------------------


def _batch_sizes(diagnosis: Diagnosis) -> list[float]:
    """Return the batch sizes to show; estimates of B* count unless they are far beyond the others."""
    sizes: list[float] = [grid.batch_size for grid in diagnosis.grids]
    sizes += [choice.batch_size for choice in diagnosis.choices]
    sizes += [diagnosis.current.batch_size] if diagnosis.current is not None else []
    estimates = [b.batch_size.estimate for b in diagnosis.boundaries if b.batch_size is not None]
    if not sizes:
        return [estimate for estimate in estimates if 0 < estimate < math.inf]
    nearest, farthest = min(sizes) / FARTHEST, max(sizes) * FARTHEST
    return sizes + [estimate for estimate in estimates if nearest <= estimate <= farthest]


def _rates(diagnosis: Diagnosis, *, sizes: tuple[float, float]) -> list[float]:
    """Return the effective learning rates to show, given the batch sizes."""
    intervals = [ceiling(stability.limit) for stability in diagnosis.stability if stability.limit is not None]
    intervals += [grid.optimum for grid in diagnosis.grids if grid.optimum is not None]
    rates = [value for found in intervals for value in (found.estimate, found.low, found.high)]
    if (choice := diagnosis.choice) is not None:
        rates += [rate.estimate for rate in choice.rates.values()]
    if diagnosis.current is not None:
        rates.append(diagnosis.current.effective_learning_rate)
    temperature = diagnosis.isotherm.temperature
    if temperature is not None:
        highest = max(_usable(rates), default=math.inf)
        ends = [rate for size in sizes if (rate := diagnosis.isotherm.rate(size)) is not None]
        rates += [min(ends), min(max(ends), highest)]
    return _usable(rates)


def _usable(values: Iterable[float]) -> list[float]:
    return [value for value in values if 0 < value < math.inf]


def _spanned(values: Sequence[float]) -> tuple[float, float]:
    """Return the limits of a logarithmic axis around some values.

    >>> _spanned([8.0, 128.0])
    (4.0, 256.0)
    """
    return (min(values) / MARGIN, max(values) * MARGIN) if values else (1.0, 4.0)


# -- shared ---------------------------------------------------------------------------------------------------------


def _momentum_styles(diagnosis: Diagnosis) -> dict[float, Style]:
    """Return the style of each momentum, the same in every figure."""
    momenta = {0.0, diagnosis.momentum, *(boundary.momentum for boundary in diagnosis.boundaries)}
    momenta |= {stability.momentum for stability in diagnosis.stability} | {grid.momentum for grid in diagnosis.grids}
    momenta |= {momentum for choice in diagnosis.choices for momentum in choice.rates}
    ordered = sorted(momenta)
    return dict(zip(ordered, series_styles(ordered), strict=True))


def _clipped(interval: Interval, ends: tuple[float, float]) -> tuple[float, float]:
    """Return an interval's limits, clipped to a range.

    >>> _clipped(Interval(estimate=2, low=0, high=math.inf), (1, 8))
    (1, 8)
    """
    low, high = ends
    return min(max(interval.low, low), high), max(min(interval.high, high), low)


def _add_strip(axes: Axes, part: float) -> None:
    """Make room below the data, as a fraction of the panel's height."""
    scale, (low, high) = axes.yaxis.get_transform(), axes.get_ylim()
    bottom, top = scale.transform([low, high])
    axes.set_ylim(float(scale.inverted().transform([bottom - (top - bottom) * part / (1 - part)])[0]), high)


def _line_style(style: Style) -> dict[str, Any]:
    return {"color": style.colour, "marker": style.marker, "markersize": 4.5}


def _ring() -> dict[str, Any]:
    return {"markerfacecolor": "none", "markeredgecolor": INK, "markeredgewidth": 1.1}


def _handle(label: str, style: Style, *, linestyle: str = "-") -> Line2D:
    return Line2D([], [], label=with_math(label), linestyle=linestyle, **_line_style(style))  # type: ignore[arg-type]


def _ring_handle(label: str, *, marker: str = "o") -> Line2D:
    return Line2D([], [], label=label, linestyle="none", marker=marker, markersize=7, **_ring())


def _patch_handle(label: str) -> Patch:
    return Patch(color=INK, alpha=BAND, linewidth=0, label=label)


def _finish_panel(axes: Axes, handles: Sequence[Any]) -> None:
    finish(axes, "")
    side: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.55)}
    axes.legend(handles=handles, frameon=False, fontsize=8, labelspacing=0.45, handletextpad=0.6, **side)
