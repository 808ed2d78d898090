"""Simulations of docs/statistics.md in many processes, as lines of JSON that add up over calls and machines."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import multiprocessing
import os
import sys
import time
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isotherm.bench.machine import cpu_name
from pages.results import ROOT
from simulations import block_jobs, done

Job = dict[str, Any]

# A call with `part` k starts at this many blocks times k, so that calls on machines that do not know of each other
# simulate with different seeds.
BLOCKS_IN_A_PART = 100
ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
LABELS = ("kind", "resolution", "special", "scenario", "curves", "family", "num", "seed")

# What decides how a simulation comes out; results before and after a change of it are not mixed.
_SIMULATION = ("benchmarks/families.py", "benchmarks/simulations.py", "src/isotherm/sweep/protocol.py")
_ANALYSIS = "src/isotherm/analysis"
_FIT = tuple(f"{_ANALYSIS}/{name}.py" for name in ("broken_line", "chains", "curves", "family", "peak", "peak_points"))
_FILES = {
    "coverage": (*_SIMULATION, "src/isotherm/core/statistics.py", *_FIT),
    "verdicts": (
        *_SIMULATION,
        "src/isotherm/core/statistics.py",
        *_FIT,
        f"{_ANALYSIS}/analysis.py",
        f"{_ANALYSIS}/regimes.py",
        f"{_ANALYSIS}/series.py",
        *sorted(
            str(path.relative_to(ROOT))
            for path in (ROOT / _ANALYSIS / "verdicts").glob("*.py")
            if path.name != "remedies.py"  # which runs would decide an open verdict: no state depends on it
        ),
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much is simulated: processes, and seconds after which no job is started; those that run are finished."""

    processes: int
    seconds: float


def simulate(path: Path, *, part: int, kinds: Sequence[str], limits: Limits) -> int:
    """Append the results of jobs to a file of lines until time is up, and return how many there are new.

    Jobs that the file holds are not repeated, unless the method has changed since. Blocks follow each other, and each
    holds every family equally often, in an order of its own: whenever it ends, no family is ahead of another.
    """
    methods = {kind: method_of(kind) for kind in kinds}
    _end_with_a_line(path)
    known = {key_of(line) for line in read_lines(path) if line.get("method") == methods.get(line["kind"])}
    wanted = (job for job in ordered_jobs(part, kinds) if key_of(job) not in known)
    start, count, cpu = time.monotonic(), 0, cpu_name()
    os.environ |= dict.fromkeys(ONE_THREAD, "1")  # processes that are spawned read it before NumPy does
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(limits.processes, mp_context=spawned) as pool, path.open("a") as file:
        running: set[Future[Job]] = set()
        while True:
            while len(running) < limits.processes and time.monotonic() - start < limits.seconds:
                running.add(pool.submit(done, next(wanted)))
            if not running:
                break
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                line = future.result()
                line |= {"method": methods[line["kind"]], "cpu": cpu}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                file.flush()
                count += 1
    print(f"{count} jobs in {time.monotonic() - start:.0f} s", file=sys.stderr)
    return count


def ordered_jobs(part: int, kinds: Sequence[str]) -> Iterator[Job]:
    """Return the jobs of one block after another, without end."""
    block = BLOCKS_IN_A_PART * part
    while True:
        jobs = [job for job in block_jobs(block) if job["kind"] in kinds]
        order = np.random.default_rng(block).permutation(len(jobs))
        yield from (jobs[index] for index in order)
        block += 1


def pooled(paths: Iterable[Path]) -> list[Job]:
    """Return the jobs of several files of lines, each once, in a fixed order.

    Raises:
        ValueError: A line comes from another method than that of this source tree.
    """
    found: dict[str, Job] = {}
    for path in paths:
        for line in read_lines(path):
            if line["method"] != method_of(line["kind"]):
                raise ValueError(
                    f"{path} has a {line['kind']} job of the method {line['method']}, and this source tree has "
                    f"{method_of(line['kind'])}; check out the commit that simulated it, or leave the file out"
                )
            found[key_of(line)] = line
    return sorted(found.values(), key=lambda job: (job["kind"] == "coverage", job["seed"]))


def read_lines(path: Path) -> list[Job]:
    """Return the jobs of a file of lines, or of a result file.

    A last line that was cut off when a call was stopped is left out.
    """
    if not path.exists():
        return []
    if path.suffix == ".json":
        content = json.loads(path.read_text())
        cpu = ", ".join(content["cpus"])
        return [{**job, "method": content["method"][job["kind"]], "cpu": cpu} for job in content["jobs"]]
    lines = path.read_text().split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


def _end_with_a_line(path: Path) -> None:
    """Cut off what a stopped call wrote of a line."""
    text = path.read_text() if path.exists() else ""
    if not text.endswith("\n"):
        path.write_text(text[: text.rfind("\n") + 1])


def key_of(job: Job) -> str:
    """Return what makes a job different from others."""
    return json.dumps([job.get(name) for name in LABELS])


def method_of(kind: str) -> str:
    """Return a short hash of the code that decides how jobs of a kind come out: without comments and docstrings."""
    code = "\0".join(f"{name}\0{bare((ROOT / name).read_text())}" for name in _FILES[kind])
    return hashlib.sha256(code.encode()).hexdigest()[:12]


def bare(source: str) -> str:
    """Return source without comments, docstrings and empty lines.

    >>> bare('x = 1  # one' + chr(10) * 3 + 'y = 2').splitlines()
    ['x = 1', 'y = 2']
    """
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip())
