"""Whether a diagnosis keeps to its minutes and makes use of them, on machines with simulated time."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cases import blobs, build_mlp, classification
from helpers_machine import Machine
from isotherm.diagnose import DiagnoseOptions, Diagnosis, diagnose
from isotherm.diagnose.grids import LONGEST_PART
from isotherm.diagnose.stability import STABILITY_STEPS
from isotherm.errors import UserError
from isotherm.tasks.task import Task

EPOCHS = 10
# The most that may be spent, and the least where there is more to do, as parts of what was given.
MOST_SPENT, LEAST_SPENT = 1.2, 0.6
# Updates before the first look at the clock.
FIRST_UPDATES = 8

# Prices in seconds, and minutes that allow for little, for some, and for all there is to do.
CORE = {"start_up": 0.3, "update": 2e-4, "example": 2e-6}
GPU = {"start_up": 2.0, "update": 3e-4, "example": 1e-8}
LARGE_NETWORK = {"start_up": 1.0, "update": 0.01, "example": 1e-3}
MACHINES = [
    pytest.param(CORE, (0.2, 0.5, 1.0, 2.0, 3.0), id="core"),
    pytest.param(GPU, (0.8, 2.0, 3.0, 4.0, 6.0), id="gpu"),
    pytest.param(LARGE_NETWORK, (25.0, 80.0, 200.0, 300.0, 1500.0), id="large network"),
]


class Slower:
    """Everything takes longer from a time on."""

    def __init__(self, factor: float, after: float) -> None:
        self._factor, self._after = factor, after

    def __call__(self, time: float) -> float:
        return self._factor if time > self._after else 1.0


CHANGES = {
    "steady": {},
    "slower half-way": {"slower": (2.0, 0.5)},
    "slower in the last fifth": {"slower": (2.0, 0.8)},
    "quicker than the first look": {"first_look": 3.0},
    "slower than the first look": {"first_look": 1 / 3},
    "a bad guess": {"guess": 1e3},
    "a bad guess, slower half-way": {"guess": 1e-3, "slower": (2.0, 0.5)},
    "costly curvature, slower at the end": {"product": 1000.0, "slower": (2.0, 0.8)},
}


@pytest.fixture(scope="module")
def task() -> Task:
    return classification("blobs", build_mlp, train=blobs(20_000, seed=0))


def spend(task: Task, minutes: float, **prices: Any) -> tuple[Diagnosis | str, Machine]:
    """Return the diagnosis, or why it was refused, and the machine with the time it took."""
    factor, after = prices.pop("slower", (1.0, 0.0))
    machine = Machine(**prices, pace=Slower(factor, after * 60 * minutes))
    with pytest.MonkeyPatch.context() as patch:
        machine.install(patch)
        patch.setattr("isotherm.diagnose.peak_fit.NUM_DRAWS", 10)  # the uncertainty takes no simulated time
        try:
            return diagnose(task, DiagnoseOptions(epochs=EPOCHS, minutes=minutes), _now=machine), machine
        except UserError as error:
            return str(error), machine


def has_all(found: Diagnosis) -> bool:
    """Tell whether runs are as long as they become with any time, to a tenth."""
    return found.isotherm.longest_part >= 0.9 * LONGEST_PART and all(
        stable.num_steps >= 0.9 * STABILITY_STEPS for stable in found.stability
    )


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("prices", "budgets"), MACHINES)
def test_the_time_is_kept_and_used(
    task: Task, prices: dict[str, float], budgets: tuple[float, ...], change: str
) -> None:
    done = []
    for minutes in budgets:
        found, machine = spend(task, minutes, **prices, **CHANGES[change])
        part = machine.time / 60 / minutes
        assert part <= MOST_SPENT, minutes
        if isinstance(found, Diagnosis):
            assert found.cost.seconds == pytest.approx(machine.time)
            assert part >= LEAST_SPENT or has_all(found), minutes
            done.append(has_all(found))
        else:
            assert "is too short on this machine" in found
            assert not done, minutes  # more time is not refused where less was enough
    assert done[-1]
    assert len(done) >= 3


@pytest.mark.parametrize("change", ["steady", "slower half-way", "quicker than the first look"])
@pytest.mark.parametrize(("prices", "budgets"), MACHINES)
def test_too_short_a_time_is_refused_before_it_is_spent(
    task: Task, prices: dict[str, float], budgets: tuple[float, ...], change: str
) -> None:
    """Only the start of one fleet cannot be broken off."""
    first = CHANGES[change].get("first_look", 1.0) * (
        prices["start_up"] + FIRST_UPDATES * (prices["update"] + 8 * 8 * prices["example"])
    )
    for part in (1e-4, 0.01, 0.05, 0.2, 0.4):
        minutes = part * budgets[0]
        found, machine = spend(task, minutes, **prices, **CHANGES[change])
        assert isinstance(found, str)
        assert f"minutes={minutes:.3g} is too short on this machine; give at least" in found
        assert machine.time <= max(MOST_SPENT * 60 * minutes, 2 * first)
        if 60 * minutes > 2 * first:
            assert machine.time <= 60 * minutes


@pytest.mark.parametrize(("prices", "budgets"), MACHINES)
def test_the_time_that_a_refusal_names_is_enough(
    task: Task, prices: dict[str, float], budgets: tuple[float, ...]
) -> None:
    for part in (0.1, 0.5):
        assert isinstance(spend(task, named(task, part * budgets[0], **prices), **prices)[0], Diagnosis), part


@pytest.mark.parametrize("prices", [CORE, GPU])
def test_where_only_one_start_was_timed_the_time_for_all_starts_is_named(task: Task, prices: dict[str, float]) -> None:
    assert isinstance(spend(task, named(task, 1e-4, **prices), **prices)[0], Diagnosis)


def named(task: Task, minutes: float, **prices: float) -> float:
    """Return the minutes that a refusal names."""
    refused, _ = spend(task, minutes, **prices)
    assert isinstance(refused, str)
    found = re.search(r"give at least ([\d.]+)", refused)
    assert found is not None
    return float(found[1])


def test_with_all_there_is_to_do_more_time_is_not_spent(task: Task) -> None:
    (enough, machine), (more, same) = (spend(task, minutes, **CORE) for minutes in (6.0, 600.0))
    assert isinstance(enough, Diagnosis)
    assert isinstance(more, Diagnosis)
    assert has_all(enough)
    assert same.time == pytest.approx(machine.time, rel=0.05)
    assert more.grids == enough.grids


def test_runs_are_longer_where_the_first_look_was_too_slow(task: Task) -> None:
    """The first look at the clock is three times too slow; the runs are as long as if it had not been, or nearly."""
    steady, _ = spend(task, 160.0, **LARGE_NETWORK)
    quicker, _ = spend(task, 160.0, **LARGE_NETWORK, first_look=3.0)
    assert isinstance(steady, Diagnosis)
    assert isinstance(quicker, Diagnosis)
    assert quicker.isotherm.longest_part > 0.4 * steady.isotherm.longest_part
    assert quicker.stability[0].num_steps > 0.7 * steady.stability[0].num_steps
