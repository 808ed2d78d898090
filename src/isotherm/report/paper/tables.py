"""An object's tables: ours beside the published rows, and numbers of the text beside ours."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from isotherm.analysis.series import TunedGrid
from isotherm.report.paper.finding import UNFINISHED, Finding
from isotherm.report.wording import (
    interval_text,
    is_percent,
    metric_label,
    momentum_label,
    power_text,
    rate_text,
    spread_text,
)
from isotherm.studies.paper.definition import PaperObject, Row, Scale
from isotherm.studies.paper.single_cells import SingleCell
from isotherm.sweep.plan import SweepPlan
from isotherm.sweep.protocol import Edge, Estimate

NOTHING = "–"
NOT_RUN = "not run"


@dataclass(frozen=True, kw_only=True, slots=True)
class TextTable:
    """A table as text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def csv(self) -> bytes:
        """Return it as CSV."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue().encode()


def tables(wanted: PaperObject, finding: Finding | None) -> list[TextTable]:
    """Return the tables of an object; without a finding the published numbers alone."""
    found = [] if wanted.published == () and _ours(finding) == [] else [results_table(wanted, finding)]
    if finding is not None and finding.analysis is not None and not _is_same_network(finding) and wanted.published:
        found.append(published_table(wanted))
    return [*found, *([text_table(wanted, finding)] if wanted.text_values else [])]


def results_table(wanted: PaperObject, finding: Finding | None) -> TextTable:
    """Return one row per batch size, budget and optimiser: ours, and the paper's where the network is the same."""
    ours = _ours(finding)
    if not ours:
        return published_table(wanted)
    beside = bool(wanted.published) and finding is not None and _is_same_network(finding)
    published = {(row.momentum, row.batch_size): row for row in wanted.published} if beside else {}
    names = {plan.name for plan, _ in ours}
    lead = _lead_columns(ours, several=len(names) > 1)
    rows = [_row(wanted, plan, tuned, published, lead) for plan, tuned in ours]
    done = {(t.axes.momentum, t.axes.batch_size) for _, t in ours}
    rows += [_not_run(row, lead) for key, row in published.items() if key not in done]
    columns = [*lead, *_labels(wanted, ours[0][0]), "ε_eff (interval)", "T"]
    columns += ["paper, test", "paper, train", "paper, ε_eff"] * beside
    return TextTable(title=f"{wanted.title}: ours", columns=tuple(columns), rows=tuple(map(tuple, rows)))


def published_table(wanted: PaperObject) -> TextTable:
    """Return the published rows."""
    several = len({row.momentum for row in wanted.published}) > 1
    rows = [
        (
            *([momentum_label(row.momentum)] * several),
            f"{row.batch_size:,}",
            str(row.test),
            str(row.train),
            interval_text(row.rate, row.interval),
            power_text(row.temperature, digits=2),
        )
        for row in wanted.published
    ]
    columns = (*(["optimiser"] * several), "B", wanted.metric, wanted.train_label, "ε_eff (interval)", "T")
    return TextTable(title=f"{wanted.title}: published", columns=columns, rows=tuple(rows))


def cells_table(wanted: PaperObject, cells: Sequence[SingleCell]) -> TextTable:
    """Return published rows whose learning rate alone was run, at the paper's full length."""
    rows = [
        (
            f"{cell.row.batch_size:,}",
            rate_text(cell.row.rate),
            _spread_of_all(cell, "test_metric", percent=is_percent(cell.metric)),
            _spread_of_all(cell, wanted.train_quantity, percent=is_percent(cell.metric) and _trains_metric(wanted)),
            str(len(cell.results)),
            str(cell.row.test),
            str(cell.row.train),
            f"{'/'.join(cell.path.parts[-3:])}, commit {cell.commit}",
        )
        for cell in cells
    ]
    columns = ("B", "ε_eff", wanted.metric, wanted.train_label, "n", "paper, test", "paper, train", "rows")
    return TextTable(
        title=f"{wanted.title}: single cells at full length, not a sweep: one learning rate, all seeds",
        columns=columns,
        rows=tuple(rows),
    )


def text_table(wanted: PaperObject, finding: Finding | None) -> TextTable:
    """Return the numbers of text and caption, and ours."""
    analysis = None if finding is None else finding.analysis
    rows = [(value.what, value.value, value.ours(analysis) or NOTHING, value.source) for value in wanted.text_values]
    return TextTable(
        title=f"{wanted.title}: numbers of the text", columns=("", "paper", "ours", "source"), rows=tuple(rows)
    )


def _ours(finding: Finding | None) -> list[tuple[SweepPlan, TunedGrid]]:
    if finding is None or finding.analysis is None:
        return []
    return [(sweep.plan, tuned) for sweep in finding.analysis.sweeps for tuned in sweep.grids]


def _is_same_network(finding: Finding) -> bool:
    """Whether the scale trains the paper's own network, so that rows can stand side by side."""
    return finding.scale in (Scale.GPU, Scale.PAPER)


def _labels(wanted: PaperObject, plan: SweepPlan) -> tuple[str, str]:
    """Return the heads of the test and training columns: what was trained may have another metric than the paper's."""
    train = metric_label(plan.metric, data="training") if _trains_metric(wanted) else wanted.train_label
    return metric_label(plan.metric), train


def _trains_metric(wanted: PaperObject) -> bool:
    """Whether the training column holds the metric, and not a loss."""
    return wanted.train_quantity == "train_metric"


def _lead_columns(ours: list[tuple[SweepPlan, TunedGrid]], *, several: bool) -> tuple[str, ...]:
    """Return the columns that tell rows apart."""
    momenta = {tuned.axes.momentum for _, tuned in ours}
    budgets = {tuned.axes.budget for _, tuned in ours}
    return (*(["sweep"] * several), *(["optimiser"] * (len(momenta) > 1)), "B", *(["budget"] * (len(budgets) > 1)))


def _row(
    wanted: PaperObject,
    plan: SweepPlan,
    tuned: TunedGrid,
    published: dict[tuple[float, int], Row],
    lead: tuple[str, ...],
) -> tuple[str, ...]:
    labels = {
        "sweep": plan.name,
        "optimiser": momentum_label(tuned.axes.momentum),
        "B": f"{tuned.axes.batch_size:,}",
        "budget": str(tuned.axes.budget),
    }
    beside = _beside(published.get((tuned.axes.momentum, tuned.axes.batch_size))) if published else ()
    return (*(labels[name] for name in lead), *_numbers(wanted, plan, tuned), *beside)


def _numbers(wanted: PaperObject, plan: SweepPlan, tuned: TunedGrid) -> tuple[str, str, str, str]:
    best = tuned.optimum
    if best is None or tuned.test is None or tuned.temperature is None:
        return (_why_empty(tuned), NOTHING, NOTHING, NOTHING)
    percent = is_percent(plan.metric)
    train = tuned.grid.cells[best.index].reported(wanted.train_quantity, kept=best.kept)
    failed = sum(cell.num_failed for cell in tuned.grid.cells)
    doubt = f" ({failed} failed)" if failed else f" {UNFINISHED}" if tuned.edge is Edge.INCOMPLETE else ""
    return (
        _spread(tuned.test, percent=percent) + doubt,
        _spread(train, percent=percent and _trains_metric(wanted)),
        interval_text(best.effective_learning_rate, best.interval),
        power_text(tuned.temperature, digits=2),
    )


def _why_empty(tuned: TunedGrid) -> str:
    """Return why a grid has no optimum: its runs failed, are missing, or diverged."""
    if failed := sum(cell.num_failed for cell in tuned.grid.cells):
        return f"failed ({failed} of {sum(len(cell.results) for cell in tuned.grid.cells)} runs)"
    return "diverged" if tuned.edge is Edge.NO_OPTIMUM else NOT_RUN if tuned.grid.num_runs == 0 else "unfinished"


def _spread(estimate: Estimate, *, percent: bool) -> str:
    scale = 100.0 if percent else 1.0
    return spread_text(
        scale * estimate.mean, scale * estimate.standard_deviation, percent=percent, num=estimate.num_kept
    )


def _spread_of_all(cell: SingleCell, quantity: str, *, percent: bool) -> str:
    values = [result.quantity(quantity) for result in cell.results]
    scale = 100.0 if percent else 1.0
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return spread_text(scale * statistics.fmean(values), scale * deviation, percent=percent, num=len(values))


def _beside(row: Row | None) -> tuple[str, str, str]:
    if row is None:
        return (NOTHING, NOTHING, NOTHING)
    return (str(row.test), str(row.train), interval_text(row.rate, row.interval))


def _not_run(row: Row, lead: tuple[str, ...]) -> tuple[str, ...]:
    """Return a published row that was not run."""
    labels = {"optimiser": momentum_label(row.momentum), "B": f"{row.batch_size:,}"}
    return (*(labels.get(name, NOTHING) for name in lead), NOT_RUN, NOTHING, NOTHING, NOTHING, *_beside(row))
