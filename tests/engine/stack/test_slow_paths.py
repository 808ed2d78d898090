"""A slow path is right, and said once with its factor; nothing of PyTorch's own wording is seen."""

import dataclasses
import logging
import re

import pytest
import torch
from torch import Tensor, nn

import cases
from helpers_engines import assert_same, by_fleet, by_reference
from isotherm.engine.fleet import TIME_IN_TURN
from isotherm.engine.fleet_checks import FleetChecks
from isotherm.engine.placed_task import place_task
from isotherm.engine.stack import slow_paths
from isotherm.engine.stack.slow_paths import shortest_time
from isotherm.kernels.saved_checks import SavedChecks


class WithoutRule(nn.Module):
    """Calls an operation for which `vmap` has no batching rule."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.clone().remainder_(2.0))


def specs_of(task, num: int = 3):
    return [cases.spec(task, seed=seed, num_steps=5, num_evaluations=1) for seed in range(num)]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "isotherm"]


def test_an_operation_without_a_rule_is_said_once_with_its_factor(caplog, recwarn):
    task = dataclasses.replace(cases.blobs_task(), model=WithoutRule)
    placed, checks = place_task(task, precision="float64"), FleetChecks()
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        for _ in range(2):
            ours = by_fleet(placed, specs_of(task), checks=checks)
    assert_same(ours, [by_reference(placed, spec) for spec in specs_of(task)])
    [text] = lines(caplog)
    assert "run by run" in text
    assert re.search(r"a fleet of 3 computes gradients [\d.]+ times as fast as one run after another does", text)
    assert not recwarn.list
    assert torch._C._functorch._is_vmap_fallback_enabled()


def test_a_model_with_rules_for_all_has_nothing_said(caplog):
    task = cases.dropout_task()
    by_fleet(place_task(task, precision="float64"), specs_of(task))
    assert lines(caplog) == []


def test_one_at_a_time_is_said_once_with_its_factor(caplog, recwarn):
    task = cases.unvectorisable_task()
    placed, checks = place_task(task, precision="float64"), FleetChecks()
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        for _ in range(2):
            by_fleet(placed, specs_of(task, 2), checks=checks)
    [text] = lines(caplog)
    assert "one run at a time" in text
    assert text.endswith(TIME_IN_TURN)
    assert "github.com" not in text
    assert not recwarn.list


def test_the_factor_is_that_of_the_users_own_model(caplog, monkeypatch):
    """Three runs take 2 s one after another and 0.5 s as a fleet, or the other way round; nothing of other networks."""
    task = dataclasses.replace(cases.blobs_task(), model=WithoutRule)
    placed = place_task(task, precision="float64")
    plain = by_fleet(placed, specs_of(task))
    for alone, together, factor in ((2.0 / 3, 0.5, "4"), (0.5 / 3, 2.0, "0.25")):
        seconds = iter([alone, together])
        monkeypatch.setattr(slow_paths, "shortest_time", lambda call, seconds=seconds, **_: (call(), next(seconds))[1])
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="isotherm"):
            assert_same(by_fleet(placed, specs_of(task)), plain)
        [text] = lines(caplog)
        said = f"a fleet of 3 computes gradients {factor} times as fast as one run after another does (measured, B = "
        assert said in text
        assert "MLP" not in text


class FakeGpu:
    """Queues work and does it when it is waited for."""

    def __init__(self) -> None:
        self.now, self.queued = 0.0, 0.0

    def work(self) -> None:
        self.now += 0.001  # to launch it
        self.queued += 2.0

    def finish(self) -> None:
        self.now += self.queued
        self.queued = 0.0

    def clock(self) -> float:
        return self.now


def test_the_time_of_a_gpu_is_that_of_its_work_not_of_the_launch():
    gpu = FakeGpu()
    gpu.work()  # of somebody else, before
    assert shortest_time(gpu.work, finish=gpu.finish, clock=gpu.clock) == pytest.approx(2.001)


@pytest.mark.parametrize(("seconds", "num_calls"), [(0.001, 4), (0.1, 3), (0.2, 2), (60.0, 2)])
def test_timing_takes_a_fraction_of_a_second_where_updates_do(seconds, num_calls):
    """The first call may prepare something, so there are always two."""
    calls, now = [], [0.0]

    def call() -> None:
        calls.append(now[0])
        now[0] += seconds * (3 if len(calls) == 1 and seconds < 0.01 else 1)

    assert shortest_time(call, finish=lambda: None, clock=lambda: now[0]) == pytest.approx(seconds)
    assert len(calls) == num_calls


def test_the_program_of_a_gpu_has_its_factor_said_too_in_every_process(caplog, tmp_path):
    """Mixed precision takes the path of a GPU; a check that is remembered on disk would leave nothing to say."""
    task = dataclasses.replace(cases.blobs_task(), model=WithoutRule)
    placed = place_task(task, precision="mixed")
    specs = [dataclasses.replace(spec, precision="mixed") for spec in specs_of(task)]
    for _ in range(2):
        checks = FleetChecks(saved=SavedChecks(folder=tmp_path), name="slow", is_built_in=False)
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="isotherm"):
            for _ in range(2):
                by_fleet(placed, specs, checks=checks)
        [text] = lines(caplog)
        assert re.search(r"a fleet of 2 computes gradients [\d.]+ times as fast as one run after another does", text)
