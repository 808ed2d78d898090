"""The file beside a store that says what is being trained."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from helpers_protocol import finished, make_spec, tiny_sweep
from isotherm.core.records import CurvePoint
from isotherm.core.run_keys import cell_id
from isotherm.running.executors.fleet_times import work_of_fleet
from isotherm.running.heartbeat import Heartbeat, Training, heartbeat_path, read_training
from isotherm.running.progress import Several
from isotherm.running.runner import run
from isotherm.running.store import Store, StoredRun
from isotherm.sweep.growth import Stage
from isotherm.sweep.rounds import Round

SPECS = [make_spec(seed=seed) for seed in range(4)]
ROUND = Round(number=1, stages=(Stage.EXTENSION,), specs=tuple(SPECS))


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def stored(index: int) -> StoredRun:
    return StoredRun(spec=SPECS[index], result=finished(), provenance={})


def test_the_file_tells_of_runs_in_training_and_is_gone_afterwards(tmp_path: Path) -> None:
    clock, store = Clock(), tmp_path / "a.sqlite"
    with Heartbeat(store, num_workers=2, seconds=0.0, clock=clock) as beat:
        beat.round_started(ROUND)
        beat.fleet_started(SPECS[:3])
        clock.now += 10
        beat.advanced(work_of_fleet(SPECS) / 4)
        beat.evaluated(SPECS[0], CurvePoint(step=5, test_loss=0.5, test_metric=math.nan))
        beat.evaluated(SPECS[3], CurvePoint(step=5, test_loss=0.5, test_metric=0.1))  # not in training
        beat.runs_done([stored(1)])
        told = read_training(store)
        assert told is not None
        assert set(told.running) == {SPECS[0].key, SPECS[2].key}
        (point,) = told.running[SPECS[0].key].curve
        assert told.running[SPECS[0].key].cell == cell_id(SPECS[0]).hex()
        assert (point.step, point.test_loss) == (5, 0.5)
        assert math.isnan(point.test_metric)
        assert (told.round, told.num_runs, told.num_done, told.num_workers) == ("round 1, extension", 4, 1, 2)
        assert told.seconds_left == pytest.approx(30.0)
        assert told.runs_per_minute == pytest.approx(6.0)
        assert told.is_alive(clock.now)
    assert read_training(store) is None
    assert not list(tmp_path.iterdir())


def test_a_new_round_adds_to_the_total_and_forgets_what_was_in_training(tmp_path: Path) -> None:
    with Heartbeat(tmp_path / "a.sqlite", seconds=0.0) as beat:
        beat.round_started(ROUND)
        beat.fleet_started(SPECS)
        beat.advanced(work_of_fleet(SPECS))
        beat.round_started(ROUND)
        told = read_training(tmp_path / "a.sqlite")
    assert told is not None
    assert not told.running
    assert told.num_runs == 8
    assert told.total_work == 2 * work_of_fleet(SPECS)


def test_it_is_written_no_more_often_than_asked(tmp_path: Path) -> None:
    clock = Clock()
    with Heartbeat(tmp_path / "a.sqlite", seconds=5.0, clock=clock) as beat:
        beat.advanced(1.0)
        first = read_training(tmp_path / "a.sqlite")
        clock.now += 6
        beat.advanced(1.0)
        second = read_training(tmp_path / "a.sqlite")
        clock.now -= 3600  # somebody sets the clock back
        beat.advanced(1.0)
        third = read_training(tmp_path / "a.sqlite")
    assert first is not None
    assert second is not None
    assert third is not None
    assert (first.work, second.work, third.work) == (0.0, 2.0, 3.0)


def test_what_cannot_be_written_harms_nobody(tmp_path: Path) -> None:
    with Heartbeat(tmp_path / "no such folder" / "a.sqlite", seconds=0.0) as beat:
        beat.round_started(ROUND)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"running": []}',
        "[" * 100_000,
        '{"running": {}, "process": 1e999}',
        '{"running": {"a": [[1]]}}',
        '{"running": {}, "process": "x", "host": 1}',
    ],
)
def test_a_damaged_file_is_none(tmp_path: Path, text: str) -> None:
    heartbeat_path(tmp_path / "a.sqlite").write_text(text)
    assert read_training(tmp_path / "a.sqlite") is None


def training(**changes: object) -> Training:
    fields = {
        "process": os.getpid(),
        "host": os.uname().nodename,
        "num_workers": 1,
        "started_at": 0.0,
        "told_at": 0.0,
        "round": "",
        "num_runs": 0,
        "num_done": 0,
        "work": 0.0,
        "total_work": 0.0,
    }
    return Training(**(fields | changes))  # type: ignore[arg-type]


def test_whether_a_process_still_runs() -> None:
    assert training().is_alive(1e9)  # silent for long, but there
    assert not training(process=2**22 + 1).is_alive(0.0)
    assert not training(process=-1).is_alive(0.0)
    assert not training(process=2**80).is_alive(0.0)
    assert training(host="elsewhere", process=2**22 + 1).is_alive(60.0)
    assert not training(host="elsewhere").is_alive(1e6)


def test_nothing_is_said_of_speed_before_there_is_any() -> None:
    idle = training(told_at=10.0, total_work=100.0)
    assert (idle.work_per_second, idle.seconds_left, idle.runs_per_minute) == (None, None, None)


class Reader:
    """Reads the file whenever a fleet starts, as a page does from another process."""

    def __init__(self, store: Path) -> None:
        self.store, self.seen = store, list[Training | None]()

    def __getattr__(self, _: str) -> object:
        return lambda *_: self.seen.append(read_training(self.store))


def test_a_sweep_writes_it_while_it_runs(tmp_path: Path) -> None:
    store, sweep = tmp_path / "a.sqlite", tiny_sweep()
    reader = Reader(store)
    results = run(sweep, store=store, progress=reader)  # type: ignore[arg-type]
    told = [training for training in reader.seen if training is not None]
    assert told
    assert {one.process for one in told} == {os.getpid()}
    assert heartbeat_path(store).exists() is False
    with Store.read(store) as opened:
        assert len(opened.results()) == len(results.runs())


def test_several_listeners_hear_the_same_and_nobody_is_fine(tmp_path: Path) -> None:
    one, other = (Heartbeat(tmp_path / name, seconds=0.0) for name in ("a", "b"))
    told = Several(None, one)
    told.add(other)
    told.round_started(ROUND)
    told.fleet_started(SPECS[:1])
    told.advanced(3.0)
    told.evaluated(SPECS[0], CurvePoint(step=1, test_loss=0.1, test_metric=0.2))
    told.noted("a sentence")
    told.runs_done([stored(1)])
    contents = [json.loads(heartbeat_path(tmp_path / name).read_text()) for name in ("a", "b")]
    for content in contents:
        assert content["work"] == 3.0
        assert list(content["running"]) == [SPECS[0].key]
        assert content["num_done"] == 1
