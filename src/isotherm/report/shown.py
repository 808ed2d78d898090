"""Tables, frames, figures and pages of results, analyses and diagnoses, as their methods return them."""

from __future__ import annotations

import dataclasses
import html
import io
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isotherm.analysis.analysis import Analysis, SweepAnalysis, analyse
from isotherm.analysis.series import tuned_grids
from isotherm.core.one_screen import LINES, columns_text, one_screen
from isotherm.core.shown_table import ShownTable, ShownTables
from isotherm.diagnose.diagnosis import Diagnosis
from isotherm.errors import UserError, nearest
from isotherm.report.axes import RC
from isotherm.report.diagnosis.figures import draw_map, map_figure
from isotherm.report.diagnosis.page import write_diagnosis
from isotherm.report.diagnosis.text import answer_sentences, choices_table, current_sentence, headline
from isotherm.report.study.draw import draw, figure_of, num_panels
from isotherm.report.study.figure_data import study_figures
from isotherm.report.study.figures import SweepFigure
from isotherm.report.study.folder import ReportFiles, write_report
from isotherm.report.study.runs_table import runs_rows
from isotherm.report.study.tables import optima_rows, optima_text
from isotherm.sweep.results import Results, StudyResults

Findings = Results | StudyResults | Analysis
_DOTS_PER_INCH_ON_SCREEN = 100
_OPEN = "not determined: "
_NO_PANDAS = "pandas is not installed; install it with pip install 'isotherm[pandas]', or use .table().rows"


def table(findings: Findings | Diagnosis) -> ShownTables:
    """Return the optima of every sweep, or what a diagnosis recommends at every batch size."""
    if isinstance(findings, Diagnosis):
        return ShownTables(parts=(_choices(findings),))
    return ShownTables(parts=tuple(_optima(sweep) for sweep in _sweeps(findings)))


def to_pandas(findings: Findings | Diagnosis, rows: str | None = None) -> Any:
    """Return the runs, the optima or the choices as a frame."""
    known = ("choices",) if isinstance(findings, Diagnosis) else ("runs", "optima")
    wanted = known[0] if rows is None else rows
    if wanted not in known:
        raise UserError(f"rows={rows!r} is unknown here; {nearest(str(rows), known)}")
    try:
        import pandas
    except ImportError as error:
        raise UserError(_NO_PANDAS) from error
    if wanted == "runs":
        assert not isinstance(findings, Diagnosis)
        return pandas.DataFrame(runs_rows(_study(findings)))
    return pandas.DataFrame(table(findings).rows)


def plot(findings: Findings | Diagnosis, axes: Any = None, *, sweep: str | None = None) -> Figure:
    """Draw the optima against the batch size, or the map of a diagnosis."""
    _let_notebooks_show_figures()
    with matplotlib.rc_context(RC):
        if isinstance(findings, Diagnosis):
            return _plot_diagnosis(findings, axes)
        record = _figure(findings, sweep)
        if axes is None:
            return figure_of(record)
        given = _axes(axes, num_panels(record))
        draw(record, given)
        return _figure_of(given[0])


def report(findings: Findings | Diagnosis, path: str | Path) -> ReportFiles | Path:
    """Write the report of a study into a folder, or the page of a diagnosis into a file."""
    if not isinstance(findings, Diagnosis):
        return write_report(findings, path)
    if Path(path).is_dir() or not Path(path).suffix:
        raise UserError(f"report({str(path)!r}): the report of a diagnosis is one page; name a file, e.g. report.html")
    return write_diagnosis(findings, path)


def as_html(findings: Findings | Diagnosis) -> str:
    """Return what a notebook shows: sentences, then tables."""
    shown = ""
    if isinstance(findings, Diagnosis):
        shown = _paragraphs(diagnosis_lines(findings)) + _code(findings.choice_code)
    elif isinstance(findings, Analysis):
        answers = (_paragraphs([one.words]) + _code(one.code) for one in findings.recommendations)
        shown = "".join(answers) + _paragraphs(map(str, findings.verdicts))
    return f"<div>{shown}{table(findings)._repr_html_()}</div>"


def _paragraphs(sentences: Iterable[str]) -> str:
    return "".join(f"<p>{html.escape(sentence)}</p>".replace("\n", "<br>") for sentence in sentences)


def _code(lines: Sequence[str]) -> str:
    """Return lines to paste, as they are; a notebook's own style would set them like words."""
    style = "font-family: monospace; margin: 0 0 1em 0"
    return f'<pre style="{style}">{html.escape(chr(10).join(lines))}</pre>' if lines else ""


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """Return the answer of a diagnosis, its lines to paste and its choices for a console; what fits on one screen."""
    names = ("B", "momentum", "effective learning rate", "interval", "learning rate", "updates", "")
    rows = [
        (
            f"{row['batch_size']:,}",
            f"{row['momentum']:g}",
            f"{row['effective_learning_rate']:.3g}",
            f"[{row['interval_low']:.3g}, {row['interval_high']:.3g}]",
            f"{row['learning_rate']:.3g}",
            f"{row['num_steps']:,}",
            "<- use" if row["is_recommended"] else "",
        )
        for row in _choices(diagnosis).values
    ]
    answer = [line for line in diagnosis_lines(diagnosis) if not line.startswith(_OPEN)]
    missing = [line for line in diagnosis_lines(diagnosis) if line.startswith(_OPEN)]
    first = one_screen(answer)
    begun = [first, *diagnosis.choice_code]  # what is to be pasted is not wrapped
    left = max(1, LINES - sum(part.count("\n") + 1 for part in begun))
    rest = one_screen([*(columns_text(names, rows) if rows else []), *missing], most=left)
    return "\n".join(filter(None, [*begun, rest]))


def diagnosis_lines(diagnosis: Diagnosis) -> list[str]:
    """Return the answer of a diagnosis in sentences, with what could not be determined."""
    now = current_sentence(diagnosis)
    return [
        f"{diagnosis.task}: {headline(diagnosis)}",
        *answer_sentences(diagnosis),
        *([] if now is None else [now]),
        *(f"{_OPEN}{sentence}" for sentence in diagnosis.missing),
    ]


# -- tables ---------------------------------------------------------------------------------------------------------


def _study(findings: Findings) -> StudyResults:
    if isinstance(findings, Analysis):
        return findings.results
    return findings.as_study() if isinstance(findings, Results) else findings


def _sweeps(findings: Findings) -> Sequence[SweepAnalysis]:
    """Return the sweeps with their optima; of results alone, nothing is fitted to them."""
    if isinstance(findings, Analysis):
        return findings.sweeps
    sweeps = _study(findings).sweeps
    return [SweepAnalysis(plan=sweep.plan, grids=tuned_grids(sweep), series=()) for sweep in sweeps]


def _optima(sweep: SweepAnalysis) -> ShownTable:
    text = optima_text(sweep)
    return ShownTable(
        title=text.title, columns=text.columns, cells=text.rows, notes=text.notes, values=tuple(optima_rows(sweep))
    )


def _choices(diagnosis: Diagnosis) -> ShownTable:
    text = choices_table(diagnosis)
    values = [
        {
            "batch_size": choice.batch_size,
            "regime": choice.regime,
            "momentum": momentum,
            "effective_learning_rate": rate.estimate,
            "interval_low": rate.low,
            "interval_high": rate.high,
            "learning_rate": choice.learning_rate(momentum),
            "num_steps": choice.num_steps,
            "is_recommended": diagnosis.recommended.get(momentum) == choice.batch_size,
        }
        for choice in diagnosis.choices
        for momentum, rate in choice.rates.items()
    ]
    return ShownTable(title=text.title, columns=text.columns, cells=text.rows, values=tuple(values))


# -- figures --------------------------------------------------------------------------------------------------------


def _figure(findings: Findings, name: str | None) -> SweepFigure:
    """Return the figure that shows a sweep, by default the first that has points."""
    analysis = findings if isinstance(findings, Analysis) else analyse(findings)
    names = [plan.name for plan in analysis.plan.sweeps]
    if name is not None and name not in names:
        raise UserError(f"there is no sweep {name!r} in these results; {nearest(name, names)}")
    chosen = [s for s in analysis.sweeps if name in (None, s.plan.name)]
    records = study_figures(dataclasses.replace(analysis, sweeps=tuple(chosen))).sweeps
    record = next((record for record in records if record.points), None)
    if record is None:
        raise UserError("no batch size has an optimum yet, so there is nothing to draw; finish the sweep first")
    return record


def _plot_diagnosis(diagnosis: Diagnosis, axes: Axes | None) -> Figure:
    if axes is None:
        return map_figure(diagnosis)
    (own,) = _axes(axes, 1)
    draw_map(diagnosis, own)
    return _figure_of(own)


def _axes(axes: Any, number: int) -> list[Axes]:
    given = list(getattr(axes, "flat", axes if isinstance(axes, Sequence) else [axes]))
    if len(given) != number or not all(isinstance(one, Axes) for one in given):
        wanted = "axes" if number == 1 else f"{number} axes"
        raise UserError(f"the figure takes {wanted}, e.g. plt.subplots(1, {number})[1]; {len(given)} were given")
    return given


def _figure_of(axes: Axes) -> Figure:
    found = axes.get_figure(root=True)
    assert found is not None
    return found


def _let_notebooks_show_figures() -> None:
    """Inside IPython, say how to show a figure, unless a backend of matplotlib has done so."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        return
    formatter = shell.display_formatter.formatters["image/png"]
    try:
        formatter.lookup_by_type(Figure)
    except KeyError:
        formatter.for_type(Figure, _png)


def _png(figure: Figure) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=_DOTS_PER_INCH_ON_SCREEN)
    return content.getvalue()
