"""Runs shared by torchrun's processes: the rows of one process, stored once, and what is refused.

`tests/engine/test_data_parallel.py` has the sums and faults of two processes; here torchrun itself starts them once.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import cases_paper
from helpers_cli import invoke
from helpers_protocol import alone_of_torchrun, assert_same_results, blobs_task, tiny_sweep
from isotherm.core.budget import Budget
from isotherm.core.launch import check_launch
from isotherm.core.records import Outcome, RunResult, RunSpec
from isotherm.engine.data_parallel import LostProcess, Processes
from isotherm.engine.deadline import Deadline, StopFlag
from isotherm.errors import UserError
from isotherm.running.executors import torchrun
from isotherm.running.executors.checkpoints import CheckpointFolder
from isotherm.running.executors.choice import ExecutorChoice
from isotherm.running.executors.fleet_times import StoppedFleet
from isotherm.running.executors.options import FleetOptions
from isotherm.running.executors.torchrun import TorchrunExecutor
from isotherm.running.runner import run_study
from isotherm.running.store import Store
from isotherm.sweep.rounds import missing_runs
from isotherm.sweep.sweep import Sweep

CODE = '''
import os

import torch
from torch import nn
import isotherm as it
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d

def data(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    x = torch.randn(n, 3, 6, 6, generator=g)
    x[torch.arange(n), y] += 0.7
    return x, y

class Net(nn.Module):
    """The second process dies once, in the middle of the study."""
    num = 0

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 5, 3), GhostBatchNorm2d(5, ghost_size=8)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(5, 3)

    def forward(self, x):
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT")
        if self.training and attempt is not None and torch.distributed.is_initialized():
            Net.num += 1
            if (attempt, os.environ["RANK"], Net.num) == ("0", "1", 60):
                os._exit(1)
        return self.last(self.drop(torch.relu(self.norm(self.conv(x))).mean(dim=(2, 3))))

def study():
    task = it.Task(name="images", model=Net, train=data(96, 0), test=data(30, 1), version="1")
    sweep = it.Sweep(name="shared", task=task, batch_sizes=[24], effective_learning_rates=[0.5, 2.0, 1e6], num_seeds=1,
                     num_kept=1, budget=it.Budget.steps(40), tune_on="test", max_extensions=0, resolution="paper",
                     precision="float64", clip_norm=0.5, num_evaluations=2)
    return it.Study(name="shared", sweeps=[sweep], question="Are two processes one?")
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "shared.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return tmp_path


def results_in(path: Path) -> dict[str, RunResult]:
    with Store.read(path) as store:
        return dict(store.results())


@pytest.mark.filterwarnings("ignore::isotherm.errors.UnseenWarning")  # the model dies where the environment says so
def test_torchrun_gives_the_rows_of_one_process_though_a_process_dies(folder: Path) -> None:
    """Torchrun starts both again, and they go on from the checkpoint."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    isotherm = ["-m", "isotherm", "run", "shared:study", "--store", "two.sqlite", "--executor", "torchrun"]
    done = subprocess.run(
        [sys.executable, *torchrun, *isotherm, "--checkpoint-seconds", "1e-6"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "500", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exitcode" in done.stderr  # torchrun tells of the process that died
    assert done.stdout.count("Store: two.sqlite") == 1  # the second process says nothing
    import shared  # type: ignore[import-not-found]

    run_study(shared.study(), store=folder / "one.sqlite", workers=1, progress=False)
    one, two = results_in(folder / "one.sqlite"), results_in(folder / "two.sqlite")
    assert sorted(result.outcome for result in one.values()) == [Outcome.DIVERGED, Outcome.FINISHED, Outcome.FINISHED]
    assert_same_results(two, one, tolerance=1e-9)
    with Store.read(folder / "two.sqlite") as store:
        assert {(row.provenance["processes"], row.provenance["micro_batch_size"]) for row in store.runs()} == {(2, 8)}
    assert not (folder / "two.sqlite.checkpoints").exists()


# -- in this process, which torchrun might have started alone ----------------------------------------------------------


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be the one process that torchrun has started."""
    for name, value in alone_of_torchrun().items():
        monkeypatch.setenv(name, value)


def parts(sweep: Sweep) -> tuple[dict[Any, Any], list[RunSpec]]:
    task = sweep.prepared_task
    return {task.identify().ids: task}, missing_runs([sweep.plan()], {})


def by_key(executor: Any, specs: list[RunSpec]) -> dict[str, RunResult]:
    with executor:
        return {run.spec.key: run.result for runs in executor.run(specs) for run in runs}


@pytest.mark.usefixtures("alone")
def test_a_flag_stops_a_run_which_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """A fleet of the same run is told that the checkpoint is none of its own."""
    tasks, specs = parts(tiny_sweep(budget=Budget.steps(200), effective_learning_rates=[0.125], num_seeds=1))
    flag, told = StopFlag(), []
    folder = CheckpointFolder(path=tmp_path / "a.checkpoints", seconds=1e9)
    stopping = FleetOptions(checkpoints=folder, deadline=Deadline(stop=flag), on_steps=lambda *_: flag.set())
    with pytest.raises(StoppedFleet) as stopped:
        by_key(TorchrunExecutor(tasks, stopping), specs)
    assert stopped.value.is_saved
    assert folder.saved_runs() == {spec.key for spec in specs}
    assert folder.unfinished(specs, device=torch.device("cpu")) == []
    going_on = FleetOptions(checkpoints=folder, on_steps=lambda _size, num: told.append(num))
    assert by_key(TorchrunExecutor(tasks, going_on), specs) == by_key(TorchrunExecutor(tasks, FleetOptions()), specs)
    assert sum(told) == 199


@pytest.mark.usefixtures("alone")
def test_a_signal_to_another_process_alone_ends_the_call_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks, specs = parts(tiny_sweep(effective_learning_rates=[0.125], num_seeds=1))
    executor = TorchrunExecutor(tasks, FleetOptions())
    monkeypatch.setattr(Processes, "meet", lambda _self, *, stops=False: True)
    with pytest.raises(UserError, match="a signal asked another process to stop"):
        by_key(executor, specs)


@pytest.mark.usefixtures("alone")
def test_a_lost_process_ends_the_call_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks, specs = parts(tiny_sweep(effective_learning_rates=[0.125], num_seeds=1))
    executor = TorchrunExecutor(tasks, FleetOptions())

    def meet(_self: Processes, *, stops: bool = False) -> bool:
        raise LostProcess("Connection closed by peer")

    monkeypatch.setattr(Processes, "meet", meet)
    with pytest.raises(UserError, match=r"process 0 of 1 has lost another one.*Connection closed.*same command"):
        by_key(executor, specs)


def _raises() -> nn.Module:
    class Raises(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) == 16:
                raise ValueError("not sixteen")
            return super().forward(x)

    return Raises(2, 2)


@pytest.mark.usefixtures("alone")
def test_a_model_that_raises_costs_its_own_run_and_an_error_of_a_listener_passes_through() -> None:
    sweep = tiny_sweep(task=blobs_task(model=_raises), batch_sizes=[16, 8], effective_learning_rates=[0.125])
    tasks, specs = parts(dataclasses.replace(sweep, num_seeds=1))
    found = by_key(TorchrunExecutor(tasks, FleetOptions()), specs)
    outcomes = {spec.batch_size: (found[spec.key].outcome, found[spec.key].error) for spec in specs}
    assert outcomes == {8: (Outcome.FINISHED, None), 16: (Outcome.FAILED, "ValueError: not sixteen")}

    def listener(*_: object) -> None:
        raise KeyError("a listener's own")

    with pytest.raises(KeyError, match="a listener's own"):
        by_key(TorchrunExecutor(tasks, FleetOptions(on_steps=listener)), [s for s in specs if s.batch_size == 8])


@pytest.mark.usefixtures("alone", "study_folder")
def test_one_cell_by_the_command_line() -> None:
    options = ["--batch-size", "8", "--learning-rate", "0.1", "--steps", "3", "--store", "a.sqlite"]
    code, output = invoke("run", "--task", "mycode:task", *options, "--executor", "torchrun")
    assert code == 0, output
    assert [result.outcome for result in results_in(Path("a.sqlite")).values()] == [Outcome.FINISHED]


# -- what is refused ---------------------------------------------------------------------------------------------------


class _Silent(Processes):
    """One of two processes; nothing may be exchanged before a run is refused."""

    @classmethod
    def meeting(cls, *_: object, **__: object) -> Processes:
        return cls(rank=0, num=2)

    def sent(self, content: bytes = b"", *, source: int = 0) -> bytes:
        return content

    def meet(self, *, stops: bool = False) -> bool:
        return stops


@pytest.fixture
def first_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torchrun, "Processes", _Silent)


@pytest.mark.usefixtures("first_of_two")
def test_what_two_processes_cannot_share_is_refused_before_anything_is_trained() -> None:
    ghosts = cases_paper.image_task(cases_paper.SmallGhostNet)
    tasks, specs = parts(tiny_sweep(task=ghosts, batch_sizes=[16, 8]))
    with (
        TorchrunExecutor(tasks, FleetOptions()) as executor,
        pytest.raises(UserError, match=r"batch size 8: 2 processes .* a ghost batch of 8 .* at most 1 .* at least 16"),
    ):
        list(executor.run(specs))
    mixing = blobs_task(model=lambda: nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    tasks, specs = parts(tiny_sweep(task=mixing))
    with (
        TorchrunExecutor(tasks, FleetOptions()) as executor,
        pytest.raises(UserError, match=r"2 processes: .* BatchNorm1d normalises over all examples of a batch"),
    ):
        list(executor.run(specs))


@pytest.mark.usefixtures("first_of_two")
@pytest.mark.parametrize(
    ("choice", "options", "reason"),
    [
        ({"workers": 2}, {}, "torchrun starts the processes"),
        ({}, {"fleet_size": 4}, "one run after another"),
    ],
)
def test_options_of_other_executors_are_refused(choice: Any, options: Any, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        ExecutorChoice(name="torchrun", **choice).executor({}, FleetOptions(**options))


def test_torchrun_and_the_option_belong_together(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.argv", ["/bin/isotherm", "run", "a.toml", "--executor", "torchrun"])
    with pytest.raises(UserError, match=r"torchrun --nproc-per-node 2 -m isotherm run a\.toml --executor torchrun"):
        check_launch("torchrun")
    check_launch(None)
    for name, value in (("RANK", "1"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="add --executor torchrun"):
        check_launch("pool")
    check_launch("torchrun")
