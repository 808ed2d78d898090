"""How speeds are read off the messages of fleets, by a clock that moves when told."""

from __future__ import annotations

import contextlib
import logging
from itertools import count

import pytest

from helpers_bench import MLP, FakeClock, fake_turn
from isotherm.bench import fleet
from isotherm.bench.fleet import ROUND, Staircase, fleet_speeds, refusing_warnings, specs_of
from isotherm.engine.placed_task import place_task
from isotherm.tasks.builtin import made_task


def test_windows_between_rounds_of_all_runs() -> None:
    clock, found = FakeClock(), []
    windows = fleet._Windows(fake_turn(2, 1.0, found), num_runs=2, clock=clock)
    seconds_per_round = iter([60.0, 5.0, 0.5, 0.5, 7.0, 0.25, 0.25, 0.25, 0.25])  # compiled; warm-up; window; again
    with contextlib.suppress(fleet._Enough):
        for run in count():
            if run % 2 == 1:
                clock.moves(next(seconds_per_round))
            windows(ROUND)
    assert found == [4 * ROUND / 1.0, 8 * ROUND / 1.0]


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
    assert num == pytest.approx(fleet.WARM_MESSAGES * 3 + 101, abs=1)
    assert stairs.speed == pytest.approx(700.0)


def test_a_real_fleet_is_timed_and_broken_off() -> None:
    task = made_task("mlp_mnist1d")
    specs = specs_of(MLP, task)
    assert [spec.seed for spec in specs] == [0, 0, 1, 1]
    assert [spec.effective_learning_rate for spec in specs[:2]] == [2.0**-3, 2.0**-4]
    found = fleet_speeds(place_task(task, precision="float32"), specs, repeats=2, seconds=0.01)
    assert len(found) == 2
    assert min(found) > 0


def test_a_warning_of_the_engine_is_an_error() -> None:
    logger = logging.getLogger("isotherm")
    with refusing_warnings(), pytest.raises(RuntimeError, match="one run at a time"):
        logger.warning("training one run at a time, as %s", "it must")
    assert not any(isinstance(handler, fleet._Refusal) for handler in logger.handlers)
