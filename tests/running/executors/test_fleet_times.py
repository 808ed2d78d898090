from __future__ import annotations

import pickle

import pytest

from helpers_protocol import make_spec
from isotherm.engine.deadline import Deadline
from isotherm.running.executors.fleet_times import FleetTimes, StoppedFleet, work_of, work_of_fleet

CLOCK = "isotherm.running.executors.fleet_times.time.monotonic"


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    time = [0.0]
    monkeypatch.setattr(CLOCK, lambda: time[0])
    monkeypatch.setattr("isotherm.engine.deadline.time.monotonic", lambda: time[0])
    return time


def test_work_of_a_fleet_is_that_of_its_runs() -> None:
    assert work_of_fleet([make_spec(), make_spec(seed=1)]) == 2 * work_of(16, 10)


def test_the_first_fleet_starts_if_there_is_any_time(now: list[float]) -> None:
    FleetTimes(Deadline(at=0.1)).start([make_spec()], is_saved=False)
    with pytest.raises(StoppedFleet):
        FleetTimes(Deadline(at=0.0)).start([make_spec()], is_saved=True)


def test_a_saved_fleet_needs_the_time_of_a_start(now: list[float]) -> None:
    times = FleetTimes(Deadline(at=100.0))
    times.start([make_spec()], is_saved=True)
    now[0] = 20.0
    times.first_update()
    now[0] = 79.0
    times.first_update()
    times.start([make_spec()], is_saved=True)
    now[0] = 80.0
    with pytest.raises(StoppedFleet):
        times.start([make_spec()], is_saved=True)


def test_a_fleet_that_is_not_saved_has_to_be_done_in_time(now: list[float]) -> None:
    times = FleetTimes(Deadline(at=100.0))
    specs = [make_spec(seed=seed) for seed in range(2)]
    times.start(specs, is_saved=False)
    now[0] = 40.0
    times.finish(specs)
    times.start([*specs, make_spec(seed=2)][:2], is_saved=False)
    with pytest.raises(StoppedFleet):
        times.start([*specs, make_spec(seed=2)], is_saved=False)


def test_what_stops_a_worker_can_be_sent() -> None:
    sent = pickle.loads(pickle.dumps(StoppedFleet([], is_saved=True)))
    assert isinstance(sent, StoppedFleet)
    assert (sent.done, sent.is_saved) == ([], True)
