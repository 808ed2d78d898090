"""Two stores side by side: their optima, and what they reach there, batch size by batch size."""

from __future__ import annotations

import math
from collections.abc import Sequence

from isotherm.core.statistics import welch_interval
from isotherm.report.watch.content import Plain
from isotherm.report.watch.grids import WatchedGrid
from isotherm.report.wording import interval_text, is_percent

Maps = dict[str, tuple[Plain, list[WatchedGrid]]]


def partner(maps: Maps, name: str, others: Maps) -> str | None:
    """Return the map of another store that answers to one: of the same title, else in the same place."""
    if name not in maps:
        return None
    title = maps[name][0]["title"]
    same = next((other for other, (head, _) in others.items() if head["title"] == title), None)
    place = list(maps).index(name)
    return same or (list(others)[place] if place < len(others) else None)


def difference_rows(grids: Sequence[WatchedGrid], others: Sequence[WatchedGrid]) -> list[list[str]]:
    """Return B, both optima, both test metrics, and the second less the first with Welch's 95 % interval."""
    by_size = {grid.axes.batch_size: grid for grid in others}
    rows = []
    for grid in grids:
        other = by_size.get(grid.axes.batch_size)
        if other is not None:
            pair = (grid, other)
            rows.append([f"{grid.axes.batch_size:,}", *map(_rate, pair), *map(_metric, pair), _difference(*pair)])
    return rows


def _rate(grid: WatchedGrid) -> str:
    best = grid.tuned.optimum
    return "–" if best is None else interval_text(best.effective_learning_rate, best.interval)


def _metric(grid: WatchedGrid) -> str:
    test = grid.tuned.test
    if test is None or not math.isfinite(test.mean_all):
        return "–"
    return f"{_shown(grid, test.mean_all)} (n = {len(test.values_all)})"


def _difference(grid: WatchedGrid, other: WatchedGrid) -> str:
    first, second = grid.tuned.test, other.tuned.test
    if first is None or second is None or not first.values_all or not second.values_all:
        return "–"
    found = welch_interval(second.values_all, first.values_all)
    if not math.isfinite(found.low):
        return f"{_shown(grid, found.estimate, sign='+')} [–]"
    low, high = (_shown(grid, limit, sign="+") for limit in (found.low, found.high))
    return f"{_shown(grid, found.estimate, sign='+')} [{low}, {high}]"


def _shown(grid: WatchedGrid, value: float, *, sign: str = "") -> str:
    return f"{100 * value:{sign}.1f}" if is_percent(grid.plan.metric) else f"{value:{sign}.4g}"
