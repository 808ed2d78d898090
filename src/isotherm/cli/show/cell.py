"""The results of a cell as tables, sentences and JSON."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isotherm.cli.cell import CellResults
from isotherm.cli.common import escaped
from isotherm.cli.show.numbers import number_text
from isotherm.core.optimizers import optimizer_json
from isotherm.core.rates import tidy
from isotherm.core.records import Outcome, RunResult
from isotherm.core.statistics import standard_deviation
from isotherm.report.wording import count_text, is_percent, metric_label
from isotherm.running.store import StoredRun
from isotherm.sweep.plan import SweepPlan

HEADER_WIDTH = 9  # headers wrap so that columns stay as narrow as their numbers


def print_cell(results: CellResults, console: Console) -> None:
    """Print the tables, then a sentence for every run that did not finish."""
    console.print()
    for table in cell_tables(results, width=console.width):
        console.print(table)
    for sentence in run_sentences(results):
        console.print(escaped(sentence), highlight=False)


def stored_sentence(seeds: Sequence[int], store: Path) -> str:
    """Say which runs are not repeated.

    >>> stored_sentence([0, 1], Path("mine.sqlite"))
    'seeds 0, 1: stored in mine.sqlite, not run again'
    """
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}: stored in {store}, not run again"


def run_sentences(results: CellResults) -> list[str]:
    """Return a sentence for every run that did not finish."""
    sentences = []
    for run in results.runs:
        if run.result.outcome is Outcome.DIVERGED:
            sentences.append(f"seed {run.spec.seed} diverged: {_divergence(run)}; try a smaller learning rate")
        elif run.result.outcome is Outcome.FAILED:
            sentences.append(f"seed {run.spec.seed} failed: {run.result.error}")
    return sentences


def _divergence(run: StoredRun) -> str:
    step = run.result.divergence_step or 0
    if step < run.spec.num_steps:
        return f"its loss was not finite after {count_text(step, 'update')}"
    return "its final loss is not finite, or far above that of the untrained network"


@dataclass(frozen=True, slots=True)
class _Column:
    quantity: str
    header: str
    percent: bool = False

    def text(self, value: float | None) -> str:
        if value is None:
            return "–"
        return f"{100 * value:.2f}" if self.percent and math.isfinite(value) else number_text(value)

    def spread(self, values: Sequence[float]) -> str:
        deviation = standard_deviation(values) * (100 if self.percent else 1)
        return f"± {deviation:.2g}" if math.isfinite(deviation) else "–"


def _columns(plan: SweepPlan) -> list[_Column]:
    percent = is_percent(plan.metric)
    test, train = (metric_label(plan.metric, data=data).replace(" (%)", " %") for data in ("test", "train"))
    penalty = [_Column("l2_penalty", "L2 penalty"), _Column("train_objective", "train loss + L2")] if plan.l2 else []
    return [
        _Column("test_metric", test, percent),
        _Column("test_loss", "test loss"),
        _Column("train_metric", train, percent),
        _Column("train_loss", "train loss"),
        *penalty,
        _Column("train_loss_running", "running train loss"),
        _Column("clipped_fraction", "clipped %", True),
        _Column("test_metric_running", f"{test} by running averages", percent),
    ]


def cell_tables(results: CellResults, *, width: int) -> list[Table]:
    """Return tables with a row per seed, mean and standard deviation; none if no run finished.

    Columns that do not fit side by side go into further tables.

    Args:
        results: runs of the cell.
        width: width of the terminal.
    """
    finished = [run.result for run in results.runs if run.result.outcome is Outcome.FINISHED]
    columns = [c for c in _columns(results.cell.plan) if any(getattr(r, c.quantity) is not None for r in finished)]
    texts = [_column_text(column, results, finished) for column in columns]
    tables: list[list[list[str]]] = []
    room = 0
    for text in texts:
        needed = 2 + max(len(line) for cell in text for line in cell.split("\n"))
        if needed > room:
            tables.append([_seed_column(results, finished)])
            room = width - 8
        tables[-1].append(text)
        room -= needed
    shown = [_table(table, num_seeds=len(results.runs)) for table in tables]
    if shown and 1 < len(finished) < len(results.runs):
        shown[-1].caption = f"mean and sd of the {len(finished)} of {len(results.runs)} runs that finished"
    return shown


def _seed_column(results: CellResults, finished: Sequence[RunResult]) -> list[str]:
    seeds = [str(run.spec.seed) for run in results.runs]
    return ["seed", *seeds, *(["mean", "sd"] if len(finished) > 1 else [])]


def _column_text(column: _Column, results: CellResults, finished: Sequence[RunResult]) -> list[str]:
    """Return header and values of a column as text."""
    header = "\n".join(textwrap.wrap(column.header, HEADER_WIDTH, break_long_words=False))
    texts = [header, *(column.text(getattr(run.result, column.quantity)) for run in results.runs)]
    values = _values(finished, column.quantity)
    return [*texts, column.text(math.fsum(values) / len(values)), column.spread(values)] if len(finished) > 1 else texts


def _table(columns: Sequence[Sequence[str]], *, num_seeds: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), caption_justify="left")
    for column in columns:
        table.add_column(escape(column[0]), justify="right", no_wrap=True)
    for place in range(1, len(columns[0])):
        table.add_row(*(escape(column[place]) for column in columns), end_section=place == num_seeds)
    return table


def _values(results: Sequence[RunResult], quantity: str) -> list[float]:
    return [float(value) for result in results if (value := getattr(result, quantity)) is not None]


def cell_summary(results: CellResults, *, store: Path, seconds: float) -> dict[str, Any]:
    """Return the cell as JSON values: the setting, and spec and result of every run."""
    cell, spec = results.cell, results.cell.specs[0]
    finished = [run.result for run in results.runs if run.result.outcome is Outcome.FINISHED]
    quantities = {c.quantity: _values(finished, c.quantity) for c in _columns(cell.plan)}
    return {
        "study": cell.study.name,
        "task": spec.task,
        "metric": cell.plan.metric,
        "batch_size": spec.batch_size,
        "optimizer": optimizer_json(spec.method),
        "effective_learning_rate": spec.effective_learning_rate if cell.plan.has_temperature else None,
        "learning_rate": tidy(spec.learning_rate),
        "temperature": cell.temperature,
        "num_steps": spec.num_steps,
        "num_epochs": cell.num_epochs,
        "precision": spec.precision,
        "device": cell.device,
        "num_parameters": cell.num_parameters,
        "notes": list(cell.notes),
        "store": str(store),
        "seconds": seconds,
        "counts": {str(outcome): results.count(outcome) for outcome in Outcome},
        "summary": {
            name: {"mean": math.fsum(v) / len(v), "standard_deviation": standard_deviation(v), "num_runs": len(v)}
            for name, v in quantities.items()
            if v
        },
        "runs": [
            {
                "key": run.spec.key,
                "was_stored": run.spec.key in results.known,
                "spec": run.spec.to_json(),
                "result": run.result.to_json(),
                "provenance": run.provenance,
            }
            for run in results.runs
        ],
    }
