"""Analyse the quickstart's runs again and write its results, figures, docs/quickstart.md and its lines in README.md.

python benchmarks/quickstart_report.py  # from results/quickstart/runs.csv; trains nothing
python benchmarks/quickstart_report.py --study quickstart --take FOLDER  # from a new `isotherm quickstart -o FOLDER`

The study `noisy_labels`, which the page shows beside it, is treated alike.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
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
from isotherm.studies.noisy_labels import noisy_labels
from isotherm.studies.quickstart import quickstart
from isotherm.sweep.results import StudyResults
from isotherm.sweep.study import Study
from pages import quickstart as page
from pages.blocks import Page
from pages.results import ROOT

FIGURES = ROOT / "docs" / "figures"
QUICKSTART_PAGE = ROOT / "docs" / "quickstart.md"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """A study whose committed runs documents show."""

    make: Callable[[], Study]
    command: str  # that ran it
    store: Path  # which that command made
    documents: tuple[Path, ...]
    figures: tuple[str, ...]
    blocks: tuple[str, ...]


SHOWN = {
    "quickstart": Shown(
        make=quickstart,
        command="isotherm quickstart",
        store=Path("quickstart/quickstart.sqlite"),
        documents=(QUICKSTART_PAGE, ROOT / "README.md"),
        figures=("constant_steps", "constant_epochs"),
        blocks=("optima", "verdicts", "summary"),
    ),
    "noisy_labels": Shown(
        make=noisy_labels,
        command="isotherm run noisy_labels",
        store=Path("noisy_labels.sqlite"),
        documents=(QUICKSTART_PAGE,),
        figures=("constant_steps",),
        blocks=("optima", "verdicts"),
    ),
}
_BLOCKS = {"optima": page.optima_block, "verdicts": page.verdicts_block, "summary": page.summary_block}
# How the runs came to be: kept when they are analysed again.
ORIGIN = ("command", "note", "commit", "hardware", "torch", "python", "seconds")


def main() -> None:
    """Take over runs where asked to, then analyse and write."""
    options = _parser().parse_args()
    if options.take is not None and options.study is None:
        raise SystemExit("--take needs --study")
    for name in SHOWN if options.study is None else [options.study]:
        folder = page.folder_of(name)
        origin = _kept_origin(name) if options.take is None else _taken(name, options)
        command = run_command(name, name, SHOWN[name].store)
        analysis = analyse(stored(name), run=command)
        summary = study_summary(analysis, seconds=origin["seconds"])
        (folder / f"{name}.json").write_text(json_text({**origin, **summary}))
        write_files(name, analysis)
        for document in SHOWN[name].documents:
            page_of(name).write(document)
        print(f"wrote {folder.relative_to(ROOT)}, its figures and its blocks of documents")


def page_of(name: str) -> Page:
    """Return the blocks of a study."""
    return Page(name=name, blocks={block: partial(_block, name, block) for block in SHOWN[name].blocks})


def _block(name: str, block: str) -> str:
    return _BLOCKS[block](page.content(name))


def runs_of(name: str) -> Path:
    """Return the file with the runs of a study."""
    return page.folder_of(name) / "runs.csv"


def stored(name: str) -> StudyResults:
    """Return a study with its committed runs.

    Raises:
        ValueError: The study as it is now calls for other runs.
    """
    with runs_of(name).open(newline="") as file:
        by_key = {row["key"]: result_of(row) for row in csv.DictReader(file)}
    results = StudyResults(plan=SHOWN[name].make().plan(), by_key=by_key)
    if missing := results.counts()["missing"]:
        raise ValueError(
            f"runs.csv lacks {missing} runs of {name} as it is now; run it again and take it over with --take FOLDER"
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


def write_files(name: str, analysis: Analysis) -> None:
    """Write the tables and the figures that documents show."""
    with tempfile.TemporaryDirectory() as folder:
        write_csv(analysis, folder)
        save_figures(study_figures(analysis), folder, formats=("png",))
        shutil.copyfile(Path(folder) / "optima.csv", page.folder_of(name) / "optima.csv")
        for figure in SHOWN[name].figures:
            shutil.copyfile(Path(folder) / f"{figure}.png", FIGURES / f"{name}_{figure}.png")


def _taken(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Copy the runs of a finished study and return how they came to be."""
    page.folder_of(name).mkdir(exist_ok=True)
    shutil.copyfile(options.take / "runs.csv", runs_of(name))
    seconds = options.seconds or json.loads((options.take / "summary.json").read_text())["seconds"]
    return {
        "command": SHOWN[name].command,
        "note": options.note,
        "commit": options.commit,
        "hardware": options.hardware,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "seconds": seconds,
    }


def _kept_origin(name: str) -> dict[str, Any]:
    found = page.content(name)
    return {key: found[key] for key in ORIGIN}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Analyse the quickstart's runs again and write what shows them.")
    parser.add_argument("--study", choices=list(SHOWN), help="default: all")
    parser.add_argument("--take", type=Path, metavar="FOLDER", help="of the finished --study")
    parser.add_argument("--seconds", type=float, help="that it took; by default those in FOLDER/summary.json")
    parser.add_argument("--commit", help="that trained them")
    parser.add_argument("--hardware", help="that trained them, in words")
    parser.add_argument("--note", default="", help="what else to know about these runs")
    return parser


if __name__ == "__main__":
    main()
