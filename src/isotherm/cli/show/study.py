"""The results of a study in the terminal, for `quickstart`, `run` and `report`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from isotherm.analysis.analysis import Analysis, analyse
from isotherm.analysis.recommend import Recommendation
from isotherm.analysis.verdicts import Verdict
from isotherm.cli.common import EXIT_FAILED_RUNS, errors, escaped
from isotherm.cli.show.code import print_code
from isotherm.report.study.folder import write_report
from isotherm.report.study.summary import study_summary
from isotherm.report.study.tables import optima_table
from isotherm.sweep.results import StudyResults


def present(
    results: StudyResults, folder: Path, *, console: Console, run: Sequence[str], start: float | None = None
) -> dict[str, Any]:
    """Write every file of a report, print tables, verdicts and what was written; return the summary.

    Args:
        results: of the study.
        folder: of the files; it is made.
        console: where to print.
        run: the command that runs the study, word by word.
        start: when the command began, by `time.perf_counter`, where its duration is to be told.
    """
    analysis = analyse(results, run=run)
    files = write_report(analysis, folder, seconds=_since(start))
    print_results(analysis, console)
    console.print(f"\n[bold]Written to[/] {escaped(str(folder))}/", highlight=False)
    console.print(f"  {files.page.name}: everything on one page, works offline")
    formats = " and ".join(sorted({f.suffix.lstrip(".").upper() for f in files.figures}, reverse=True))
    figures = ", ".join(sorted({f.stem for f in files.figures}))
    console.print(f"  figures ({formats}): {escaped(figures)}", highlight=False)
    numbers = sorted(file.name for file in (*files.tables, files.summary))
    console.print(f"  {escaped(', '.join(numbers))}: the numbers", highlight=False)
    seconds = _since(start)
    if seconds is not None:
        console.print(f"  {escaped(results.plan.name)}.sqlite: every run; this took {seconds:.0f} s", highlight=False)
    return study_summary(analysis, seconds=seconds)


def print_results(analysis: Analysis, console: Console) -> None:
    """Print what to use, the optima of every sweep, then the verdicts."""
    print_recommendations(analysis.recommendations, console)
    for sweep in analysis.sweeps:
        console.print()
        console.print(optima_table(sweep))
        for finding in (*sweep.budgets, *([] if sweep.saving is None else [sweep.saving])):
            console.print(escaped(f"{finding}."), highlight=False)
    print_verdicts(analysis.verdicts, console)


def print_recommendations(advice: Sequence[Recommendation], console: Console) -> None:
    """Print what to use, with the lines of PyTorch to paste, and why."""
    if advice:
        console.print("\n[bold]What to use[/]")
    for place, one in enumerate(advice):
        if place:
            console.print()
        console.print(f"[bold green]{escaped(one.answer)}[/]" if one.is_determined else escaped(one.answer))
        console.print(escaped(one.evidence), highlight=False)
        print_code(one.code, console)


def print_verdicts(verdicts: Sequence[Verdict], console: Console) -> None:
    """Print verdicts with their evidence, and what would decide the open ones."""
    if verdicts:
        console.print("\n[bold]Verdicts[/], computed from these runs")
    lines = Table.grid(padding=(0, 2))
    for verdict in verdicts:
        colour = {True: "green", False: "red", None: "bright_black"}[verdict.holds]
        evidence = escaped("; ".join(filter(None, (verdict.evidence, verdict.p_words))))
        told = f"{escaped(verdict.claim)}\n[dim]{evidence}[/]{_remedy_lines(verdict)}"
        lines.add_row(f"[{colour}]{verdict.mark} {verdict.state}[/]", told)
    console.print(lines, highlight=False)


def _remedy_lines(verdict: Verdict) -> str:
    """Return what would decide an open verdict, the command on a line of its own."""
    if not verdict.remedy:
        return ""
    command = f":\n{escaped(verdict.command)}" if verdict.command else ""
    return f"\nto decide it, {escaped(verdict.remedy)}{command}"


def exit_if_failed(results: StudyResults) -> None:
    """End the command with its own exit code where runs failed."""
    if failed := results.counts()["failed"]:
        raise failed_runs(failed, results.errors())


def failed_runs(num: int, reasons: set[str]) -> typer.Exit:
    """Say that runs failed and why, and return what ends the command."""
    runs = "run" if num == 1 else "runs"
    retried = "it is" if num == 1 else "they are"
    errors().print(f"[bold red]{num} {runs} failed[/]; {retried} tried again next time: {_listed(reasons)}")
    return typer.Exit(EXIT_FAILED_RUNS)


def _listed(reasons: set[str]) -> str:
    return escaped("; ".join(sorted(reasons)))


def _since(start: float | None) -> float | None:
    return None if start is None else time.perf_counter() - start
