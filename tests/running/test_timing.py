"""How times and speeds are read off the messages of fleets, by a clock that moves when told."""

from __future__ import annotations

import contextlib

import pytest

import cases
from helpers_bench import FakeClock, fake_turn
from isotherm.engine.placed_task import place_task
from isotherm.running.timing import WARM_MESSAGES, Enough, FleetTimer, Lap, LapListener, Staircase


class Heard:
    """A listener on a fleet of two runs, windows of 4 updates, and what it told."""

    def __init__(self, *, has_own_streams: bool = False) -> None:
        self.clock = FakeClock()
        self.laps: list[tuple[float, int, float]] = []
        self.evaluations: list[float] = []
        self.listener = LapListener(
            num_runs=2,
            updates_per_window=4,
            has_own_streams=has_own_streams,
            on_lap=lambda lap: self.laps.append((lap.seconds, lap.num_runs, lap.num_updates)),
            on_evaluation=self.evaluations.append,
            clock=self.clock,
        )

    def updated(self, num: int, seconds: float) -> None:
        self.clock.moves(seconds)
        self.listener.updated(num)

    def evaluated(self, index: int, seconds: float) -> None:
        self.clock.moves(seconds)
        self.listener.evaluated(index)


def test_a_lap_is_a_window_of_all_runs_and_evaluations_are_apart() -> None:
    heard = Heard()
    heard.updated(8, 1.0)
    heard.updated(4, 0.5)  # a window that an evaluation cut short
    for index in (0, 1):
        heard.evaluated(index, 0.25)
    heard.updated(8, 2.0)
    assert heard.laps == [(1.0, 2, 4.0), (2.5, 2, 6.0)]
    assert heard.evaluations == [0.5]


def test_runs_on_streams_of_their_own_make_one_lap_together() -> None:
    heard = Heard(has_own_streams=True)
    for _ in range(2):
        heard.updated(4, 1.0)
        heard.updated(4, 0.125)
    assert heard.laps == [(1.125, 2, 4.0)] * 2


def test_of_runs_that_are_trained_one_by_one_every_update_is_a_lap() -> None:
    heard = Heard()
    for _ in range(3):
        heard.updated(1, 0.5)
    heard.evaluated(0, 2.0)
    assert heard.laps == [(0.5, 1, 1.0)] * 3
    assert heard.evaluations == [2.0]


def test_time_windows_begin_warm_and_rest_between() -> None:
    found: list[float] = []
    clock = FakeClock()
    rest = fake_turn(2, 1.0, found)

    def turn(speed: float | None) -> float | None:
        clock.moves(100.0)
        return rest(speed)

    class Fake(FleetTimer):
        def run(self, on_lap, **_):  # type: ignore[no-untyped-def]
            before = clock.now
            with contextlib.suppress(Enough):
                # compiled; warm-up; window; warm-up; window
                for seconds in (60.0, 5.0, 0.5, 0.5, 7.0, 0.25, 0.25, 0.25, 0.25):
                    clock.moves(seconds)
                    elapsed, before = clock.now - before, clock.now
                    on_lap(Lap(seconds=elapsed, num_runs=2, num_updates=64.0))
                return False
            return True

    task = cases.blobs_task()
    Fake(place_task(task, precision="float64"), [cases.spec(task)]).speeds_in_turn(turn)
    assert found == [2 * 2 * 64 / 1.0, 4 * 2 * 64 / 1.0]


def test_a_real_fleet_is_timed_and_stopped() -> None:
    task = cases.blobs_task()
    specs = [cases.spec(task, seed=seed, num_steps=10**6) for seed in range(2)]
    found = FleetTimer(place_task(task, precision="float64"), specs).speeds(repeats=2, seconds=0.01)
    assert len(found) == 2
    assert min(found) > 0


def test_a_fleet_that_ends_too_early_is_an_error() -> None:
    task = cases.blobs_task()
    with pytest.raises(RuntimeError, match="ended before"):
        FleetTimer(place_task(task, precision="float64"), [cases.spec(task, num_steps=5)]).speeds(
            repeats=1, seconds=1.0
        )


def test_a_fleet_that_cannot_be_vectorised_is_timed_one_by_one() -> None:
    task = cases.unvectorisable_task()
    laps: list[Lap] = []

    def on_lap(lap: Lap) -> None:
        laps.append(lap)
        if len(laps) == 3:
            raise Enough

    specs = [cases.spec(task, seed=seed) for seed in range(2)]
    assert FleetTimer(place_task(task, precision="float64"), specs).run(on_lap)
    assert [(lap.num_runs, lap.run_updates) for lap in laps] == [(1, 1.0)] * 3


def test_two_workers_of_equal_pace_have_their_speed_whatever_the_phase() -> None:
    for phase in (0.05, 0.2, 0.35):
        clock = FakeClock()
        stairs = Staircase(num_workers=2, seconds=3.0, clock=clock)
        times = sorted([0.4 * n for n in range(40)] + [0.4 * n + phase for n in range(40)])
        for time in times:
            clock.now = time
            if stairs.told(100):
                break
        assert stairs.speed == pytest.approx(2 * 100 / 0.4, rel=0.02)


def test_a_window_is_as_long_as_asked_and_has_messages_of_everybody() -> None:
    clock = FakeClock()
    stairs = Staircase(num_workers=3, seconds=1.0, clock=clock)
    num = 1
    clock.moves(0.01)
    while not stairs.told(7):
        clock.moves(0.01)
        num += 1
    assert num == pytest.approx(WARM_MESSAGES * 3 + 101, abs=1)
    assert stairs.speed == pytest.approx(700.0)
