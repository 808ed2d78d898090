"""The page of the paper: all its figures and tables, with what was found of each, those not run included."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from isotherm.analysis.verdicts import Verdict
from isotherm.report.files import write_atomically
from isotherm.report.page import library_versions, page_environment
from isotherm.report.paper.draw import rendered
from isotherm.report.paper.finding import Finding, find
from isotherm.report.paper.tables import TextTable, cells_table, tables
from isotherm.studies.paper.definition import Form, PaperObject, Scale
from isotherm.studies.paper.judged import command
from isotherm.studies.paper.registry import objects
from isotherm.studies.paper.single_cells import SingleCell, cells_words

TEMPLATE = "paper.html.jinja"
NOT_RUN = "not run"
# Where several scales were run, the page shows the one nearest to the paper's.
NEAREST_FIRST = (Scale.PAPER, Scale.GPU, Scale.LAPTOP, Scale.SMOKE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """An object on the page; its states are those of every scale that has rows."""

    wanted: PaperObject
    states: tuple[str, ...]
    caption: str
    origin: str
    verdicts: tuple[tuple[Verdict, str], ...]
    tables: tuple[TextTable, ...]
    images: tuple[str, ...]
    command: str


def findings_by_object(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """Return what was found of every object, one finding per scale, the nearest to the paper's first.

    Of several at one scale the first is taken. Figure 4 needs no runs.
    """
    found: dict[str, dict[Scale, Finding]] = {}
    for finding in sorted(findings, key=lambda one: NEAREST_FIRST.index(one.scale)):
        found.setdefault(finding.wanted.identifier, {}).setdefault(finding.scale, finding)
    computed = {o.identifier: [find(o, Scale.PAPER, None)] for o in objects().values() if o.form is Form.SCHEDULE}
    return {**{name: list(by_scale.values()) for name, by_scale in found.items()}, **computed}


def nearest_findings(findings: Iterable[Finding]) -> dict[str, Finding]:
    """Return one finding per object, at the scale nearest to the paper's."""
    return {name: found[0] for name, found in findings_by_object(findings).items()}


def write_paper_page(
    findings: Iterable[Finding], path: Path, *, scale: Scale = Scale.LAPTOP, cells: Sequence[SingleCell] = ()
) -> Path:
    """Write the page and return its path.

    Args:
        findings: of any objects, at any scales; shown is the one nearest to the paper's, the contents name all.
        path: of the HTML file.
        scale: of the commands that run what has not been run.
        cells: runs of published rows that belong to no sweep.
    """
    found = findings_by_object(findings)
    sections = [
        _section(wanted, found.get(wanted.identifier, []), scale, [cell for cell in cells if cell.wanted == wanted])
        for wanted in objects().values()
    ]
    content = {"sections": sections, "versions": library_versions(), "num_run": len(found), "num": len(sections)}
    page = page_environment().get_template(TEMPLATE).render(**content)
    return write_atomically(path, page.encode())


def _section(wanted: PaperObject, found: Sequence[Finding], scale: Scale, cells: Sequence[SingleCell]) -> Section:
    finding = found[0] if found else None
    shown = scale if finding is None else finding.scale
    verdicts = () if finding is None else finding.verdicts
    return Section(
        wanted=wanted,
        states=(*(one.state for one in found), *([cells_words(cells)] if cells else [])) or (NOT_RUN,),
        caption="" if finding is None else finding.caption,
        origin="" if finding is None else finding.origin,
        verdicts=tuple((v, c.source) for v, c in zip(verdicts, wanted.claims, strict=False)),
        tables=(*tables(wanted, finding), *([cells_table(wanted, cells)] if cells else [])),
        images=() if finding is None else tuple(_data(content) for _, content in rendered(finding)),
        command=" ".join(command(wanted, shown)),
    )


def _data(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"
