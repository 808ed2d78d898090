"""The contract of `executors.contract`: the same study gives the same rows with every executor."""

from __future__ import annotations

import importlib.util
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from helpers_faults import BAD_BATCH_SIZE, exits, faulty_sweep
from helpers_protocol import alone_of_torchrun, assert_same_results, blobs_task, tiny_sweep
from helpers_ray import RAY_WARNINGS, cluster_of
from isotherm.core.budget import Budget
from isotherm.core.records import Outcome, RunResult, RunSpec
from isotherm.engine.deadline import Deadline, StopFlag
from isotherm.running.executors.checkpoints import CheckpointFolder
from isotherm.running.executors.contract import Executor
from isotherm.running.executors.fleet_times import StoppedFleet
from isotherm.running.executors.local import LocalExecutor
from isotherm.running.executors.options import FleetOptions
from isotherm.running.executors.pool import PoolExecutor
from isotherm.running.executors.torchrun import TorchrunExecutor
from isotherm.sweep.rounds import missing_runs
from isotherm.sweep.sweep import Sweep

MOST_SECONDS_TO_END = 30.0  # on a machine that others keep busy
Maker = Callable[..., Executor]
EXECUTORS = ["local", "pool", "ray", "slurm", "torchrun"]
pytestmark = [
    pytest.mark.filterwarnings("ignore::isotherm.errors.UnseenWarning"),
    *(pytest.mark.filterwarnings(line) for line in RAY_WARNINGS),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'isotherm[ray]'")
    with cluster_of(1, 1) as found:
        yield found


@pytest.fixture(params=EXECUTORS)
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    """Return how to make an executor.

    On Ray of one worker, which takes seconds to start, unless told otherwise; of torchrun the one process that it has
    started, as `test_torchrun.py` has two.
    """
    if request.param == "local":
        return LocalExecutor
    if request.param == "pool":
        return lambda tasks, options, num_workers=2: PoolExecutor(tasks, options, num_workers=num_workers)
    if request.param == "ray":
        request.getfixturevalue("cluster")
        from isotherm.running.executors.ray import RayExecutor

        return lambda tasks, options, num_workers=1: RayExecutor(tasks, options, num_workers=num_workers)
    if request.param == "torchrun":
        for name, value in alone_of_torchrun().items():
            monkeypatch.setenv(name, value)
        return torchrun_executor
    if importlib.util.find_spec("submitit") is None:
        pytest.skip("submitit is not installed: pip install 'isotherm[slurm]'")
    from isotherm.running.executors.slurm import SlurmExecutor

    return lambda tasks, options, **_: SlurmExecutor(tasks, options, folder=tmp_path / "jobs", cluster="local")


def torchrun_executor(tasks: Any, options: FleetOptions, **_: Any) -> Executor:
    return TorchrunExecutor(tasks, options)


def parts(sweep: Sweep) -> tuple[dict[Any, Any], list[RunSpec]]:
    task = sweep.prepared_task
    return {task.identify().ids: task}, missing_runs([sweep.plan()], {})


def by_key(fleets: Iterator[list[Any]]) -> dict[str, RunResult]:
    """Return the results by key; fail where a run comes twice."""
    runs = [run for fleet in fleets for run in fleet]
    found = {run.spec.key: run.result for run in runs}
    assert len(found) == len(runs)
    return found


def test_the_same_rows_once_each_with_progress_that_adds_up(make: Maker) -> None:
    """With a closure for a model, and a learning rate at which runs diverge: a value like any other."""
    width = 3

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))

    task = blobs_task(model=model, loss="mse", train=_regression(0), test=_regression(1))
    sweep = tiny_sweep(task=task, effective_learning_rates=[0.125, 1e30])
    tasks, specs = parts(sweep)
    told: list[tuple[int, int]] = []
    seen: list[str] = []
    handed: list[str] = []
    options = FleetOptions(
        on_steps=lambda size, num: told.append((size, num)),
        on_evaluation=lambda spec, _point: seen.append(spec.key),
        on_fleet=lambda fleet: handed.extend(spec.key for spec in fleet),
    )
    with make(tasks, options, num_workers=2) as executor:
        found = by_key(executor.run(specs))
    expected = by_key(LocalExecutor(tasks).run(specs))
    if make is torchrun_executor:  # the definition, which fleets agree with up to rounding
        assert_same_results(found, expected, tolerance=1e-4)
    else:
        assert found == expected
    assert found.keys() == {spec.key for spec in specs} == set(handed)
    assert {result.outcome for result in found.values()} == {Outcome.FINISHED, Outcome.DIVERGED}
    finished = [key for key, result in found.items() if result.outcome is Outcome.FINISHED]
    assert all(seen.count(key) == 2 for key in finished)
    assert {size for size, _ in told} == {8}
    assert sum(num for _, num in told) >= 10 * len(finished)


def _regression(seed: int) -> Any:
    x = torch.randn(32, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x, x @ torch.tensor([[1.0, 0.0], [2.0, 1.0]], dtype=torch.float64)


def test_a_flag_stops_a_fleet_which_goes_on_from_its_checkpoint(make: Maker, tmp_path: Path) -> None:
    tasks, specs = parts(tiny_sweep(budget=Budget.steps(200_000), effective_learning_rates=[0.125], num_evaluations=1))
    flag = StopFlag()
    folder = CheckpointFolder(path=tmp_path / "a.checkpoints", seconds=0.2)
    options = FleetOptions(checkpoints=folder, deadline=Deadline(stop=flag), on_steps=lambda *_: flag.set())
    with make(tasks, options) as executor, pytest.raises(StoppedFleet) as stopped:
        list(executor.run(specs))
    assert stopped.value.is_saved
    fleet = specs[:1] if make is torchrun_executor else specs  # which trains one run after another
    assert folder.saved_runs() == {spec.key for spec in fleet}


def test_after_the_deadline_nothing_is_trained(make: Maker) -> None:
    tasks, specs = parts(tiny_sweep())
    with make(tasks, FleetOptions(deadline=Deadline(at=-math.inf))) as executor, pytest.raises(StoppedFleet) as stopped:
        list(executor.run(specs))
    assert (stopped.value.done, stopped.value.is_saved) == ([], False)


def test_a_model_that_ends_its_worker_costs_its_own_runs_alone(make: Maker, tmp_path: Path) -> None:
    if make in (LocalExecutor, torchrun_executor):
        pytest.skip("there is no worker but this process")
    sweep = faulty_sweep(exits, batch_sizes=[8, BAD_BATCH_SIZE], effective_learning_rates=[0.25], num_seeds=1)
    tasks, specs = parts(sweep)
    with make(tasks, FleetOptions()) as executor:
        found = by_key(executor.run(specs))
    good, bad = (found[spec.key] for spec in sorted(specs, key=lambda spec: spec.batch_size))
    assert good.outcome is Outcome.FINISHED
    assert bad.outcome is Outcome.FAILED
    assert "ended" in str(bad.error)


def test_leaving_ends_the_workers_at_once(make: Maker, tmp_path: Path) -> None:
    """Of a study that would take many minutes."""

    def model() -> nn.Module:
        (tmp_path / str(os.getpid())).touch()
        return nn.Linear(2, 2)

    sweep = tiny_sweep(task=blobs_task(model=model), budget=Budget.steps(2_000_000), num_evaluations=1)
    tasks, specs = parts(sweep)
    started: list[float] = []
    with (
        pytest.raises(KeyboardInterrupt),
        make(tasks, FleetOptions(on_steps=interrupt_after(started))) as executor,
    ):
        list(executor.run(specs))
    workers = {int(path.name) for path in tmp_path.iterdir() if path.name.isdecimal()} - {os.getpid()}
    assert bool(workers) is (make not in (LocalExecutor, torchrun_executor))
    while any(map(is_alive, workers)):
        assert time.monotonic() - started[0] < MOST_SECONDS_TO_END
        time.sleep(0.05)
    assert time.monotonic() - started[0] < MOST_SECONDS_TO_END


def is_alive(number: int) -> bool:
    """Tell whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def interrupt_after(started: list[float]) -> Callable[[int, int], None]:
    def interrupt(_size: int, _num: int) -> None:
        started.append(time.monotonic())
        raise KeyboardInterrupt

    return interrupt
