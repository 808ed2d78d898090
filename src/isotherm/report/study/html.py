"""The page of a study: one HTML file with everything in it, which works offline."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isotherm.analysis.analysis import Analysis
from isotherm.core.json import json_text
from isotherm.report.files import write_atomically
from isotherm.report.page import library_versions, page_environment
from isotherm.report.study.figures import LearningRateFigure, StudyFigures, SweepFigure
from isotherm.report.study.interactive import LegendEntry, legend, panels
from isotherm.report.study.methods import protocol_paragraphs
from isotherm.report.study.rounding import rounding_paragraphs
from isotherm.report.study.tables import optima_text
from isotherm.report.wording import TRAIN_OBJECTIVE, count_text, duration_text, objective_words
from isotherm.sweep.protocol import Edge

TEMPLATE = "report.html.jinja"


@dataclass(frozen=True, kw_only=True, slots=True)
class PageFigure:
    """A figure on the page; `panels` are plotly's, empty if there is nothing to draw yet."""

    identifier: str
    title: str
    caption: str
    findings: list[str]
    legend: list[LegendEntry]
    panels: list[dict[str, Any]]


def write_page(
    analysis: Analysis,
    figures: StudyFigures,
    path: str | Path,
    *,
    seconds: float | None = None,
    generated: str | None = None,
) -> Path:
    """Write the page of a study, finished or not, and return its path.

    Args:
        analysis: what to report.
        figures: of the same study.
        path: of the HTML file; its folder is created if needed.
        seconds: how long the study took, if known.
        generated: the date to show; None shows none, so that equal results give equal files.
    """
    page = page_environment().get_template(TEMPLATE).render(**_content(analysis, figures, seconds, generated))
    return write_atomically(Path(path), page.encode())


def _content(analysis: Analysis, records: StudyFigures, seconds: float | None, generated: str | None) -> dict[str, Any]:
    from plotly.offline import get_plotlyjs  # only a page needs it, and not every machine that trains has it

    figures = [_page_figure(record, f"sweep-{index}") for index, record in enumerate(records.sweeps)]
    rate_figures = [_page_figure(record, f"rates-{index}") for index, record in enumerate(records.learning_rates)]
    return {
        "name": analysis.plan.name,
        "question": analysis.plan.question,
        "summary": _summary(analysis, seconds),
        "notices": _notices(analysis, records.sweeps),
        "recommendations": analysis.recommendations,
        "verdicts": analysis.verdicts,
        "figures": figures,
        "rate_figures": rate_figures,
        "pictures": records.pictures,
        "tables": [optima_text(sweep) for sweep in analysis.sweeps],
        "protocol": [
            *protocol_paragraphs(analysis.plan.sweeps),
            *rounding_paragraphs(analysis.results.provenance_of_runs()),
        ],
        "versions": library_versions(),
        "definition": json_text(analysis.plan.to_json()).rstrip(),
        "generated": generated,
        "plotly_js": get_plotlyjs(),
        "plots": {figure.identifier: figure.panels for figure in (*figures, *rate_figures)},
    }


def _summary(analysis: Analysis, seconds: float | None) -> list[str]:
    counts, plans = analysis.counts, analysis.plan.sweeps
    seeds = sorted({len(plan.seeds) for plan in plans})
    tuned = dict.fromkeys(objective_words(plan.objective, plan.metric) for plan in plans)
    parts = [
        f"{counts['finished']:,} runs finished, {counts['diverged']:,} diverged, {counts['failed']:,} failed, "
        f"{counts['missing']:,} missing",
        f"{'task' if len({plan.task for plan in plans}) == 1 else 'tasks'} "
        f"{', '.join(dict.fromkeys(plan.task for plan in plans))}",
        f"{' or '.join(map(str, seeds))} {'seed' if seeds == [1] else 'seeds'} per learning rate",
        f"tuned on {' and '.join(tuned)}",
    ]
    parts += [str(sweep.saving) for sweep in analysis.sweeps if sweep.saving is not None]
    return parts if seconds is None else [*parts, f"took {duration_text(seconds)}"]


def _notices(analysis: Analysis, figures: Sequence[SweepFigure]) -> list[str]:
    """Return warnings about missing runs and grids without an optimum."""
    counts = analysis.counts
    notices = []
    if counts["missing"] or counts["failed"]:
        total = sum(counts.values())
        notices.append(
            f"This study is incomplete: of {count_text(total, 'run')} {counts['missing']:,} are missing and "
            f"{counts['failed']:,} failed. The numbers are those of the runs so far; an optimum may still move. "
            "Run the same study with the same store to continue."
        )
    missing = [str(grid) for figure in figures for grid in figure.missing]
    if missing:
        notices.append(f"No optimum, and so no point in the figures: {'; '.join(missing)}.")
    return notices


def _page_figure(record: SweepFigure | LearningRateFigure, identifier: str) -> PageFigure:
    if isinstance(record, SweepFigure):
        title, caption, empty = record.name, _sweep_caption(record), not record.points
    else:
        title, caption = f"{record.name}, {record.family}", _rate_caption(record)
        empty = not any(series.stable for series in record.series)
    return PageFigure(
        identifier=identifier,
        title=title.replace("_", " "),
        caption=caption,
        findings=record.findings if isinstance(record, SweepFigure) else [],
        legend=legend(record),
        panels=[] if empty else [dataclasses.asdict(panel) for panel in panels(record)],
    )


def _sweep_caption(record: SweepFigure) -> str:
    text = (
        f"{record.setting}. Each point is a grid at the learning rate with the best {record.tuned_on}: mean and "
        f"standard deviation of {record.runs}. On the right, bars span every "
        "learning rate tried within one standard deviation of the optimum"
    )
    if any(series.guide for series in record.series):
        text += f", the dotted line is {record.symbol} ∝ B"
    if any(series.root_guide for series in record.series):
        text += f", the one with dashes and dots {record.symbol} ∝ √B"
    if any(series.law for series in record.series):
        text += (
            ", other lines are broken lines fitted to the optima, dashed where the optima determine no kink; at the "
            "bottom, the batch size at the kink with its 95 % interval"
        )
    if record.tuned_on != TRAIN_OBJECTIVE:
        text += f", hollow markers are the learning rates with the lowest {TRAIN_OBJECTIVE}"
    if any(point.edge in (Edge.LOWER, Edge.UPPER, Edge.BOTH) for point in record.points):
        text += "; arrows mark bars that touch an end of the grid"
    return f"{text}."


def _rate_caption(record: LearningRateFigure) -> str:
    return (
        f"{record.setting}. Mean and standard deviation of {record.runs}; "
        "rings mark optima, broad bands their intervals, crosses learning rates at which too many runs diverged."
    )
