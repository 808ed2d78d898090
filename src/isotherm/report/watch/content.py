"""What the page shows, as plain values: maps of cells, what is next, failures, and how far a study is."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from isotherm.analysis.cells import estimate_so_far, state_of
from isotherm.analysis.series import TunedGrid
from isotherm.analysis.upcoming import Upcoming, upcoming
from isotherm.core.optimizers import has_temperature
from isotherm.core.records import Direction, Outcome, RunSpec
from isotherm.core.run_keys import cell_id
from isotherm.core.run_table import CODES, MISSING, codes_of
from isotherm.core.visible import visible
from isotherm.report.watch.grids import GridBook, WatchedGrid
from isotherm.report.wording import (
    EDGE_FLAGS,
    count_text,
    interval_text,
    is_percent,
    metric_label,
    objective_words,
    power_text,
    rate_symbol,
    rate_text,
    seeds_words,
)
from isotherm.running.heartbeat import Training
from isotherm.sweep.growth import CellOfRuns, growth
from isotherm.sweep.plan import SweepPlan
from isotherm.sweep.protocol import Cell, Estimate, Optimum
from isotherm.sweep.results import StudyResults
from isotherm.sweep.rounds import levels

Plain = dict[str, Any]
# Of a map in its sweep: the budget, and the momentum of heavy ball or the label of another optimiser.
MapName = tuple[str, float | str]

DIGITS = 6
MOST_FAILURES = 50  # kinds of failures that are listed
MOST_TEXT = 2_000  # characters of a failure's message


def study_content(results: StudyResults, book: GridBook) -> Plain:
    """Return what there is to say of a study beside its maps and fits."""
    plan = results.plan
    return {
        "study": visible(plan.name),
        "question": visible(plan.question),
        "counts": results.counts(),
        "maps": [
            map_head(index, key, grids) for index in range(len(plan.sweeps)) for key, grids in maps_of(book, index)
        ],
        "next": [_next_content(one) for one in upcoming(plan.sweeps, results.by_key)],
        "failures": failures(results),
    }


def map_head(index: int, name: MapName, grids: Sequence[WatchedGrid]) -> Plain:
    """Return how a map is called: one sweep at one budget and optimiser."""
    plan, axes, budget = grids[0].plan, grids[0].axes, name[0]
    estimates = " (estimate)" if grids[0].axes.budget == plan.estimate_at else ""
    return {
        "id": map_id(index, name),
        "title": f"{visible(plan.name)}, {budget}{estimates}, {visible(axes.method.label)}",
        "task": visible(plan.task),
        "momentum": axes.momentum,
        "has_temperature": plan.has_temperature,
        "symbol": rate_symbol(plan),
        "ratio": "T" if plan.has_temperature else "ε/B",
        "seeds": seeds_words(plan),
        "test_label": visible(metric_label(plan.metric)),
        "train_label": "training loss + L2",
        "tuned_on": visible(objective_words(plan.objective, plan.metric)),
        "percent": is_percent(plan.metric),
        "test_sign": plan.metric_direction.sign,
        "num_seeds": len(plan.seeds),
        "num_kept": plan.num_kept,
    }


def map_id(index: int, name: MapName) -> str:
    """Return the name by which the page asks for a map."""
    return f"{index}/{name[0]}/{name[1]!r}"


def grid_content(grid: WatchedGrid) -> Plain:
    """Return a grid's cells, one list per column, and its optima; made once."""
    if not grid.content:
        plan, tuned = grid.plan, grid.tuned
        cells = tuned.grid.cells
        rates = [cell.effective_learning_rate for cell in cells]
        grid.content.update(
            batch_size=grid.axes.batch_size,
            num_steps=tuned.grid.num_steps,
            rates=rates,
            labels=[rate_text(rate) for rate in rates],
            states=[state_of(cell).name.lower() for cell in cells],
            done=[int((codes_of(cell.results) != MISSING).sum()) for cell in cells],
            diverged=[cell.num_diverged for cell in cells],
            failed=[cell.num_failed for cell in cells],
            test=_columns(cells, "test_metric", plan.objective, plan.direction),
            train=_columns(cells, "train_objective", "train_objective", Direction.MINIMISE),
            optimum=_optimum_content(plan, tuned, tuned.optimum),
            train_optimum=_optimum_content(plan, tuned, tuned.train_optimum),
            reported=_reported(plan, tuned),
        )
    return grid.content


def running_cells(grids: Sequence[WatchedGrid], training: Training | None) -> list[list[int]]:
    """Return the cells of a map with runs in training: index of the grid, index of the cell, number of runs."""
    found: Counter[tuple[int, int]] = Counter()
    cells = Counter() if training is None else Counter(run.cell for run in training.running.values())
    for row, grid in enumerate(grids if cells else ()):
        for cell, number in cells.items():
            column = grid.column_of(cell)
            if column is not None:
                found[row, column] += number
    return [[row, column, number] for (row, column), number in found.items()]


def training_content(training: Training | None, *, now: float, left: Plain, price: float | None) -> Plain:
    """Return how training goes: speed, time and cost left; what is left counts also where nobody trains."""
    if training is None or not training.is_alive(now):
        return {"is_running": False, "was_stopped": training is not None, **left}
    seconds = training.seconds_left
    return {
        "is_running": True,
        "was_stopped": False,
        "process": training.process,
        "host": visible(training.host),
        "workers": training.num_workers,
        "round": visible(training.round),
        "num_running": len(training.running),
        "told_seconds_ago": max(0.0, now - training.told_at),
        "runs_per_minute": training.runs_per_minute,
        "work_per_second": training.work_per_second,
        "seconds_left": seconds,
        "price_left": None if price is None or seconds is None else price * seconds / 3600,
        **left,
    }


def left_content(results: StudyResults) -> Plain:
    """Return what is left of the runs called for so far: how many, and their examples."""
    left = [(runs.spec, int((codes_of(runs.results) == MISSING).sum())) for runs in _cells_of(results)]
    examples = sum(number * spec.batch_size * spec.num_steps for spec, number in left)
    return {"runs_left": sum(number for _, number in left), "examples_left": examples}


def failures(results: StudyResults) -> list[Plain]:
    """Return the messages of failed runs, the most frequent first, and where they failed."""
    if not results.counts()[str(Outcome.FAILED)]:
        return []
    found: dict[str, list[RunSpec]] = {}
    for runs in _cells_of(results):
        for place in np.flatnonzero(codes_of(runs.results) == CODES[Outcome.FAILED]).tolist():
            result = runs.results[place]
            message = None if result is None else result.error
            found.setdefault(message or "no message", []).append(runs.spec)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return [
        {"message": visible(message[:MOST_TEXT]), "num_runs": len(members), "where": _where(members)}
        for message, members in ordered[:MOST_FAILURES]
    ]


def _cells_of(results: StudyResults) -> list[CellOfRuns]:
    """Return the cells of all runs that are called for so far; one that sweeps share appears once."""
    found: dict[bytes, CellOfRuns] = {}
    for plan in results.plan.sweeps:
        for axes in itertools.chain.from_iterable(levels(plan, results.by_key)):
            for step in growth(plan, axes, results.by_key):
                found |= {cell_id(runs.spec) + repr(runs.seeds).encode(): runs for runs in step.cells}
    return list(found.values())


def optimum_rows(grids: Sequence[WatchedGrid]) -> list[list[str]]:
    """Return the optima of a map as text: B, learning rate, T or ε/B, test metric with their intervals, n, flag."""
    rows = []
    for grid in grids:
        best, reported = grid.tuned.optimum, _reported(grid.plan, grid.tuned)
        flag = EDGE_FLAGS[grid.tuned.edge]
        if best is None or reported is None:
            rows.append([f"{grid.axes.batch_size:,}", "–", "–", "–", "–", flag])
            continue
        rate = interval_text(best.effective_learning_rate, best.interval)
        ratio = power_text(best.effective_learning_rate / grid.axes.batch_size, digits=2)
        rows.append([f"{grid.axes.batch_size:,}", rate, ratio, reported["text"], str(reported["n"]), flag])
    return rows


def maps_of(book: GridBook, index: int) -> list[tuple[MapName, list[WatchedGrid]]]:
    """Return the grids of a sweep by budget and optimiser, batch sizes rising."""
    found: dict[MapName, list[WatchedGrid]] = {}
    for grid in book.grids(index):
        found.setdefault((str(grid.axes.budget), grid.axes.method_name), []).append(grid)
    return [(key, sorted(grids, key=lambda g: g.axes.batch_size)) for key, grids in found.items()]


def _columns(cells: Sequence[Cell], quantity: str, ranking: str, direction: Direction) -> Plain:
    """Return a quantity of cells: over the best k, over all, its interval over all, and both n."""
    found = [estimate_so_far(cell, quantity, ranking=ranking, direction=direction) for cell in cells]
    return {
        "best": [_short(one.mean) for one in found],
        "best_n": [one.num_kept for one in found],
        "all": [_short(one.mean_all) for one in found],
        "low": [_short(one.interval_all.low) for one in found],
        "high": [_short(one.interval_all.high) for one in found],
        "all_n": [len(one.values_all) for one in found],
    }


def _optimum_content(plan: SweepPlan, tuned: TunedGrid, best: Optimum | None) -> Plain | None:
    if best is None:
        return None
    return {
        "rate": best.effective_learning_rate,
        "low": best.interval[0],
        "high": best.interval[1],
        "text": interval_text(best.effective_learning_rate, best.interval),
        "edge": str(best.edge),
        "flag": EDGE_FLAGS[best.edge],
        "is_complete": tuned.grid.is_complete,
        "is_resolved": best.is_resolved or plan.resolution != "adaptive",
    }


def _reported(plan: SweepPlan, tuned: TunedGrid) -> Plain | None:
    """Return the test metric at the optimum, with the 95 % interval over all its runs."""
    if tuned.test is None:
        return None
    test, scale = tuned.test, 100.0 if is_percent(plan.metric) else 1.0
    return {
        "mean": _short(test.mean_all),
        "low": _short(test.interval_all.low),
        "high": _short(test.interval_all.high),
        "n": len(test.values_all),
        "is_confirmed": tuned.is_confirmed,
        "text": _interval_words(test, scale, percent=is_percent(plan.metric)),
    }


def _interval_words(test: Estimate, scale: float, *, percent: bool) -> str:
    """Return a mean with its interval.

    A single run has none.
    """
    interval, digits = test.interval_all, ".1f" if percent else ".4g"
    if not math.isfinite(test.mean_all):
        return "–"
    mean = f"{scale * test.mean_all:{digits}}"
    if len(test.values_all) < 2:
        return f"{mean} [–]"
    return f"{mean} [{scale * interval.low:{digits}}, {scale * interval.high:{digits}}]"


def _next_content(one: Upcoming) -> Plain:
    rates = ", ".join(rate_text(rate) for rate in one.learning_rates[:12])
    more = len(one.learning_rates) - 12
    return {
        "round": one.round,
        "stage": str(one.stage),
        "where": f"{visible(one.sweep)}, {one.axes}",
        "symbol": "ε_eff" if has_temperature(one.axes.method) else "ε",
        "rates": rates + (f" and {more} more" if more > 0 else ""),
        "runs": count_text(one.num_runs, "run"),
        "num_runs": one.num_runs,
        "num_tried": one.num_tried,
        "reason": one.reason,
    }


def _where(specs: Sequence[RunSpec]) -> str:
    """Return the cells of some runs, the first few by name."""
    cells = list(dict.fromkeys((s.batch_size, s.effective_learning_rate, has_temperature(s.method)) for s in specs))
    named = "; ".join(
        f"B = {size:,}, {'ε_eff' if effective else 'ε'} = {rate_text(rate)}" for size, rate, effective in cells[:4]
    )
    return named + (f" and {len(cells) - 4} more cells" if len(cells) > 4 else "")


def _short(value: float) -> float | None:
    """Return a number with the digits that a page can show; None where it is not finite."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
