"""The paper's objects in documents: one table of all, and each with its numbers and verdicts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from isotherm.report.files import write_atomically
from isotherm.report.paper.draw import rendered
from isotherm.report.paper.finding import Finding, find_record
from isotherm.report.paper.page import NEAREST_FIRST, NOT_RUN, findings_by_object, nearest_findings
from isotherm.report.paper.tables import TextTable, cells_table, tables
from isotherm.studies.paper.definition import Form, PaperObject, Scale
from isotherm.studies.paper.judged import command, state_words
from isotherm.studies.paper.registry import objects
from isotherm.studies.paper.shipped import records_in
from isotherm.studies.paper.single_cells import SingleCell, cells_in, cells_words
from pages.results import ROOT
from pages.text import paragraph, table

FIGURES = ROOT / "docs" / "figures"


@functools.cache
def findings() -> list[Finding]:
    """Return what the rows in `results/` say, in the paper's order, the scales nearest to the paper's first."""
    found = [find_record(record) for record in records_in(ROOT / "results")]
    computed = [f for f in nearest_findings([]).values() if f.wanted.form is Form.SCHEDULE]
    order = list(objects())
    return sorted([*found, *computed], key=lambda f: (order.index(f.wanted.identifier), NEAREST_FIRST.index(f.scale)))


def write_images() -> list[Path]:
    """Draw every object that has results, and return the files."""
    return [
        write_atomically(FIGURES / f"{name}_{finding.scale}.png", content)
        for finding in findings()
        for name, content in rendered(finding)
    ]


def contents_block() -> str:
    """Return one row per object: what it shows, what was run, and the verdicts on its claims."""
    found = findings_by_object(findings())
    rows = [_row(wanted, found.get(wanted.identifier, [])) for wanted in objects().values()]
    return table(("object", "what it shows", "run", "claims"), rows)


def objects_block() -> str:
    """Return every object that has results: verdicts, tables, and the command that reads them."""
    return "\n\n".join(map(section, findings()))


@functools.cache
def cells() -> dict[str, list[SingleCell]]:
    """Return the runs of published rows that belong to no sweep, by object."""
    found: dict[str, list[SingleCell]] = {}
    for cell in cells_in(ROOT / "results"):
        found.setdefault(cell.wanted.identifier, []).append(cell)
    return found


def cells_block() -> str:
    """Return the published rows whose learning rate alone was run."""
    parts = [(objects()[name], found) for name, found in cells().items()]
    return "\n\n".join(titled(cells_table(wanted, found)) for wanted, found in parts)


def _row(wanted: PaperObject, found: Sequence[Finding]) -> Sequence[str]:
    """Return the row of an object; a line in its cells for every scale that was run."""
    single = [cells_words(cells()[wanted.identifier])] if wanted.identifier in cells() else []
    if not found:
        return (wanted.title, wanted.shows, *single, "–") if single else (wanted.title, wanted.shows, NOT_RUN, "–")
    runs = [f.num_words if f.analysis is None else f"`{f.scale}`, {f.num_words}" for f in found]
    return (
        wanted.title,
        wanted.shows,
        "<br>".join([*runs, *single]),
        "<br>".join(state_words(f.verdicts) for f in found),
    )


def heading(finding: Finding) -> str:
    """Return the heading of an object's section."""
    return f"## {finding.wanted.title}, scale {finding.scale}"


def _scale_words(finding: Finding) -> str:
    """Return the scale; at laptop scale the networks of the picture are not those of the object's title."""
    stand_in = " on the embedded network" if finding.scale is Scale.LAPTOP else ""
    return f"scale {finding.scale}{stand_in}"


def section(finding: Finding) -> str:
    """Return an object: caption, verdicts, tables, and the command that reads them."""
    wanted = finding.wanted
    rows = [
        (verdict.state, verdict.claim, "; ".join(filter(None, (verdict.evidence, verdict.p_words))), claim.source)
        for verdict, claim in zip(finding.verdicts, wanted.claims, strict=True)
    ]
    title = f"{wanted.title}, {_scale_words(finding)}"
    parts = [
        heading(finding),
        *(f"![{title}: {wanted.shows}](figures/{path.name})" for path in _images(finding)),
        caption(finding),
        table(("verdict", "claim", "evidence", "source"), rows),
        *map(titled, tables(wanted, finding)),
        paragraph(f"`{' '.join(command(wanted, finding.scale))}`. {_origin(finding)}"),
    ]
    return "\n\n".join(parts)


def _images(finding: Finding) -> list[Path]:
    """Return the files that were drawn."""
    name = finding.wanted.identifier
    first = FIGURES / f"{name}_{finding.scale}.png"
    return [path for path in (first, *sorted(FIGURES.glob(f"{name}-*_{finding.scale}.png"))) if path.exists()]


def _origin(finding: Finding) -> str:
    if not finding.origin:
        return "Computed; there are no rows."
    return f"Rows: `{finding.origin.replace(f'{ROOT}/', '')}`."


def caption(finding: Finding) -> str:
    """Return what an object shows and what was trained."""
    return paragraph(f"{finding.wanted.shows} {finding.caption}")


def titled(found: TextTable) -> str:
    """Return a table under its title."""
    return f"{found.title}\n\n{table(found.columns, found.rows)}"
