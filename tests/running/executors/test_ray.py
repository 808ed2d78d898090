"""Ray: an address where nobody listens, tasks that travel once, models that hang."""

from __future__ import annotations

import importlib.util
import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers_faults import BAD_BATCH_SIZE, faulty_sweep, hangs
from helpers_protocol import tiny_sweep
from helpers_ray import RAY_WARNINGS, cluster_of
from isotherm.core.budget import Budget
from isotherm.core.records import Outcome, RunSpec
from isotherm.errors import UserError
from isotherm.running.executors.options import FleetOptions
from isotherm.running.executors.packing import PackedTasks
from isotherm.running.executors.remote import RemoteTrainer
from isotherm.sweep.rounds import missing_runs

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: isotherm[ray]"),
    *(pytest.mark.filterwarnings(line) for line in RAY_WARNINGS),
    pytest.mark.filterwarnings("ignore::isotherm.errors.UnseenWarning"),  # the fault depends on the process it is in
]


@pytest.fixture
def nobody() -> str:
    """Return an address of this machine where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("given", ["{}", "ray://{}", "RAY_ADDRESS", "auto"])
def test_where_nobody_listens_the_error_comes_at_once(given: str, nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself Ray tries for more than three minutes."""
    from isotherm.running.executors.ray import RayExecutor

    if given in ("RAY_ADDRESS", "auto"):
        monkeypatch.setenv("RAY_ADDRESS", nobody)
    address = {"RAY_ADDRESS": None, "auto": "auto"}.get(given, given.format(nobody))
    start = time.monotonic()
    with pytest.raises(UserError, match=rf"there is no Ray cluster at '(auto|.*{nobody})': .*refused; start one with"):
        RayExecutor({}, address=address)
    assert time.monotonic() - start < 30


def noting(folder: Path) -> type[RemoteTrainer]:
    """Return a trainer that notes in a file when its tasks have come, and every fleet; made here, it goes by value."""

    def note(what: str) -> None:
        with (folder / str(os.getpid())).open("a") as file:
            file.write(f"{what}\n")

    class Noting(RemoteTrainer):
        def __init__(self, tasks: PackedTasks, *args: Any, **options: Any) -> None:
            super().__init__(tasks, *args, **options)
            note("tasks")

        def train(self, specs: Sequence[RunSpec], seconds_left: float) -> tuple[Any, Any, Any]:
            note("fleet")
            return super().train(specs, seconds_left)

    return Noting


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with cluster_of(1, 1) as found:
        yield found


@pytest.mark.usefixtures("cluster")
def test_tasks_are_put_once_and_every_actor_takes_them_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from isotherm.running.executors.ray import RayExecutor

    put: list[Any] = []
    original = ray.put
    monkeypatch.setattr(ray, "put", lambda value: put.append(value) or original(value))
    sweep = tiny_sweep(effective_learning_rates=[0.125, 0.25, 0.5, 1.0], budget=Budget.steps(50))
    task = sweep.prepared_task
    specs = missing_runs([sweep.plan()], {})
    options = FleetOptions(fleet_size=2)
    with RayExecutor({task.identify().ids: task}, options, num_workers=2, trainer=noting(tmp_path)) as executor:
        while any(actor.about is None for actor in executor._actors.actors):
            list(executor._actors.events(0.1))
        fleets = list(executor.run(specs))
    assert [type(value) for value in put] == [PackedTasks]
    notes = [path.read_text().split() for path in tmp_path.iterdir()]
    assert len(notes) == 2
    assert all(lines[0] == "tasks" and lines.count("tasks") == 1 for lines in notes)
    assert sum(lines.count("fleet") for lines in notes) == len(fleets) >= 4
    assert min(lines.count("fleet") for lines in notes) >= 1


@pytest.mark.usefixtures("cluster")
def test_a_model_that_hangs_is_ended_by_the_run_timeout() -> None:
    from isotherm.running.executors.ray import RayExecutor

    sweep = faulty_sweep(hangs, batch_sizes=[8, BAD_BATCH_SIZE], effective_learning_rates=[0.25], num_seeds=1)
    task = sweep.prepared_task
    specs = missing_runs([sweep.plan()], {})
    options = FleetOptions(run_timeout=3.0)
    with RayExecutor({task.identify().ids: task}, options, num_workers=1) as executor:
        found = {run.spec.batch_size: run.result for fleet in executor.run(specs) for run in fleet}
    assert found[8].outcome is Outcome.FINISHED
    assert found[BAD_BATCH_SIZE].outcome is Outcome.FAILED
    assert "no progress for " in str(found[BAD_BATCH_SIZE].error)
