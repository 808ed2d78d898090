"""Kill the driver of a sweep, its workers and the nodes of a Ray cluster at random moments; compare with an undisturbed
sweep.

    python tests/faults/soak.py --kills 100 [--nodes 15] [--seed 0] [--json benchmarks/results/soak.json]

Kills are spread over one sweep in one store, each at a random moment after so many more runs are stored: first a pool
of workers trains, then, without a stop in between, a Ray cluster that this process starts (`--nodes 0`: never). A run
that was trained alone, after its fleet was hit twice, may differ in its last digits from one of a fleet; these are
counted, and any other difference is a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers_protocol import tiny_sweep
from isotherm.bench.machine import commit, machine
from isotherm.core.budget import Budget
from isotherm.core.rates import powers_of_two
from isotherm.core.records import Outcome, RunResult
from isotherm.running.executors.choice import ExecutorChoice
from isotherm.running.runner import run
from isotherm.running.store import Store, StoreError
from isotherm.sweep.sweep import Sweep

TOLERANCE = 1e-9  # float64
WORKERS, FLEET_SIZE = 2, 3
NUM_SEEDS = 20
NUM_RUNS = 36 * NUM_SEEDS
DRIVERS = 0.3  # of the kills in a pool; in a cluster one driver and one worker for every three nodes
MOST_SECONDS = 1.5  # between the run that a kill waits for and the kill
PART_OF_POOL = 0.6  # of the runs, where a cluster takes over


def soak_sweep() -> Sweep:
    """Return a sweep of 720 runs, 240 fleets of three."""
    return tiny_sweep(
        batch_sizes=[4, 8, 16],
        effective_learning_rates=powers_of_two(-12, -1),
        budget=Budget.steps(800),
        num_seeds=NUM_SEEDS,
        num_evaluations=1,
    )


def train(store: Path, ray_address: str | None = None) -> None:
    """Run what is missing; the process that is killed."""
    name = "pool" if ray_address is None else "ray"
    executor = ExecutorChoice(name=name, workers=WORKERS, ray_address=ray_address)
    run(soak_sweep(), store=store, executor=executor, fleet_size=FLEET_SIZE, checkpoint_seconds=0.2)


class Soak:
    """A sweep whose driver is started again as long as it is killed."""

    def __init__(self, store: Path, *, seed: int) -> None:
        self.store, self.killed, self.num_starts = store, Counter[str](), 0
        self._generator = random.Random(seed)  # to be repeated
        self._cluster: Any = None
        self._nodes: list[Any] = []
        self._log = store.with_name("driver.log")
        self._driver = self._started()

    def kill(self, victims: list[str], *, first: float, last: float) -> None:
        """Kill what is named, one after another, while the store fills from one part of all runs to another."""
        for place, who in enumerate(victims):
            self._wait_for(NUM_RUNS * (first + (last - first) * place / len(victims)))
            time.sleep(self._generator.uniform(0.0, MOST_SECONDS))
            if not self._hits(who):
                return

    def move_to_cluster(self, cluster: Any) -> None:
        """Kill the driver, and let a cluster train from now on."""
        from helpers_ray import add_node

        self._nodes = [add_node(cluster, cores=1) for _ in range(WORKERS)]
        if self._is_going_on():
            self._cluster = cluster
            self._replace_driver()
            self._note("driver")

    def finish(self) -> None:
        """Leave the sweep in peace until it is done."""
        while self._is_going_on():
            time.sleep(0.1)

    def end(self) -> None:
        """End the driver, wherever it is."""
        self._driver.kill()
        self._driver.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        self.num_starts += 1
        address = [] if self._cluster is None else ["--ray-address", self._cluster.address]
        command = [sys.executable, __file__, "--train", str(self.store), *address]
        with self._log.open("wb") as log:
            return subprocess.Popen(command, stderr=log, stdout=log)

    def _is_going_on(self) -> bool:
        """Tell whether the sweep is not done; a driver that ended by itself otherwise is an error."""
        code = self._driver.poll()
        if code not in (None, 0):
            raise RuntimeError(f"the driver ended with {code}:\n{self._log.read_text()[-3_000:]}")
        return code is None

    def _wait_for(self, num_runs: float) -> None:
        while self._is_going_on() and num_stored(self.store) < num_runs:
            time.sleep(0.05)

    def _hits(self, who: str) -> bool:
        """Kill one process or node as soon as training has begun; return whether it came to that."""
        while self._is_going_on():
            if not (workers := self._workers()):
                time.sleep(0.02)
                continue
            if who == "node":
                self._replace_node()
            elif who == "driver":
                self._replace_driver()
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._generator.choice(workers), signal.SIGKILL)
            self._note(who)
            return True
        return False

    def _note(self, who: str) -> None:
        self.killed[who] += 1
        print(f"{self.killed.total()}: {who} killed, {num_stored(self.store)} runs stored", flush=True)

    def _replace_driver(self) -> None:
        self.end()
        self._driver = self._started()

    def _workers(self) -> list[int]:
        """Return the processes that train: children of the driver, or of a node of the cluster."""
        if self._cluster is None:
            return _children(self._driver.pid)
        return [pid for pid in _descendants(os.getpid()) if _command(pid).startswith(b"ray::RemoteTrainer")]

    def _replace_node(self) -> None:
        from helpers_ray import add_node

        place = self._generator.randrange(len(self._nodes))
        self._cluster.remove_node(self._nodes[place], allow_graceful=False)
        self._nodes[place] = add_node(self._cluster, cores=1)


def num_stored(path: Path) -> int:
    """Return how many runs a store holds by now."""
    with contextlib.suppress(StoreError), Store.read(path) as store:
        return sum(store.counts().values())
    return 0


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield int(child)
            with contextlib.suppress(OSError):
                yield from _descendants(int(child))


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def soak(store: Path, *, kills: int, nodes: int, seed: int) -> Soak:
    """Run the sweep under so many kills, some of them of nodes; return what was hit."""
    generator = random.Random(seed)  # to be repeated
    in_cluster = ["node"] * nodes + ["driver", "worker"] * (nodes // 3)
    in_pool = ["driver" if generator.random() < DRIVERS else "worker" for _ in range(kills - len(in_cluster))]
    generator.shuffle(in_cluster)
    found = Soak(store, seed=seed)
    try:
        if not nodes:
            found.kill(in_pool, first=0.0, last=0.97)
        else:
            from helpers_ray import cluster_of

            found.kill(in_pool[:-1], first=0.0, last=PART_OF_POOL)
            with cluster_of(0) as cluster:
                found.move_to_cluster(cluster)
                found.kill(in_cluster, first=PART_OF_POOL, last=0.97)
                found.finish()
        found.finish()
    finally:
        found.end()
    return found


def differences(store: Path, expected: dict[str, RunResult]) -> dict[str, int]:
    """Return how many runs are missing, twice, unknown, have failed, differ, or differ in their last digits alone."""
    with Store.read(store) as opened:
        found, tallied, packed = opened.results(), sum(opened.counts().values()), len(opened.table())
    counts = {"missing": len(expected.keys() - found.keys()), "unknown": len(found.keys() - expected.keys())}
    counts |= {"twice": max(tallied, packed) - len(found), "failed": 0, "different": 0, "last digits": 0}
    for key in expected.keys() & found.keys():
        one, other = expected[key], found[key]
        if other.outcome is Outcome.FAILED:
            counts["failed"] += 1
        elif one != other:
            close = abs(one.quantity("test_loss") - other.quantity("test_loss")) <= TOLERANCE
            counts["last digits" if close else "different"] += 1
    return counts


def main() -> int:
    """Kill, compare, print; return 0 if nothing was lost and every kill has hit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="In all.")
    parser.add_argument("--nodes", type=int, default=15, help="How many of them are nodes of a Ray cluster.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--train", metavar="STORE", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--ray-address", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train is not None:
        train(given.train, given.ray_address)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        store, start = Path(folder) / "killed.sqlite", time.monotonic()
        found = soak(store, kills=given.kills, nodes=given.nodes, seed=given.seed)
        minutes = (time.monotonic() - start) / 60
        with Store.read(store) as opened:
            failed_meanwhile = opened.counts().get(Outcome.FAILED, 0)
        train(store)  # whatever has failed is tried again
        expected = dict(run(soak_sweep(), executor=ExecutorChoice(workers=WORKERS), fleet_size=FLEET_SIZE).by_key)
        lost = differences(store, expected)
    content: dict[str, Any] = {
        "command": f"python tests/faults/soak.py --kills {given.kills} --nodes {given.nodes} --seed {given.seed}",
        "commit": commit(),
        "machine": machine("cpu"),
        "minutes": round(minutes, 1),
        "runs": len(expected),
        "killed": {**found.killed, "in all": found.killed.total()},
        "drivers_started": found.num_starts,
        "failed_by_kills_and_tried_again": failed_meanwhile,
        "found": lost,
    }
    print(json.dumps(content, indent=1))
    if given.json is not None:
        given.json.write_text(json.dumps(content, indent=1) + "\n")
    is_whole = found.killed.total() == given.kills and lost["last digits"] == sum(lost.values())
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
