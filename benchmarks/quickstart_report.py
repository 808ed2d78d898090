"""Analyse the quickstart's runs again and write its results, figures, docs/quickstart.md and its lines in README.md.

python benchmarks/quickstart_report.py                # from results/quickstart/runs.csv; trains nothing
python benchmarks/quickstart_report.py --take FOLDER  # from a new `isotherm quickstart --output FOLDER`
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import shutil
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from isotherm.analysis.analysis import Analysis, analyse
from isotherm.cli.stores import run_command
from isotherm.core.json import json_text
from isotherm.core.records import Outcome, RunResult
from isotherm.report.study.draw import save_figures
from isotherm.report.study.figure_data import study_figures
from isotherm.report.study.summary import study_summary
from isotherm.report.study.tables import write_csv
from isotherm.studies.quickstart import quickstart
from isotherm.sweep.results import StudyResults
from pages import quickstart as page
from pages.blocks import Page
from pages.results import ROOT

FOLDER = page.FOLDER
RUNS = FOLDER / "runs.csv"
FIGURES = ROOT / "docs" / "figures"
DOCUMENTS = (ROOT / "docs" / "quickstart.md", ROOT / "README.md")
PAGE = Page(
    name="quickstart",
    blocks={
        "optima": lambda: page.optima_block(page.content()),
        "verdicts": lambda: page.verdicts_block(page.content()),
        "summary": lambda: page.summary_block(page.content()),
    },
)
# How the runs came to be: kept when they are analysed again.
ORIGIN = ("command", "note", "commit", "hardware", "torch", "python", "seconds")


def main() -> None:
    """Take over runs where asked to, then analyse and write."""
    options = _parser().parse_args()
    origin = _kept_origin() if options.take is None else _taken(options)
    command = run_command("quickstart", "quickstart", Path("quickstart/quickstart.sqlite"))
    analysis = analyse(stored(), run=command)
    summary = study_summary(analysis, seconds=origin["seconds"])
    (FOLDER / "quickstart.json").write_text(json_text({**origin, **summary}))
    write_files(analysis)
    for document in DOCUMENTS:
        PAGE.write(document)
    print(f"wrote {FOLDER.relative_to(ROOT)}, two figures and the blocks of docs/quickstart.md and README.md")


def stored() -> StudyResults:
    """Return the study with the runs of `RUNS`.

    Raises:
        ValueError: The study as it is now calls for other runs.
    """
    with RUNS.open(newline="") as file:
        by_key = {row["key"]: result_of(row) for row in csv.DictReader(file)}
    results = StudyResults(plan=quickstart().plan(), by_key=by_key)
    if missing := results.counts()["missing"]:
        raise ValueError(
            f"{RUNS.name} lacks {missing} runs of the quickstart as it is now; run isotherm quickstart --output FOLDER "
            "and take it over with --take FOLDER"
        )
    return results


def result_of(row: dict[str, str]) -> RunResult:
    """Return the result in a row of `runs.csv`, which has no evaluations along the way."""
    values: dict[str, Any] = {"outcome": Outcome(row["outcome"])}
    for field in fields(RunResult):
        if field.name in row and field.name != "outcome" and row[field.name] != "":
            kind = {"divergence_step": int, "error": str}.get(field.name, float)
            values[field.name] = kind(row[field.name])
    return RunResult(**values)


def write_files(analysis: Analysis) -> None:
    """Write the tables and the figures that documents show."""
    with tempfile.TemporaryDirectory() as folder:
        write_csv(analysis, folder)
        save_figures(study_figures(analysis), folder, formats=("png",))
        shutil.copyfile(Path(folder) / "optima.csv", FOLDER / "optima.csv")
        for name in ("constant_steps", "constant_epochs"):
            shutil.copyfile(Path(folder) / f"{name}.png", FIGURES / f"quickstart_{name}.png")


def _taken(options: argparse.Namespace) -> dict[str, Any]:
    """Copy the runs of a finished quickstart and return how they came to be."""
    shutil.copyfile(options.take / "runs.csv", RUNS)
    seconds = json.loads((options.take / "summary.json").read_text())["seconds"]
    return {
        "command": "isotherm quickstart",
        "note": options.note,
        "commit": options.commit,
        "hardware": options.hardware,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "seconds": seconds,
    }


def _kept_origin() -> dict[str, Any]:
    found = page.content()
    return {name: found[name] for name in ORIGIN}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Analyse the quickstart's runs again and write what shows them.")
    parser.add_argument("--take", type=Path, metavar="FOLDER", help="of a finished isotherm quickstart")
    parser.add_argument("--commit", help="that trained them")
    parser.add_argument("--hardware", help="that trained them, in words")
    parser.add_argument("--note", default="", help="what else to know about these runs")
    return parser


if __name__ == "__main__":
    main()
