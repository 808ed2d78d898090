"""Tables: rows, CSV files, and the optima as text for terminal and page."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from isotherm.analysis.analysis import Analysis, SweepAnalysis
from isotherm.analysis.series import TunedGrid
from isotherm.report.files import write_atomically
from isotherm.report.study.runs_table import runs_csv
from isotherm.report.study.table_notes import UNRESOLVED_FLAG, is_unresolved, table_notes
from isotherm.report.wording import (
    EDGE_FLAGS,
    end_sign,
    interval_text,
    is_percent,
    metric_label,
    power_text,
    rate_symbol,
    rate_text,
    seeds_words,
    spread_text,
)
from isotherm.sweep.plan import SweepPlan
from isotherm.sweep.protocol import Estimate

Row = dict[str, Any]

MAX_WIDTH = 78
HEADER_WIDTH = 9  # in the terminal; headers wrap so that columns are no wider than their numbers
DIVERGED = "div."  # a column that is left out where no run diverged
OPTIMIZER, OPTIMIZER_WIDTH = "optimizer", 20  # a column whose text wraps
_NOTHING = "–"
RUNS_FILE = "runs.csv"


# -- plain rows and CSV ---------------------------------------------------------------------------------------------


def optima_rows(sweep: SweepAnalysis) -> list[Row]:
    """Return one row per grid of a sweep, metrics unscaled; quantities are None if the grid has no optimum."""
    return [_optimum_row(sweep.plan, tuned) for tuned in sweep.grids]


def write_csv(analysis: Analysis, folder: str | Path) -> list[Path]:
    """Write `optima.csv` and `runs.csv` and return them; a missing quantity is an empty field."""
    return [write_optima(analysis, folder), write_runs(analysis, folder)]


def write_optima(analysis: Analysis, folder: str | Path) -> Path:
    """Write `optima.csv` and return it."""
    optima = [row for sweep in analysis.sweeps for row in optima_rows(sweep)]
    columns = list(dict.fromkeys(column for row in optima for column in row))
    content = _csv([[row.get(column) for column in columns] for row in optima], columns)
    return write_atomically(Path(folder) / "optima.csv", content)


def write_runs(analysis: Analysis, folder: str | Path) -> Path:
    """Write `runs.csv` and return it."""
    return write_atomically(Path(folder) / RUNS_FILE, runs_csv(analysis.results))


def _optimum_row(plan: SweepPlan, tuned: TunedGrid) -> Row:
    best, train_best, test, train_loss = tuned.optimum, tuned.train_optimum, tuned.test, tuned.train_loss
    axes, grid, plain_best, bias = tuned.axes, tuned.grid, tuned.train_loss_optimum, tuned.selection_bias
    row = {
        "sweep": plan.name,
        "batch_size": axes.batch_size,
        "budget": f"{axes.budget.amount:g} {axes.budget.unit}",
        "num_steps": grid.num_steps,
        "optimizer": axes.method.label,
        "momentum": axes.momentum if plan.has_temperature else None,
        "optimal_effective_learning_rate": tuned.rate,
        "interval_low": None if best is None else best.interval[0],
        "interval_high": None if best is None else best.interval[1],
        "at_edge": None if best is None else best.at_edge,
        "edge": str(tuned.edge),
        "temperature": tuned.temperature,
        "rate_over_batch_size": tuned.rate_over(1.0),
        "rate_over_root_batch_size": tuned.rate_over(0.5),
        "learning_rate": tuned.learning_rate,
        "metric": plan.metric,
        "test_metric_mean": None if test is None else test.mean,
        "test_metric_standard_deviation": None if test is None else test.standard_deviation,
        "is_confirmed": tuned.is_confirmed,
        "num_kept": plan.num_kept if test is None else test.num_kept,
        "num_seeds": len(plan.seeds) if test is None else test.num_seeds,
        "num_diverged_seeds": None if test is None else test.num_diverged,
        "test_metric_mean_all": None if test is None else test.mean_all,
        "test_metric_standard_deviation_all": None if test is None else test.standard_deviation_all,
        "test_metric_t_interval_low": None if test is None else test.interval_all.low,
        "test_metric_t_interval_high": None if test is None else test.interval_all.high,
        "train_loss_mean": None if train_loss is None else train_loss.mean,
        "train_loss_standard_deviation": None if train_loss is None else train_loss.standard_deviation,
        "train_optimal_effective_learning_rate": None if train_best is None else train_best.effective_learning_rate,
        "train_loss_optimal_effective_learning_rate": None
        if plain_best is None
        else plain_best.effective_learning_rate,
        "selection_bias": None if bias is None else bias.difference,
        "selection_bias_standard_error": None if bias is None else bias.standard_error,
        "ratio": None if best is None else best.ratio,
        "unresolved_gain": None if best is None else best.unresolved_gain,
        "error_of_mean": None if best is None else best.error,
        "is_resolved": None if best is None else best.is_resolved,
        "num_diverged": grid.num_diverged,
        "num_runs": grid.num_runs,
    }
    return row if plan.has_temperature else _in_bare_rates(row)


def _in_bare_rates(row: Row) -> Row:
    """Return a row of an optimiser that has neither an effective learning rate nor a temperature."""
    return {name.replace("effective_", ""): value for name, value in row.items() if name != "temperature"}


def _csv(rows: Sequence[Sequence[Any]], columns: Sequence[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue().encode()


# -- the optima as people read them ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimaTable:
    """A sweep's optima as text; `notes` explain its flags."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def optima_text(sweep: SweepAnalysis) -> OptimaTable:
    """Return a sweep's optima as text, one row per grid."""
    plan, grids = sweep.plan, sweep.grids
    varying: list[tuple[str, list[str]]] = []
    if len(plan.budgets) > 1:
        varying.append(("budget", [str(tuned.axes.budget) for tuned in grids]))
    if len(plan.momenta) > 1:
        varying.append(("m", [f"{tuned.axes.momentum:g}" for tuned in grids]))
    if len(plan.optimizers) > 1:
        varying.append((OPTIMIZER, [tuned.axes.method.label for tuned in grids]))
    columns = (*(name for name, _ in varying), *_columns(plan))
    rows = [(*(values[index] for _, values in varying), *_text_row(plan, tuned)) for index, tuned in enumerate(grids)]
    shown = [k for k, name in enumerate(columns) if name != DIVERGED or any(row[k] for row in rows)]
    return OptimaTable(
        title=_title(plan),
        columns=tuple(columns[k] for k in shown),
        rows=tuple(tuple(row[k] for k in shown) for row in rows),
        notes=table_notes(plan, grids),
    )


def optima_table(sweep: SweepAnalysis) -> Table:
    """Return a sweep's optima for the terminal; it fits 80 columns if budget and optimiser do not vary."""
    content = optima_text(sweep)
    table = Table(
        title=escape(content.title),
        title_justify="left",
        title_style="bold",
        caption=escape("\n".join(content.notes)) or None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1 if _width(content) <= MAX_WIDTH else 0, 0, 0),
        min_width=min(len(content.title), MAX_WIDTH),  # keeps the title on one line
    )
    for name in content.columns:
        header = "\n".join(textwrap.wrap(name, HEADER_WIDTH, break_long_words=False))
        is_text = name in ("", "budget", OPTIMIZER)
        table.add_column(
            escape(header),
            justify="left" if is_text else "right",
            no_wrap=name != OPTIMIZER,
            max_width=OPTIMIZER_WIDTH if name == OPTIMIZER else None,
        )
    for row in content.rows:
        table.add_row(*map(escape, row))
    return table


def _width(content: OptimaTable) -> int:
    """Return how wide a table is with two spaces between columns; headers wrap."""
    return sum(max(2, *(len(row[k]) for row in content.rows)) + 2 for k in range(len(content.columns)))


def _title(plan: SweepPlan) -> str:
    parts = [plan.name, plan.task]
    if len(plan.budgets) == 1:
        parts.append(str(plan.budgets[0]))
    if len(plan.methods) == 1:
        parts.append(plan.methods[0].label)
    return f"{', '.join(parts)}: {seeds_words(plan)}"


def _columns(plan: SweepPlan) -> tuple[str, ...]:
    test = metric_label(plan.metric).replace(" (%)", "\N{NO-BREAK SPACE}%")
    beside = ["bias"] if plan.num_confirm else ["all seeds"] if plan.num_kept < len(plan.seeds) else []
    rate, ratios = rate_symbol(plan), ("T",) if plan.has_temperature else ("ε/B", "ε/√B")
    return ("B", f"{rate} (interval)", *ratios, test, *beside, "train loss", f"train {rate}", DIVERGED, "")


def _text_row(plan: SweepPlan, tuned: TunedGrid) -> tuple[str, ...]:
    batch_size, flag = f"{tuned.axes.batch_size:,}", EDGE_FLAGS[tuned.edge] + UNRESOLVED_FLAG * is_unresolved(tuned)
    diverged = str(tuned.grid.num_diverged or "")
    best, train_best, test, train_loss = tuned.optimum, tuned.train_optimum, tuned.test, tuned.train_loss
    if best is None or train_best is None or test is None or train_loss is None:
        return (batch_size, *[_NOTHING] * (len(_columns(plan)) - 3), diverged, flag)
    percent = is_percent(plan.metric)
    scale = 100.0 if percent else 1.0
    return (
        batch_size,
        interval_text(best.effective_learning_rate, best.interval),
        *(power_text(value, digits=2) for value in _ratios(tuned) if value is not None),
        spread_text(scale * test.mean, scale * test.standard_deviation, percent=percent, num=test.num_kept),
        *_beside(plan, tuned, test, scale=scale),
        f"{train_loss.mean:.3g}",
        end_sign(train_best, tuned.grid) + rate_text(train_best.effective_learning_rate),
        diverged,
        flag,
    )


def _ratios(tuned: TunedGrid) -> tuple[float | None, ...]:
    """Return T = ε_eff / B of SGD; ε / B and ε / √B of others."""
    return tuned.temperature, tuned.rate_over(1.0), tuned.rate_over(0.5)


def _beside(plan: SweepPlan, tuned: TunedGrid, test: Estimate, *, scale: float) -> list[str]:
    """Return what stands beside the reported mean: the selection bias, or all seeds where not all are kept."""
    percent = is_percent(plan.metric)
    if plan.num_confirm:
        bias = tuned.selection_bias
        if bias is None:
            return [_NOTHING]
        text = spread_text(scale * bias.difference, scale * bias.standard_error, percent=percent)
        return [text if text.startswith("-") else f"+{text}"]
    if plan.num_kept == len(plan.seeds):
        return []
    everyone = spread_text(
        scale * test.mean_all, scale * test.standard_deviation_all, percent=percent, num=len(test.values_all)
    )
    return [f"{everyone}, {test.num_diverged} div." if test.num_diverged else everyone]
