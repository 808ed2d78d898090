from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

import cases
from helpers_deadline import AfterQuestions
from isotherm.core.records import Outcome, RunResult
from isotherm.engine.checkpoint import Checkpoint
from isotherm.engine.deadline import Deadline, Laps, OutOfTime, train_in_turn
from isotherm.engine.fleet import run_fleet
from isotherm.engine.placed_task import place_task

DONE = RunResult(outcome=Outcome.FINISHED)


def test_a_little_of_the_time_is_reserved() -> None:
    assert 97.5 < Deadline.after(100.0).seconds_left <= 98.0
    assert 3589.5 < Deadline.after(3600.0).seconds_left <= 3590.0


def test_without_a_deadline_there_is_always_time() -> None:
    Deadline().check()
    assert Laps(Deadline()).another_fits(reserved=1e9)


def test_no_time_is_left_after_the_deadline() -> None:
    with pytest.raises(OutOfTime):
        Deadline(at=time.monotonic()).check()


def test_a_lap_that_compiled_does_not_count_once_there_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("isotherm.engine.deadline.time.monotonic", lambda: now)
    laps = Laps(Deadline(at=100.0))
    now = 60.0
    assert not laps.another_fits(reserved=0.0)  # as far as is known
    now = 61.0
    assert laps.another_fits(reserved=0.0)
    now = 98.0 - 2.0
    assert not laps.another_fits(reserved=0.0)  # the longest counts, 35 s
    assert not Laps(Deadline(at=100.0)).another_fits(reserved=4.0)


def test_runs_in_turn_stop_with_those_that_are_done() -> None:
    def last() -> RunResult:
        raise OutOfTime

    with pytest.raises(OutOfTime) as stop:
        train_in_turn([lambda: DONE, lambda: DONE, last], Deadline())
    assert stop.value.results == (DONE, DONE)


def test_a_run_that_would_not_be_done_in_time_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("isotherm.engine.deadline.time.monotonic", lambda: now)

    def run(seconds: float) -> RunResult:
        nonlocal now
        now += seconds
        return DONE

    with pytest.raises(OutOfTime) as stop:
        train_in_turn([partial(run, 30.0), partial(run, 40.0), partial(run, 30.0)], Deadline(at=100.0))
    assert len(stop.value.results) == 2
    assert now == 70.0


def test_a_fleet_out_of_time_is_saved_and_goes_on_to_the_very_bits(tmp_path: Path) -> None:
    task = cases.blobs_task()
    placed = place_task(task, precision="float64")
    specs = [cases.spec(task, seed=seed, num_steps=12) for seed in range(3)]
    checkpoint = Checkpoint(tmp_path / "fleet", seconds=1e9, identity="fleet")
    with pytest.raises(OutOfTime) as stop:
        run_fleet(placed, specs, checkpoint=checkpoint, updates_per_window=4, deadline=AfterQuestions(num=1))
    assert stop.value.is_saved
    again = Checkpoint(tmp_path / "fleet", seconds=1e9, identity="fleet")
    steps: list[int] = []
    resumed = run_fleet(placed, specs, checkpoint=again, updates_per_window=4, on_steps=steps.append)
    assert sum(steps) == 3 * 4  # two of three windows were saved
    assert resumed == run_fleet(placed, specs, updates_per_window=4)


def test_a_fleet_without_a_checkpoint_is_not_saved() -> None:
    task = cases.blobs_task()
    with pytest.raises(OutOfTime) as stop:
        run_fleet(
            place_task(task, precision="float64"),
            [cases.spec(task, num_steps=12)],
            updates_per_window=4,
            deadline=AfterQuestions(num=0),
        )
    assert not stop.value.is_saved


def test_a_fleet_whose_last_window_is_done_is_finished(tmp_path: Path) -> None:
    task = cases.blobs_task()
    placed = place_task(task, precision="float64")
    specs = [cases.spec(task, num_steps=4)]
    checkpoint = Checkpoint(tmp_path / "fleet", seconds=1e9, identity="fleet")
    (result,) = run_fleet(placed, specs, checkpoint=checkpoint, updates_per_window=4, deadline=AfterQuestions(num=0))
    assert result.outcome is Outcome.FINISHED
