"""Does a diagnosis give the known answer, at a tenth of the cost of a sweep?

Run:     python benchmarks/diagnose_suite.py --json benchmarks/results/diagnose_suite.json
         python benchmarks/diagnose_suite.py --write docs/diagnose.md
         python benchmarks/diagnose_suite.py --json FILE --lines LINES --processes 2 --minutes 8, then --add LINES
Cost:    about 27 minutes on one core; --case chooses one, and what is in the file is not repeated
Expect:  learning rates within a factor of two and intervals that cover in at least nine of ten seeds; no answer
         confidently wrong; no answer at all where nothing can be learned

Tasks and sweeps: `known_answers`. Compute is counted in training examples: updates times batch size, over all runs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
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
from statistics_runs import ONE_THREAD, read_lines

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


def measure_lines(path: Path, lines: Path, *, names: list[str], seeds: range, processes: int, seconds: float) -> None:
    """Run cases whose sweep a result file holds, several at once, and append a line of JSON for each of them.

    Diagnoses that either file holds are not repeated. Once the time is up none is started.
    """
    cases = json.loads(path.read_text())["cases"]
    known = {(name, row["seed"]) for name, entry in cases.items() for row in entry["rows"]}
    known |= {(line["case"], line["row"]["seed"]) for line in read_lines(lines)}
    wanted = _wanted(cases, known, names, seeds)
    start = time.monotonic()
    os.environ |= dict.fromkeys(ONE_THREAD, "1")
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawned) as pool, lines.open("a") as file:
        running: dict[Future[dict[str, Any]], str] = {}
        while True:
            while len(running) < processes and time.monotonic() - start < seconds:
                name, seed = next(wanted, (None, 0))
                if name is None:
                    break
                running[pool.submit(_diagnosed_by_name, name, cases[name]["sweep"], seed)] = name
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                line = {"case": running.pop(future), "commit": commit(), "machine": machine("cpu")}
                file.write(json.dumps({**line, "row": future.result()}) + "\n")
                file.flush()


def _wanted(
    cases: dict[str, Any], known: set[tuple[str, int]], names: list[str], seeds: range
) -> Iterator[tuple[str, int]]:
    """Return cases and seeds that are not known; every case is soon known for some seeds."""
    for seed in seeds:
        for name in cases:
            if (not names or name in names) and (name, seed) not in known:
                yield name, seed


def _diagnosed_by_name(name: str, sweep: dict[str, Any], seed: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    (case,) = [case for case in CASES if case.name == name]
    return _diagnosed(case, sweep, seed)


def add(path: Path, lines: list[Path]) -> None:
    """Add the diagnoses of files of lines to a result file; each once."""
    content = json.loads(path.read_text())
    for line in (line for file in lines for line in read_lines(file)):
        rows = content["cases"][line["case"]]["rows"]
        if line["row"]["seed"] not in {row["seed"] for row in rows}:
            rows.append({**line["row"], "commit": line["commit"], "cpu": line["machine"]["cpu"]})
    path.write_text(json.dumps(content, indent=1))


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
    parser.add_argument("--lines", type=Path, help="measure several cases at once, and append to this file of lines")
    parser.add_argument("--processes", type=int, default=1, help="with --lines; of one thread each (1)")
    parser.add_argument("--minutes", type=float, default=10.0, help="with --lines; after which no case is started (10)")
    parser.add_argument("--add", nargs="+", type=Path, metavar="LINES", help="add files of lines to the --json")
    parser.add_argument("--write", type=Path, help="write the results into this page instead of measuring")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    if options.write is not None:
        PAGE.write(options.write)
    elif options.json is not None and options.judge_again:
        judge_again(options.json, names=options.case)
    elif options.json is not None and options.add is not None:
        add(options.json, options.add)
    elif options.json is not None and options.lines is not None:
        measure_lines(
            options.json,
            options.lines,
            names=options.case,
            seeds=seeds,
            processes=options.processes,
            seconds=60 * options.minutes,
        )
    elif options.json is not None:
        measure(options.json, names=options.case, seeds=seeds)
    else:
        parser.error("give --json or --write")


if __name__ == "__main__":
    main()
