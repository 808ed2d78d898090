"""Where an estimate is not safe, a short timing says whether runs are trained together."""

from __future__ import annotations

import dataclasses
import logging

import pytest
import torch

import cases
from cases_layers import layer_task
from helpers_tasks import small_built_in
from isotherm.engine.placed_task import PlacedTask, place_task
from isotherm.running import fleet_size
from isotherm.running.executors.local import LocalExecutor
from isotherm.running.fleet_size import faster_size, is_safe, seconds_per_update
from isotherm.tasks.task import Task


def placed_of(task: Task) -> PlacedTask:
    return place_task(task, precision="float64")


def given_speeds(monkeypatch: pytest.MonkeyPatch, *, forward: float, updates: dict[int, float | None]) -> list[int]:
    """Let timing find these seconds; return which fleets were timed."""
    timed: list[int] = []

    def of_update(_placed: object, _spec: object, num_runs: int, **_: object) -> float | None:
        timed.append(num_runs)
        return updates[num_runs]

    monkeypatch.setattr(fleet_size, "_seconds_of_forward", lambda *_: forward)
    monkeypatch.setattr(fleet_size, "seconds_per_update", of_update)
    return timed


CONV = cases.conv_task()
LONG = cases.spec(CONV, num_steps=10_000)


@pytest.mark.parametrize(
    ("updates", "size"),
    [({1: 0.01, 16: 0.10}, 16), ({1: 0.01, 16: 0.17}, 1), ({1: 0.01, 16: None}, 16), ({1: None, 16: 0.1}, 16)],
    ids=["together", "one by one", "no fleet", "not even alone"],
)
def test_the_faster_way_is_chosen(monkeypatch: pytest.MonkeyPatch, updates: dict[int, float | None], size: int) -> None:
    given_speeds(monkeypatch, forward=0.001, updates=updates)
    assert faster_size(placed_of(CONV), LONG, 16) == size


def test_short_runs_and_safe_networks_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = given_speeds(monkeypatch, forward=0.001, updates={})
    assert faster_size(placed_of(CONV), dataclasses.replace(LONG, num_steps=100), 16) == 16
    assert faster_size(placed_of(cases.blobs_task()), LONG, 16) == 16
    assert faster_size(placed_of(CONV), LONG, 1) == 1
    assert timed == []


def test_updates_of_seconds_gain_nothing_from_company(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = given_speeds(monkeypatch, forward=1.0, updates={})
    assert faster_size(placed_of(CONV), LONG, 16) == 1
    assert timed == []


def test_long_updates_are_timed_with_fewer_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = given_speeds(monkeypatch, forward=0.1 / 3, updates={1: 0.1, 4: 0.2})
    assert faster_size(placed_of(CONV), LONG, 16) == 4
    assert timed == [1, 4]


def test_which_networks_are_safe() -> None:
    assert is_safe(placed_of(cases.blobs_task()))
    assert is_safe(placed_of(cases.batch_norm_task()))
    assert is_safe(placed_of(small_built_in("mlp_mnist1d")))
    for task in (CONV, layer_task("LSTM"), small_built_in("gpt_text"), cases.tied_task()):
        assert not is_safe(placed_of(task))


def test_fleets_are_timed_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="isotherm"):
        found = [seconds_per_update(placed_of(CONV), LONG, num) for num in (1, 3)]
        assert seconds_per_update(placed_of(cases.unvectorisable_task()), LONG, 2) is None
    assert caplog.text == ""
    assert all(seconds is not None and 0 < seconds < 10 for seconds in found)


def test_a_clock_is_read_after_every_lap() -> None:
    ticks = iter([10.0, 11.0, 11.5, 13.0, 14.0])
    assert seconds_per_update(placed_of(CONV), LONG, 2, clock=lambda: next(ticks)) == 0.25


def test_threads_are_as_before() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        faster_size(placed_of(CONV), dataclasses.replace(LONG, num_steps=1), 4, num_threads=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_executor_forms_fleets_of_the_faster_size(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [cases.spec(CONV, seed=seed, num_steps=10_000) for seed in range(6)]
    given_speeds(monkeypatch, forward=0.001, updates={1: 0.01, 28: 1.0})
    executor = LocalExecutor({CONV.identify().ids: CONV})
    assert [len(fleet) for fleet in executor.fleets(specs)] == [1] * 6
    given_speeds(monkeypatch, forward=0.001, updates={1: 0.01, 28: 0.1})
    executor = LocalExecutor({CONV.identify().ids: CONV})
    assert [len(fleet) for fleet in executor.fleets(specs)] == [6]
