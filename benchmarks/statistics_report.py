"""Are intervals and verdicts right? Simulates families whose answer is known, and writes docs/statistics.md.

Run:     python benchmarks/statistics_report.py --simulate 20
         python benchmarks/statistics_report.py
Cost:    the first minutes per block on one core, resumable; the second only writes the tables
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
        "denied": lambda: tables.denied_block(load("statistics")),
        "cost": lambda: tables.cost_block(load("statistics")),
    },
)


def run(num_blocks: int, *, path: Path = RESULT) -> None:
    """Simulate what is missing from the result file, which is written after every job."""
    content = json.loads(path.read_text()) if path.exists() else {"jobs": []}
    known = {_key(job) for job in content["jobs"]}
    wanted = jobs(num_blocks)
    command = f"python benchmarks/{Path(__file__).name} --simulate {num_blocks}"
    content |= {"command": command, "machine": machine("cpu"), "commit": commit()}
    for index, job in enumerate(wanted):
        if _key(job) in known:
            continue
        content["jobs"].append(done(job))
        path.write_text(json_lines(content))
        print(f"{index + 1} of {len(wanted)}: {json.dumps(content['jobs'][-1], ensure_ascii=False)}", flush=True)


def json_lines(content: dict[str, Any]) -> str:
    """Return a result file with a line per job."""
    lines = ",\n".join(json.dumps(job, ensure_ascii=False) for job in content["jobs"])
    head = {name: value for name, value in content.items() if name != "jobs"}
    return f'{json.dumps(head, ensure_ascii=False)[:-1]}, "jobs": [\n{lines}\n]}}\n'


def _key(job: dict[str, Any]) -> str:
    names = ("kind", "resolution", "special", "scenario", "family", "num", "seed")
    return json.dumps([job.get(name) for name in names])


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--simulate", type=int, metavar="BLOCKS", help="run what is missing of so many blocks first")
    arguments = parser.parse_args()
    if arguments.simulate is not None:
        run(arguments.simulate)
    PAGE.write(DOCUMENT)
    print(f"wrote the blocks of {DOCUMENT.name}", file=sys.stderr)


if __name__ == "__main__":
    main()
