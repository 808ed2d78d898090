"""The report of a study: a folder with its page, figures, tables and summary."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from isotherm.analysis.analysis import Analysis, analyse
from isotherm.errors import UserError
from isotherm.report.files import write_json
from isotherm.report.study.draw import save_figures
from isotherm.report.study.figure_data import study_figures
from isotherm.report.study.html import write_page
from isotherm.report.study.pictures import write_picture_tables
from isotherm.report.study.summary import study_summary
from isotherm.report.study.tables import RUNS_FILE, write_optima, write_runs
from isotherm.sweep.results import Results, StudyResults


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportFiles:
    """The files of a report."""

    page: Path
    figures: tuple[Path, ...]
    tables: tuple[Path, ...]
    summary: Path


def write_report(
    findings: Analysis | Results | StudyResults, folder: str | Path, *, seconds: float | None = None
) -> ReportFiles:
    """Write the report of a study or sweep, finished or not: `report.html`, figures (PNG, PDF), CSV and JSON.

    Args:
        findings: an analysis, or results to analyse.
        folder: created if needed; files of the same names are replaced.
        seconds: how long the study took, if known.
    """
    analysis = findings if isinstance(findings, Analysis) else analyse(findings)
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the folder {path} cannot be created: {error.strerror}; name another folder") from error
    figures = study_figures(analysis)
    written = save_figures(figures, path, meanwhile=functools.partial(write_runs, analysis, path))
    tables = (write_optima(analysis, path), path / RUNS_FILE, *write_picture_tables(figures.pictures, path))
    summary = write_json(path / "summary.json", study_summary(analysis, seconds=seconds))
    # Last, so that a new page never stands beside the figures and tables of an earlier report.
    page = write_page(analysis, figures, path / "report.html", seconds=seconds)
    return ReportFiles(page=page, figures=tuple(written), tables=tables, summary=summary)
