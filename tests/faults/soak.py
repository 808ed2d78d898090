"""Kill the driver of a sweep, and its workers, at random moments until it is done; compare with an undisturbed sweep.

    python tests/faults/soak.py --kills 100 [--workers 2] [--seed 0]

A run that was trained alone, after its fleet was hit twice, may differ in its last digits from one of a fleet; these
are counted, and any other difference is a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers_protocol import tiny_sweep
from isotherm.core.budget import Budget
from isotherm.core.rates import powers_of_two
from isotherm.core.records import Outcome, RunResult
from isotherm.running.runner import run
from isotherm.running.store import Store
from isotherm.sweep.sweep import Sweep

TOLERANCE = 1e-9  # float64


def soak_sweep() -> Sweep:
    """Return a sweep of 720 runs, 240 fleets of three."""
    return tiny_sweep(
        batch_sizes=[4, 8, 16],
        effective_learning_rates=powers_of_two(-12, -1),
        budget=Budget.steps(3_000),
        num_seeds=20,
        num_evaluations=1,
    )


def train(store: str, workers: int) -> None:
    """Run what is missing; the process that is killed."""
    run(soak_sweep(), store=store, workers=workers, fleet_size=3, checkpoint_seconds=0.2)


def kill_until_done(store: Path, *, kills: int, workers: int, seed: int) -> dict[str, int]:
    """Run the sweep in processes that are killed; return how often who was."""
    generator, counts = random.Random(seed), {"driver": 0, "worker": 0}
    while True:
        command = [sys.executable, __file__, "--train", str(store), "--workers", str(workers)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as driver:
            while driver.poll() is None:
                time.sleep(generator.uniform(0.2, 4.0))
                if sum(counts.values()) >= kills:
                    driver.wait()
                elif victims := _children(driver.pid):  # it has begun
                    who = "driver" if generator.random() < 0.3 else "worker"
                    victim = driver.pid if who == "driver" else generator.choice(victims)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(victim, signal.SIGKILL)
                        counts[who] += 1
        if driver.returncode == 0:
            return counts


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def differences(store: Path, expected: dict[str, RunResult]) -> dict[str, int]:
    """Return how many runs are missing, have failed, differ, or differ in their last digits alone."""
    with Store.read(store) as opened:
        found = opened.results()
    counts = {"missing": len(expected.keys() - found.keys()), "unknown": len(found.keys() - expected.keys())}
    counts |= {"failed": 0, "different": 0, "last digits": 0}
    for key in expected.keys() & found.keys():
        one, other = expected[key], found[key]
        if other.outcome is Outcome.FAILED:
            counts["failed"] += 1
        elif one != other:
            close = abs(one.quantity("test_loss") - other.quantity("test_loss")) <= TOLERANCE
            counts["last digits" if close else "different"] += 1
    return counts


def main() -> int:
    """Kill, compare, print; return 0 if nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", metavar="STORE", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train is not None:
        train(given.train, given.workers)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "killed.sqlite"
        start = time.monotonic()
        counts = kill_until_done(store, kills=given.kills, workers=given.workers, seed=given.seed)
        train(str(store), given.workers)  # whatever has failed is tried again
        expected = dict(run(soak_sweep(), workers=given.workers, fleet_size=3).by_key)
        found = differences(store, expected)
    print(f"{counts} killed in {time.monotonic() - start:.0f} s, {len(expected)} runs: {found}")
    return 1 if found["missing"] or found["unknown"] or found["failed"] or found["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
