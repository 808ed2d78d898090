"""The search for the largest stable learning rate on a known landscape, from any guess."""

from __future__ import annotations

import math

import pytest

from helpers_short_runs import INITIAL, FakeRuns, FakeTime, Landscape, noise, stable_until
from isotherm.diagnose.diagnosis import Stability
from isotherm.diagnose.short_runs import Clock, ShortGridSpec
from isotherm.diagnose.stability import (
    COARSE_SEEDS,
    FIRST_FACTORS,
    STABILITY_STEPS,
    StabilitySearch,
    search_stability,
)

LIMIT = 3.0


def stability(landscape: Landscape, guess: float, *, until: float = math.inf) -> tuple[Stability, FakeRuns]:
    time = FakeTime()
    runs = FakeRuns(landscape, time)
    (found,) = search_stability(
        runs,  # type: ignore[arg-type]
        batch_size=128,
        guesses={0.0: guess},
        num_steps=STABILITY_STEPS,
        initial_loss=INITIAL,
        clock=Clock(seconds=1e9, now=time),
        until=until,
    )
    return found, runs


@pytest.mark.parametrize("factor", [1e-3, 0.03, 0.5, 1.0, 1.7, 40.0, 1e3])
def test_the_limit_is_found_wherever_the_guess_lies(factor: float) -> None:
    found, _ = stability(stable_until(LIMIT), LIMIT * factor)
    assert found.limit is not None
    assert found.limit.contains(LIMIT)
    assert abs(math.log2(found.limit.estimate / LIMIT)) < 0.3
    assert math.log2(found.limit.high / found.limit.low) < 1.5
    assert found.best_loss == pytest.approx(INITIAL - 2.0, abs=0.03)


def test_a_slow_learning_rate_does_not_count_as_failed() -> None:
    found, _ = stability(stable_until(LIMIT), LIMIT)
    below = [failed for rate, failed in zip(found.rates, found.num_failed, strict=True) if rate < LIMIT / 2]
    assert below == [0] * len(below)
    assert below


def test_little_progress_above_the_best_learning_rate_is_a_failure() -> None:
    """The loss rises back to its start from the limit on, without ever being infinite."""

    def loss(grid_spec: ShortGridSpec, rate: float, seed: int) -> float:
        return INITIAL - 2.0 * min(1.0, 8 * rate / LIMIT) if rate < LIMIT else INITIAL - 0.9

    found, _ = stability(loss, LIMIT)
    assert found.limit is not None
    assert found.limit.contains(LIMIT)


def test_more_than_half_of_the_progress_is_none() -> None:
    def loss(grid_spec: ShortGridSpec, rate: float, seed: int) -> float:
        return INITIAL - 2.0 * min(1.0, 8 * rate / LIMIT) if rate < LIMIT else INITIAL - 1.1

    found, _ = stability(loss, LIMIT)
    assert found.limit is None
    assert sum(found.num_failed) == 0


def test_progress_is_measured_by_smaller_learning_rates_than_the_first_look_has() -> None:
    """Progress is best at a quarter of where runs diverge, and half of that at half of it, which is the limit."""

    def loss(grid_spec: ShortGridSpec, rate: float, seed: int) -> float:
        return math.inf if rate > LIMIT else INITIAL - 2.0 * min(4 * rate / LIMIT, LIMIT / (4 * rate))

    found, _ = stability(loss, 15 * LIMIT)
    assert found.limit is not None
    assert found.limit.contains(LIMIT / 2)
    assert found.limit.high < 0.9 * LIMIT


def test_what_was_found_is_not_looked_for_again() -> None:
    """Below and above a window the loss stays what it was."""

    def loss(grid_spec: ShortGridSpec, rate: float, seed: int) -> float:
        return INITIAL - 2.0 * (LIMIT / 10 < rate < LIMIT)

    found, runs = stability(loss, LIMIT)
    assert found.limit is not None
    assert found.limit.contains(LIMIT)
    assert len(runs.calls) == 2


def test_a_divergence_below_the_best_learning_rate_is_a_failure() -> None:
    def loss(grid_spec: ShortGridSpec, rate: float, seed: int) -> float:
        return math.inf if rate == 0.25 and seed == 1 else stable_until(LIMIT)(grid_spec, rate, seed)

    found, _ = stability(loss, 1.0)
    assert dict(zip(found.rates, found.num_failed, strict=True))[0.25] == 1


def test_where_nothing_fails_there_is_no_limit() -> None:
    found, _ = stability(lambda _, rate, __: INITIAL - 2 * min(1.0, rate), 1.0)
    assert found.limit is None
    assert found.rates[-1] == 64.0**4
    assert sum(found.num_failed) == 0


def test_what_seeds_differ_by_is_no_progress() -> None:
    found, _ = stability(lambda grid_spec, rate, seed: INITIAL + 0.005 * noise(grid_spec, rate, seed), 1.0)
    assert found.limit is None
    assert found.num_failed == found.num_runs
    assert found.rates[-1] == 64.0**4


def test_learning_rates_that_change_nothing_are_too_small_not_too_large() -> None:
    found, _ = stability(stable_until(LIMIT), LIMIT / 1e6)
    assert found.limit is not None
    assert found.limit.contains(LIMIT)


@pytest.mark.parametrize("value", [math.inf, INITIAL + 0.1])
def test_where_all_runs_fail_there_is_no_limit(value: float) -> None:
    found, _ = stability(lambda *_: value, 1.0)
    assert found.limit is None
    assert found.num_failed == found.num_runs
    assert found.rates[0] < 1e-6


def test_the_first_look_alone_gives_a_wider_interval() -> None:
    first, runs = stability(stable_until(LIMIT), LIMIT, until=0.0)
    fine, _ = stability(stable_until(LIMIT), LIMIT)
    assert runs.calls == [len(FIRST_FACTORS) * COARSE_SEEDS]
    assert first.limit is not None
    assert fine.limit is not None
    assert first.limit.contains(LIMIT)
    assert first.limit.high / first.limit.low > 1.5 * fine.limit.high / fine.limit.low


@pytest.mark.parametrize("until", [0.0, 12.0, 20.0, 24.0, 25.0, 31.0, 45.0, 1e9])
@pytest.mark.parametrize("guess", [LIMIT / 1000, LIMIT, LIMIT * 1000])
def test_the_search_for_the_limit_ends_in_time(until: float, guess: float) -> None:
    found, runs = stability(stable_until(LIMIT), guess, until=until)
    first = len(FIRST_FACTORS) * COARSE_SEEDS
    assert sum(runs.calls) <= max(first, until)
    assert sum(found.num_runs) == len(runs.trained)


def test_two_momenta_are_searched_side_by_side() -> None:
    limits = {0.0: 3.0, 0.9: 24.0}

    def loss(grid_spec: ShortGridSpec, rate: float, seed: int) -> float:
        return stable_until(limits[grid_spec.momentum])(grid_spec, rate, seed)

    runs = FakeRuns(loss)
    found = search_stability(
        runs,  # type: ignore[arg-type]
        batch_size=64,
        guesses={0.0: 1.0, 0.9: 1.0},
        num_steps=STABILITY_STEPS,
        initial_loss=INITIAL,
        clock=Clock(seconds=1.0, now=lambda: 0.0),
        until=1e9,
    )
    assert [(s.momentum, s.batch_size, s.num_steps) for s in found] == [
        (0.0, 64, STABILITY_STEPS),
        (0.9, 64, STABILITY_STEPS),
    ]
    for stable in found:
        assert stable.limit is not None
        assert stable.limit.contains(limits[stable.momentum])


def test_a_learning_rate_that_is_hardly_another_is_not_trained_again() -> None:
    runs = FakeRuns(stable_until(LIMIT))
    search = StabilitySearch(
        runs,  # type: ignore[arg-type]
        batch_size=8,
        momentum=0.0,
        num_steps=9,
        guess=1.0,
        initial_loss=INITIAL,
    )
    assert search.coarse((1.0, 4.0)).rates == (1.0, 4.0)
    assert search.coarse((1.05, 4.5, 15.0)).rates == (1.0, 4.5, 15.0)


def test_runs_that_find_the_limit_are_longer_where_the_first_look_is_quick() -> None:
    runs = FakeRuns(stable_until(LIMIT), FakeTime())
    (found,) = search_stability(
        runs,  # type: ignore[arg-type]
        batch_size=128,
        guesses={0.0: LIMIT},
        num_steps=40,
        initial_loss=INITIAL,
        clock=Clock(seconds=1e9, now=lambda: 0.0),
        until=1e9,
    )
    assert found.num_steps == STABILITY_STEPS


def test_runs_are_no_longer_than_the_intended_training() -> None:
    (found,) = search_stability(
        FakeRuns(stable_until(LIMIT), FakeTime()),  # type: ignore[arg-type]
        batch_size=128,
        guesses={0.0: LIMIT},
        num_steps=40,
        most_steps=60,
        initial_loss=INITIAL,
        clock=Clock(seconds=1e9, now=lambda: 0.0),
        until=1e9,
    )
    assert found.num_steps == 60
