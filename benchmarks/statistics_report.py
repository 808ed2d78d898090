"""Are intervals and verdicts right? Simulates families whose answer is known, and writes docs/statistics.md.

Run:     python benchmarks/statistics_report.py --simulate --processes 2 --minutes 60 --output lines.jsonl
         python benchmarks/statistics_report.py --pool lines.jsonl benchmarks/results/statistics.json
         python benchmarks/statistics_report.py --repeat 10
         python benchmarks/statistics_report.py
Cost:    the first as long as it is let, and it goes on where a file ends; the others only write
Expect:  coverage of 93 to 97 %; false "holds" at most 5 % for every verdict in every family
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isotherm.bench.machine import commit
from pages import statistics_tables as tables
from pages.blocks import Page
from pages.results import RESULTS, ROOT, load
from simulations import done
from statistics_runs import LABELS, Limits, method_of, pooled, simulate

KINDS = ("coverage", "verdicts")
DOCUMENT = ROOT / "docs" / "statistics.md"
RESULT = RESULTS / "statistics.json"
PAGE = Page(
    name="statistics",
    blocks={
        "margins": tables.margins_block,
        "groups": lambda: tables.groups_block(load("statistics")),
        "reach": lambda: tables.reach_block(load("statistics")),
        "shown": lambda: tables.shown_block(load("statistics")),
        "coverage": lambda: tables.coverage_block(load("statistics")),
        "false_alarms": lambda: tables.false_alarms_block(load("statistics")),
        "alarms_shown": lambda: tables.alarms_shown_block(load("statistics")),
        "power": lambda: tables.power_block(load("statistics")),
        "denied": lambda: tables.denied_block(load("statistics")),
        "cost": lambda: tables.cost_block(load("statistics")),
    },
)


def pool(paths: Sequence[Path], *, path: Path = RESULT) -> None:
    """Replace the result file by the jobs of files of lines, and of itself if it is among them."""
    jobs = pooled(paths)
    content = {
        "command": f"python benchmarks/{Path(__file__).name} --simulate --output lines.jsonl",
        "cpus": sorted({cpu for job in jobs for cpu in job["cpu"].split(", ")}),
        "commit": commit(),
        "method": {kind: method_of(kind) for kind in KINDS},
        "jobs": [{name: value for name, value in job.items() if name not in ("method", "cpu")} for job in jobs],
    }
    path.write_text(json_lines(content))


def repeat(num: int, *, path: Path = RESULT) -> None:
    """Repeat jobs of the result file with the method of this source tree, and note it there if all come out the same.

    Then code that was changed without changing any result needs no new simulations.

    Raises:
        SystemExit: a job came out differently.
    """
    content = json.loads(path.read_text())
    generator = np.random.default_rng(0)
    for kind in KINDS:
        jobs = [job for job in content["jobs"] if job["kind"] == kind]
        for index in generator.choice(len(jobs), size=min(num, len(jobs)), replace=False):
            found = json.loads(json.dumps(done({name: value for name, value in jobs[index].items() if name in LABELS})))
            if any(found[name] != value for name, value in jobs[index].items() if name != "seconds"):
                raise SystemExit(f"{kind}, seed {jobs[index]['seed']}: comes out differently now; simulate again")
            print(f"{kind}, seed {jobs[index]['seed']}: the same", file=sys.stderr)
    content["method"] = {kind: method_of(kind) for kind in KINDS}
    content["repeated"] = {"num_of_each_kind": num, "commit": commit()}
    path.write_text(json_lines(content))


def json_lines(content: dict[str, Any]) -> str:
    """Return a result file with a line per job."""
    lines = ",\n".join(json.dumps(job, ensure_ascii=False) for job in content["jobs"])
    head = {name: value for name, value in content.items() if name != "jobs"}
    return f'{json.dumps(head, ensure_ascii=False)[:-1]}, "jobs": [\n{lines}\n]}}\n'


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--simulate", action="store_true", help="simulate until time is up, and write no page")
    parser.add_argument("--processes", type=int, default=1, help="that simulate at once, of one thread each (1)")
    parser.add_argument("--minutes", type=float, default=10.0, help="after which no job is started (10)")
    parser.add_argument("--part", type=int, default=0, help="another one on every machine: other seeds (0)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="what is simulated (both)")
    parser.add_argument("--output", type=Path, help="file of lines that results are added to")
    parser.add_argument("--repeat", type=int, metavar="N", help="repeat N results of each kind with the code of today")
    parser.add_argument("--pool", nargs="+", type=Path, metavar="FILE", help="files that make the result file")
    arguments = parser.parse_args()
    if arguments.simulate:
        if arguments.output is None:
            parser.error("--simulate needs --output FILE")
        limits = Limits(processes=arguments.processes, seconds=60 * arguments.minutes)
        simulate(arguments.output, part=arguments.part, kinds=arguments.kinds, limits=limits)
        return
    if arguments.pool is not None:
        pool(arguments.pool)
    if arguments.repeat is not None:
        repeat(arguments.repeat)
    PAGE.write(DOCUMENT)
    print(f"wrote the blocks of {DOCUMENT.name}", file=sys.stderr)


if __name__ == "__main__":
    main()
