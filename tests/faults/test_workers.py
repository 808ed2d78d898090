"""Models that take their worker down with them: the sweep goes on, and says what happened."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from helpers_engines import assert_same_result
from helpers_faults import (
    BAD_BATCH_SIZE,
    BAD_SIZES,
    assert_only_bad_runs_failed,
    assert_same_rows,
    exits,
    faulty_sweep,
    finds_no_memory,
    hangs,
    healthy,
    in_one_process,
    is_killed,
    leaks,
    leaves_python,
    once,
    raises_at_length,
    raises_no_exception,
    raises_unspeakably,
    rows,
    rows_without_fault,
    wants_half_precision,
    wants_no_gradients,
)
from helpers_protocol import Recorder, blobs_task, tiny_sweep
from isotherm.core.budget import Budget
from isotherm.core.records import Outcome
from isotherm.errors import UserError
from isotherm.running.executors import dispatch
from isotherm.running.executors.fleet_times import work_of
from isotherm.running.runner import run
from isotherm.running.store import Store
from isotherm.sweep.sweep import Sweep

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux"),
    pytest.mark.filterwarnings("ignore::isotherm.errors.UnseenWarning"),  # faults depend on the process they are in
]


ONE_EACH = {"effective_learning_rates": [0.25], "num_seeds": 1}


@pytest.fixture(autouse=True, scope="module")
def _warm() -> None:
    """Let this process train first: PyTorch's first fleet takes seconds, and a worker is as warm as its parent."""
    rows_without_fault()


@pytest.mark.parametrize(
    ("fault", "reason"), [(exits, "exit code 7"), (is_killed, "killed by SIGKILL, often because memory ran out")]
)
def test_a_worker_that_dies_at_one_batch_size_costs_those_runs_alone(
    fault: Callable[[], None], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder()
    store = tmp_path / "a.sqlite"
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        results = run(faulty_sweep(fault), workers=2, store=store, progress=recorder)
    assert_only_bad_runs_failed(results, reason=reason)
    assert "a fleet of 6 runs of task 'blobs' at batch size 12 was lost" in caplog.text
    assert "it is tried again" in caplog.text
    assert "its runs are tried one by one" in caplog.text
    assert recorder.work == sum(work_of(s.batch_size, s.num_steps) for s in recorder.specs if s.batch_size != 12)
    with Store.read(store) as opened:
        failed = [stored for stored in opened.runs() if stored.result.outcome is Outcome.FAILED]
        assert len(failed) == 6
        assert all(stored.provenance["torch"] == torch.__version__ for stored in failed)


def test_failed_runs_are_tried_again_and_the_rest_is_not(tmp_path: Path) -> None:
    store, recorder = tmp_path / "a.sqlite", Recorder()
    sweep = faulty_sweep(exits)
    first = run(sweep, workers=2, store=store)
    again = run(sweep, workers=2, store=store, progress=recorder)
    assert {spec.batch_size for spec in recorder.specs} == {12}
    outcomes = [{name: result.outcome for name, result in rows(results).items()} for results in (first, again)]
    assert outcomes[0] == outcomes[1]


def test_a_worker_that_dies_once_costs_nothing(tmp_path: Path) -> None:
    recorder = Recorder()
    results = run(faulty_sweep(once(is_killed, tmp_path / "marker")), workers=2, progress=recorder)
    assert (tmp_path / "marker").exists()
    assert rows(results) == rows_without_fault()
    assert recorder.work == sum(work_of(s.batch_size, s.num_steps) for s in recorder.specs)


def test_another_worker_tries_what_one_has_no_memory_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The fleet is halved down to single runs first; whoever filled the memory, the worker ends with it."""
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        results = run(faulty_sweep(in_one_process(finds_no_memory, tmp_path / "marker")), workers=2)
    assert "out of memory with 3 runs; continuing with 1" in caplog.text
    assert "was lost: one run of task 'blobs' at batch size 12 does not fit into the memory" in caplog.text
    assert "it is tried again" in caplog.text
    assert_same_rows(results, rows_without_fault())


def test_a_run_that_no_worker_has_memory_for_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        results = run(faulty_sweep(finds_no_memory, **ONE_EACH), workers=2)
    assert "it is tried again" in caplog.text
    assert_only_bad_runs_failed(results, reason="does not fit into the memory", num_failed=1)


def test_a_model_that_leaks_memory_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        results = run(faulty_sweep(leaks, budget=Budget.steps(40), **ONE_EACH), workers=2)
    assert "it is tried again" in caplog.text
    outcomes = {spec.batch_size: results.by_key[key] for key, spec in results.runs().items()}
    assert "does not fit into the memory" in str(outcomes.pop(BAD_BATCH_SIZE).error)
    assert {result.outcome for result in outcomes.values()} == {Outcome.FINISHED}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("fault", "name"),
    [(wants_half_precision, "torch.set_default_dtype"), (wants_no_gradients, "torch.set_grad_enabled")],
)
def test_what_a_model_sets_for_its_process_changes_no_other_run(
    fault: Callable[[], None], name: str, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    before = torch.get_default_dtype(), torch.is_grad_enabled()
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        results = run(faulty_sweep(fault, also_here=True), workers=workers)
    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == before
    assert f"task 'blobs' calls {name} in its model, which would change every other run" in caplog.text
    expected, found = rows_without_fault(), rows(results)
    others = [run_ for run_ in expected if run_[0] != BAD_BATCH_SIZE]
    assert len(others) == 12
    assert all(found[run_] == expected[run_] for run_ in others)


def test_a_worker_killed_from_outside_is_replaced(tmp_path: Path) -> None:
    """Again and again, while the sweep goes on; a fleet that is hit twice in a row goes on run by run."""
    killed: list[int] = []

    class Killer(Recorder):
        def fleet_started(self, specs: object) -> None:
            if len(killed) < 4:
                children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
                for pid in [int(child) for child in children if int(child) not in killed][:1]:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    results = run(faulty_sweep(healthy), workers=2, fleet_size=3, progress=Killer())
    assert len(killed) == 4
    assert results.counts() == {"finished": 18, "diverged": 0, "failed": 0, "missing": 0}
    assert_same_rows(results, rows_without_fault())


def test_a_model_that_hangs_is_ended_by_the_run_timeout() -> None:
    results = run(faulty_sweep(hangs, **ONE_EACH), workers=2, run_timeout=3 / 60)
    assert_only_bad_runs_failed(results, reason="no progress for ", num_failed=1)


def test_a_model_that_hangs_is_warned_of(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(dispatch, "NO_PROGRESS_SECONDS", 1.0)
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        run(faulty_sweep(hangs, **ONE_EACH), workers=2, run_timeout=3 / 60)
    lines = [record.getMessage() for record in caplog.records if "has made no update" in record.getMessage()]
    assert lines, caplog.text
    assert all("one run of task 'blobs' at batch size 12 (process " in line for line in lines)
    assert all("--run-timeout" in line for line in lines)


def test_a_timeout_needs_workers() -> None:
    with pytest.raises(UserError, match=r"executor pool, in Python executor='pool'"):
        run(faulty_sweep(healthy), run_timeout=1.0)
    with pytest.raises(UserError, match="is no time"):
        run(faulty_sweep(healthy), workers=2, run_timeout=0.0)


def test_more_threads_are_refused_in_a_worker_instead_of_a_deadlock(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        results = run(faulty_sweep(lambda: torch.set_num_threads(2)), workers=2, run_timeout=1.0)
    assert results.counts()["finished"] == 18
    assert "torch.set_num_threads(2) has no effect in a worker" in caplog.text
    assert rows(results) == rows_without_fault()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (leaves_python, "SystemExit: 3"),
        (raises_unspeakably, "Unspeakable: (its message cannot be shown)"),
        (raises_no_exception, "NoException: odd"),
        (raises_at_length, "[98,004 characters left out]"),
    ],
)
def test_what_a_model_raises_is_the_reason_of_its_runs(fault: Callable[[], None], reason: str, workers: int) -> None:
    assert_only_bad_runs_failed(run(faulty_sweep(fault, also_here=True), workers=workers), reason=reason)


class Breaking(nn.Module):
    """Returns NaN in training at the bad batch size, in a worker, from the moment its bias has moved a little."""

    def __init__(self, *, driver: int) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        nn.init.zeros_(self.layer.bias)
        self.driver = driver

    def forward(self, x: Tensor) -> Tensor:
        output = self.layer(x)
        if self.training and x.shape[0] in BAD_SIZES and os.getpid() != self.driver:
            return torch.where(self.layer.bias.abs().sum() > 0.02, torch.nan, output)
        return output


def test_a_model_that_returns_nan_in_the_middle_diverges_in_a_worker_and_no_other_run_does() -> None:
    """A value like any other: no worker is lost, and the same process would have found it at the same update."""

    def sweep(driver: int) -> Sweep:
        task = blobs_task(model=lambda: Breaking(driver=driver))
        sizes, rates = [8, BAD_BATCH_SIZE, 32], [0.25, 0.3]
        return tiny_sweep(task=task, batch_sizes=sizes, effective_learning_rates=rates, budget=Budget.steps(40))

    recorder = Recorder()
    found = rows(run(sweep(os.getpid()), workers=2, progress=recorder))
    alone = rows(run(sweep(0)))
    assert found.keys() == alone.keys()
    for (batch_size, *_), result in found.items():
        is_bad = batch_size == BAD_BATCH_SIZE
        assert result.outcome is (Outcome.DIVERGED if is_bad else Outcome.FINISHED)
        assert result.error is None
    steps = {result.divergence_step for name, result in found.items() if name[0] == BAD_BATCH_SIZE}
    assert all(step is not None and 1 < step < 40 for step in steps)
    for name, result in found.items():
        assert_same_result(result, alone[name])
    assert recorder.notes == []


def test_a_model_that_changes_the_folder_moves_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    away.mkdir()
    monkeypatch.chdir(home)

    class Wandering(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            os.chdir(away)
            self.layer = torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    for workers in (1, 2):
        run(tiny_sweep(task=blobs_task(model=Wandering)), store="a.sqlite", workers=workers, checkpoint_seconds=1e-9)
        assert Path.cwd() == home
    assert [file.name for file in home.iterdir() if file.suffix == ".sqlite"] == ["a.sqlite"]
    assert list(away.iterdir()) == []
