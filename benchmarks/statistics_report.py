"""Are intervals and verdicts right? Simulates families whose answer is known, and writes docs/statistics.md.

Run:     python benchmarks/statistics_report.py --simulate --processes 2 --minutes 60 --output lines.jsonl
         python benchmarks/statistics_report.py --pool lines.jsonl benchmarks/results/statistics.json
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

from isotherm.bench.machine import commit
from pages import statistics_tables as tables
from pages.blocks import Page
from pages.results import RESULTS, ROOT, load
from statistics_runs import Limits, method_of, pooled, simulate

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
    PAGE.write(DOCUMENT)
    print(f"wrote the blocks of {DOCUMENT.name}", file=sys.stderr)


if __name__ == "__main__":
    main()
