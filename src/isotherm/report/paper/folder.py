"""The files of an object: its figures (PNG and PDF), tables as CSV, and a summary as JSON."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from isotherm.core.json import plain
from isotherm.report.axes import Format
from isotherm.report.files import write_atomically, write_json
from isotherm.report.paper.draw import rendered
from isotherm.report.paper.finding import Finding
from isotherm.report.paper.tables import tables


def write_object(finding: Finding, folder: Path) -> list[Path]:
    """Write the files of an object into a folder and return them."""
    written = []
    forms: tuple[Format, ...] = ("png", "pdf")
    for form in forms:
        for name, content in rendered(finding, form):
            written.append(write_atomically(folder / f"{name}.{form}", content))
    for k, table in enumerate(tables(finding.wanted, finding)):
        written.append(write_atomically(folder / f"{finding.wanted.identifier}_table{k + 1}.csv", table.csv()))
    return [*written, write_json(folder / f"{finding.wanted.identifier}.json", summary(finding))]


def summary(finding: Finding) -> dict[str, Any]:
    """Return an object as JSON values."""
    content = {
        "object": finding.wanted.identifier,
        "title": finding.wanted.title,
        "shows": finding.wanted.shows,
        "scale": str(finding.scale),
        "caption": finding.caption,
        "origin": finding.origin,
        "state": finding.state,
        "verdicts": [
            {**dataclasses.asdict(verdict), "state": verdict.state, "source": claim.source}
            for verdict, claim in zip(finding.verdicts, finding.wanted.claims, strict=True)
        ],
        "tables": [dataclasses.asdict(table) for table in tables(finding.wanted, finding)],
    }
    return {name: plain(value) for name, value in content.items()}
