"""Does a diagnosis give the known answer, at a tenth of the cost of a sweep?

Run:     python benchmarks/diagnose_suite.py --json benchmarks/results/diagnose_suite.json
         python benchmarks/diagnose_suite.py --write docs/diagnose.md
Cost:    about 27 minutes on one core; --case chooses one, and what is in the file is not repeated
Expect:  learning rates within a factor of two and intervals that cover in at least nine of ten seeds; no answer
         confidently wrong; no answer at all where nothing can be learned

Tasks and sweeps: `known_answers`. Compute is counted in training examples: updates times batch size, over all runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from isotherm.bench.machine import commit, machine
from isotherm.core.json import plain
from isotherm.diagnose import DiagnoseOptions, diagnose
from known_answers.reference import reference
from known_answers.scoring import is_right, is_wrong, judged, scored
from known_answers.tasks import CASES, Known
from pages.blocks import Page
from pages.results import NOT_MEASURED, load

MINUTES = 20.0
# The method was made with smaller seeds in view.
FIRST_SEED = 200


def measure(path: Path, *, names: list[str], seeds: range) -> None:
    """Run the cases, and save after each diagnosis."""
    torch.set_num_threads(1)
    content = json.loads(path.read_text()) if path.exists() else {"cases": {}}
    for seed in seeds:  # every case is soon known for some seeds
        for case in CASES:
            if names and case.name not in names:
                continue
            entry = content["cases"].setdefault(case.name, {"epochs": case.epochs, "is_answerable": case.is_answerable})
            if "sweep" not in entry:
                entry["sweep"] = plain(reference(case))
            if seed not in {row["seed"] for row in entry.setdefault("rows", [])}:
                entry["rows"].append(_diagnosed(case, entry["sweep"], seed))
                _save(path, content)


def _diagnosed(case: Known, sweep: dict[str, Any], seed: int) -> dict[str, Any]:
    start, start_of_core = time.perf_counter(), time.process_time()
    found = diagnose(case.build(), DiagnoseOptions(epochs=case.epochs, minutes=MINUTES, seed=seed))
    rows = scored(found, sweep["optima"])
    isotherm = found.isotherm
    row: dict[str, Any] = {
        "seed": seed,
        "seconds": time.perf_counter() - start,
        "core_seconds": time.process_time() - start_of_core,
        "num_examples": found.cost.num_examples,
        "part_of_sweep": found.cost.num_examples / sweep["num_examples"],
        **_marks(rows),
        "is_wrong": is_wrong(rows) if case.is_answerable else bool(found.recommended),
        "is_answered": bool(found.recommended),
        "slope": None if isotherm.slope is None else [isotherm.slope.estimate, isotherm.slope.low, isotherm.slope.high],
        "exponent": None if isotherm.exponent is None else isotherm.exponent.estimate,
        "missing": list(found.missing),
    }
    words = ", ".join(f"m={r['momentum']:g} B={r['batch_size']} {r['octaves']:+.2f} octaves" for r in rows) or "none"
    print(
        f"{case.name}, seed {seed}: {words}; {row['part_of_sweep']:.3f} of the sweep, {row['core_seconds']:.0f} s",
        flush=True,
    )
    return dict(plain(row))


def _marks(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "optimisers": rows,
        "is_right": is_right(rows),
        "covers": len(rows) == 2 and all(r["covers"] for r in rows),
        "is_wrong": is_wrong(rows),
    }


def judge_again(path: Path, *, names: list[str]) -> None:
    """Compare diagnoses made earlier with their sweep's present results."""
    content = json.loads(path.read_text())
    for case in CASES:
        entry = content["cases"].get(case.name)
        if entry is not None and case.name in names:
            entry["sweep"] = plain(reference(case))
            known = {(best["momentum"], best["batch_size"]): best for best in entry["sweep"]["optima"]}
            for row in entry["rows"]:
                rows = [judged(r, known[r["momentum"], r["batch_size"]]) for r in row["optimisers"]]
                row.update(plain(_marks(rows)))
    path.write_text(json.dumps(content, indent=1))


def _save(path: Path, content: dict[str, Any]) -> None:
    everything = {"machine": machine("cpu"), "commit": commit(), "minutes": MINUTES, "cases": content["cases"]}
    path.write_text(json.dumps(everything, indent=1))


# -- the page --------------------------------------------------------------------------------------------------------


def block(content: dict[str, Any] | None) -> str:
    """Return the page's table from the results."""
    if content is None:
        return NOT_MEASURED
    rows = [
        _row(case, content["cases"][case.name]) for case in CASES if content["cases"].get(case.name, {}).get("rows")
    ]
    return "\n".join(
        [
            "| task | epochs | answered | within a factor of 2 | interval covers | confidently wrong "
            "| off by a factor of, median (worst) | part of the sweep |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
        ]
    )


def _row(case: Known, entry: dict[str, Any]) -> str:
    rows = entry["rows"]
    n = len(rows)
    part = f"{100 * statistics.mean(row['part_of_sweep'] for row in rows):.1f} %"
    wrong = sum(row["is_wrong"] for row in rows)
    answered = sum(row["is_answered"] for row in rows)
    if not case.is_answerable:
        return f"| {case.name} | {case.epochs:g} | {answered} of {n}: right | – | – | {wrong} | – | {part} |"
    factors = [2 ** abs(o["octaves"]) for row in rows for o in row["optimisers"]]
    off = f"{statistics.median(factors):.2f} ({max(factors):.2f})" if factors else "–"
    return (
        f"| {case.name} | {case.epochs:g} | {answered} of {n} | {sum(row['is_right'] for row in rows)} of {n} "
        f"| {sum(row['covers'] for row in rows)} of {n} | {wrong} | {off} | {part} |"
    )


PAGE = Page(name="diagnose", blocks={"suite": lambda: block(load("diagnose_suite"))})


def main() -> None:
    """Measure or write, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", default=[], choices=[case.name for case in CASES])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--judge-again", action="store_true", help="compare the --case given with its sweep once more")
    parser.add_argument("--write", type=Path, help="write the results into this page instead of measuring")
    options = parser.parse_args()
    if options.write is not None:
        PAGE.write(options.write)
    elif options.json is not None and options.judge_again:
        judge_again(options.json, names=options.case)
    elif options.json is not None:
        measure(options.json, names=options.case, seeds=range(options.first_seed, options.first_seed + options.seeds))
    else:
        parser.error("give --json or --write")


if __name__ == "__main__":
    main()
