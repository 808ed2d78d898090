"""The kill test: a sweep killed at ten random moments, restarted each time, ends as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from helpers_protocol import Recorder, tiny_sweep
from isotherm.core.budget import Budget
from isotherm.core.rates import powers_of_two
from isotherm.running.runner import run
from isotherm.running.store import Store, StoredRun
from isotherm.sweep.sweep import Sweep

# Fleets that finish before each kill; a random part of the next one follows. 24 base fleets and their extensions
# outlast these, so every kill meets a sweep at work. None at all: the kill falls into opening, hashing, tracing.
FLEETS_BEFORE_KILL = (0, 3, 0, 2, 4, 1, 0, 2, 1, 3)
Row = tuple[str, str, str, str]


def long_sweep() -> Sweep:
    """Return a sweep of 24 fleets of two seeds, and extensions: its grids end below the best learning rate."""
    return tiny_sweep(
        batch_sizes=[4, 8, 16, 32],
        effective_learning_rates=powers_of_two(-12, -7),
        budget=Budget.steps(100),
        num_kept=1,
        max_extensions=2,
    )


# -- the other side: a process that has imported everything and forks a child for every sweep it is told to run


class Reporter(Recorder):
    """Says when a fleet's runs are in the store."""

    def runs_done(self, runs: Sequence[StoredRun]) -> None:
        _say(f"fleet {len(runs)}")


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def _nursery() -> None:
    run(long_sweep(), fleet_size=24)  # PyTorch's first fleet takes seconds: not in every child again
    _say("ready")
    child = 0
    for command in sys.stdin:
        if command == "reap\n":
            _, status = os.waitpid(child, 0)
            _say(f"reaped {os.waitstatus_to_exitcode(status)}")
            continue
        path, workers = command.split()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                _say(f"start {os.getpid()}")
                run(long_sweep(), store=path, fleet_size=2, workers=int(workers), progress=Reporter())
                status = 0
            finally:
                _say("end 0")
                os._exit(status)


# -- this side -------------------------------------------------------------------------------------


class Nursery:
    """Starts sweeps in children of a helper process and hears how they go."""

    def __init__(self) -> None:
        folder = Path(__file__).parent
        path = os.pathsep.join([str(folder), str(folder.parent), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", "import test_kill; test_kill._nursery()"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder
        )
        assert self._hear() == ("ready", "")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _hear(self) -> tuple[str, str]:
        assert self._process.stdout is not None
        word, _, value = self._process.stdout.readline().strip().partition(" ")
        assert word, "the helper process ended"
        return word, value

    def finish(self, path: Path, *, workers: int = 1) -> list[float]:
        """Run a sweep to its end; return when each fleet was done, in seconds after the start."""
        self._say(f"{path} {workers}")
        assert self._hear()[0] == "start"
        start, times = time.monotonic(), []
        while self._hear()[0] == "fleet":
            times.append(time.monotonic() - start)
        assert self._reap() == (0, 0)
        return times

    def kill(self, path: Path, *, workers: int, num_fleets: int, delay: float) -> int:
        """Kill a sweep so long after its n-th fleet; return how many runs it said were stored."""
        self._say(f"{path} {workers}")
        word, value = self._hear()
        assert word == "start"
        pid, num_stored = int(value), 0
        for _ in range(num_fleets):
            word, value = self._hear()
            assert word == "fleet"
            num_stored += int(value)
        time.sleep(delay)
        children = _children(pid)
        os.kill(pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
        status, more = self._reap()
        assert status == -signal.SIGKILL, "the sweep ended before it was killed"
        _wait_for_end(children)
        return num_stored + more

    def _reap(self) -> tuple[int, int]:
        """Return the child's exit code and how many runs it stored in the meantime."""
        self._say("reap")
        num_stored = 0
        while (heard := self._hear())[0] != "reaped":
            assert heard[0] in ("fleet", "end")
            num_stored += int(heard[1])
        return int(heard[1]), num_stored


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _wait_for_end(pids: list[int]) -> None:
    """Fail unless orphaned workers end by themselves."""
    deadline = time.monotonic() + 20
    for pid in pids:
        while _is_alive(pid):
            assert time.monotonic() < deadline, f"worker {pid} outlives its parent"
            time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def rows(path: Path) -> list[Row]:
    """Return what is stored of every run but when and where it was made."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT key, outcome, spec, result FROM runs ORDER BY key").fetchall()


def check_whole(path: Path, *, expected: set[Row], at_least: int) -> None:
    """Fail unless the store opens and holds whole fleets only, none of the reported ones missing."""
    if at_least == 0:  # the file itself may not be there yet; whoever resumes makes it
        Store.write(path).close()
    with Store.read(path) as store:
        assert store._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        runs = list(store.runs())
        assert store.results().keys() == {run.spec.key for run in runs}
    assert len(runs) >= at_least
    seeds: dict[tuple[int, float], list[int]] = {}
    for stored in runs:
        seeds.setdefault((stored.spec.batch_size, stored.spec.effective_learning_rate), []).append(stored.spec.seed)
    assert all(pair == [0, 1] for pair in seeds.values())  # a fleet of two is there or not
    assert set(rows(path)) <= expected


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    helper = Nursery()
    yield helper
    helper.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")
def test_sweep_killed_ten_times_ends_as_if_nothing_had_happened(nursery: Nursery, tmp_path: Path) -> None:
    straight, killed = tmp_path / "straight.sqlite", tmp_path / "killed.sqlite"
    times = nursery.finish(straight)
    expected = rows(straight)
    assert len(times) == len(expected) / 2 > 30
    first, usual = times[0], (times[-1] - times[0]) / (len(times) - 1)

    generator, num_stored = random.Random(2020), 0
    for attempt, num_fleets in enumerate(FLEETS_BEFORE_KILL):
        delay = generator.uniform(0.0, usual if num_fleets else first)
        workers = 1 + attempt % 2
        num_stored += nursery.kill(killed, workers=workers, num_fleets=num_fleets, delay=delay)
        check_whole(killed, expected=set(expected), at_least=num_stored)

    remaining = nursery.finish(killed)
    assert 0 < 2 * len(remaining) <= len(expected) - num_stored  # nothing stored was trained again
    assert rows(killed) == expected
    assert len(nursery.finish(killed)) == 0
