"""Are intervals and verdicts right? Simulates families whose answer is known, and writes docs/statistics.md.

Run:     python benchmarks/statistics_report.py --simulate
         python benchmarks/statistics_report.py
Cost:    the first about an hour on one core, resumable; the second only writes the tables
Expect:  coverage of 93 to 97 %; false "holds" at most 5 % for every verdict in every family
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from isotherm.bench.machine import commit, machine
from pages import statistics_tables as tables
from pages.blocks import Page
from pages.results import RESULTS, ROOT, load
from simulations import done, jobs

DOCUMENT = ROOT / "docs" / "statistics.md"
RESULT = RESULTS / "statistics.json"
PAGE = Page(
    name="statistics",
    blocks={
        "margins": tables.margins_block,
        "coverage": lambda: tables.coverage_block(load("statistics")),
        "false_alarms": lambda: tables.false_alarms_block(load("statistics")),
        "power": lambda: tables.power_block(load("statistics")),
        "wrongly_denied": lambda: tables.wrongly_denied_block(load("statistics")),
        "cost": lambda: tables.cost_block(load("statistics")),
    },
)


def run(num_coverage: int, num_verdicts: int, *, only: str | None, path: Path = RESULT) -> None:
    """Simulate what is missing from the result file, which is written after every job."""
    content = json.loads(path.read_text()) if path.exists() else {"jobs": []}
    known = {_key(job) for job in content["jobs"]}
    wanted = [job for job in jobs(num_coverage, num_verdicts) if only in (None, job["kind"])]
    command = f"python benchmarks/{Path(__file__).name} --simulate"
    content |= {"command": command, "machine": machine("cpu"), "commit": commit()}
    for index, job in enumerate(wanted):
        if _key(job) in known:
            continue
        content["jobs"].append(_short(done(job)))
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        print(f"{index + 1} of {len(wanted)}: {json.dumps(content['jobs'][-1], ensure_ascii=False)}", flush=True)


def _key(job: dict[str, Any]) -> str:
    names = ("kind", "resolution", "special", "scenario", "num", "seed")
    return json.dumps([job.get(name) for name in names])


def _short(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job without its family where labels say which it is."""
    if job["kind"] == "verdicts":
        job = {name: value for name, value in job.items() if name != "family"}
    return {**job, "seconds": round(job["seconds"], 1)}


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--simulate", action="store_true", help="run what is missing of the simulations first")
    parser.add_argument("--num-coverage", type=int, default=200)
    parser.add_argument("--num-verdicts", type=int, default=100)
    parser.add_argument("--only", choices=("coverage", "verdicts"))
    arguments = parser.parse_args()
    if arguments.simulate:
        run(arguments.num_coverage, arguments.num_verdicts, only=arguments.only)
    PAGE.write(DOCUMENT)
    print(f"wrote the blocks of {DOCUMENT.name}", file=sys.stderr)


if __name__ == "__main__":
    main()
