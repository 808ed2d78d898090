"""The paper's objects in documents: one table of all, and each with its numbers and verdicts."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from isotherm.report.paper.finding import Finding, find_record
from isotherm.report.paper.page import NOT_RUN, nearest_findings
from isotherm.report.paper.tables import TextTable, tables
from isotherm.studies.paper.definition import PaperObject
from isotherm.studies.paper.judged import command, state_words
from isotherm.studies.paper.registry import objects
from isotherm.studies.paper.shipped import records_in
from pages.results import ROOT
from pages.text import paragraph, table


@functools.cache
def findings() -> dict[str, Finding]:
    """Return what the rows in `results/` say of every object that has some."""
    return nearest_findings(find_record(record) for record in records_in(ROOT / "results"))


def contents_block() -> str:
    """Return one row per object: what it shows, what was run, and the verdicts on its claims."""
    rows = [_row(wanted, findings().get(wanted.identifier)) for wanted in objects().values()]
    return table(("object", "what it shows", "run", "claims"), rows)


def objects_block() -> str:
    """Return every object that has results: verdicts, tables, and the command that reads them."""
    return "\n\n".join(_section(finding) for finding in in_order(findings()))


def in_order(found: dict[str, Finding]) -> list[Finding]:
    """Return findings in the paper's order."""
    return [found[name] for name in objects() if name in found]


def _row(wanted: PaperObject, finding: Finding | None) -> Sequence[str]:
    if finding is None:
        return (wanted.title, wanted.shows, NOT_RUN, "–")
    run = finding.num_words if finding.analysis is None else f"`{finding.scale}`, {finding.num_words}"
    return (wanted.title, wanted.shows, run, state_words(finding.verdicts))


def _section(finding: Finding) -> str:
    wanted = finding.wanted
    rows = [
        (verdict.state, verdict.claim, "; ".join(filter(None, (verdict.evidence, verdict.p_words))), claim.source)
        for verdict, claim in zip(finding.verdicts, wanted.claims, strict=True)
    ]
    parts = [
        f"## {wanted.title}",
        paragraph(f"{wanted.shows} {finding.caption}"),
        table(("verdict", "claim", "evidence", "source"), rows),
        *(f"{found.title}\n\n{_markdown(found)}" for found in tables(wanted, finding)),
        paragraph(f"`{' '.join(command(wanted, finding.scale))}`. {_origin(finding)}"),
    ]
    return "\n\n".join(parts)


def _origin(finding: Finding) -> str:
    if not finding.origin:
        return "Computed; there are no rows."
    return f"Rows: `{finding.origin.replace(f'{ROOT}/', '')}`."


def _markdown(found: TextTable) -> str:
    return table(found.columns, found.rows)
