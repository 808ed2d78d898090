"""The searches of a diagnosis on a known landscape: what they find from any guess, and what they report as missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from cases import build_mlp, classification
from isotherm.core.statistics import Floats, Interval
from isotherm.diagnose.diagnosis import Stability
from isotherm.diagnose.searches import (
    COARSE_SEEDS,
    FIRST_FACTORS,
    MOST_SEEDS,
    STABILITY_STEPS,
    GridSearch,
    Pace,
    StabilitySearch,
    fit_isotherm,
    large_batch_size,
    measure_pace,
    search_optima,
    search_stability,
    three_batch_sizes,
)
from isotherm.diagnose.short_runs import Clock, ShortGridSpec, ShortRuns
from isotherm.errors import UserError
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.tasks.task import Task

INITIAL = 2.3
LIMIT = 3.0
TEMPERATURE = 1 / 64
Landscape = Callable[[ShortGridSpec, float, int], float]


class FakeRuns:
    """Stands in for `ShortRuns`: a loss for every batch size, rate and seed; refuses to tell what was not trained."""

    def __init__(self, landscape: Landscape, clock: FakeTime | None = None) -> None:
        self._landscape, self._clock = landscape, clock
        self.trained: dict[tuple[int, float, float, int], float] = {}
        self.calls: list[int] = []

    def train(self, grid_specs: Sequence[ShortGridSpec]) -> float:
        new = {
            (grid_spec.batch_size, grid_spec.momentum, rate, seed): self._landscape(grid_spec, rate, seed)
            for grid_spec in grid_specs
            for rate in grid_spec.rates
            for seed in range(grid_spec.num_seeds)
        }
        num = len(new.keys() - self.trained.keys())
        self.trained.update(new)
        self.calls.append(num)
        if self._clock is not None:
            self._clock.time += num
        return float(num)

    def losses(self, grid_spec: ShortGridSpec, *, on: str | None = None) -> Floats:
        return np.array(
            [
                [
                    self.trained[grid_spec.batch_size, grid_spec.momentum, rate, seed]
                    for seed in range(grid_spec.num_seeds)
                ]
                for rate in grid_spec.rates
            ]
        )


class FakeTime:
    """A clock that moves by a second with every run."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def noise(grid_spec: ShortGridSpec, rate: float, seed: int) -> float:
    return float(np.random.default_rng([grid_spec.batch_size, round(1e6 * rate) % 2**40, seed]).normal())


def stable_until(limit: float, *, spread: float = 0.1) -> Landscape:
    """Return losses that fall with the learning rate up to a limit, which differs a little by seed."""

    def loss(grid_spec: ShortGridSpec, rate: float, seed: int) -> float:
        own = limit * 2.0 ** (spread * noise(grid_spec, 1.0, seed))
        return (
            math.inf if rate > own else INITIAL - 2.0 * min(1.0, 8 * rate / limit) + 0.01 * noise(grid_spec, rate, seed)
        )

    return loss


def isothermal(temperature: float, *, limit: float = math.inf, scatter: float = 0.01) -> Landscape:
    """Return losses with their bottom at T B, infinite above a limit."""

    def loss(grid_spec: ShortGridSpec, rate: float, seed: int) -> float:
        away = math.log2(rate / (temperature * grid_spec.batch_size))
        return math.inf if rate > limit else 1.0 + 0.05 * away**2 + scatter * noise(grid_spec, rate, seed)

    return loss


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


def optima(
    landscape: Landscape,
    *,
    ceiling: float,
    sizes: Sequence[int] = (8, 32, 128),
    until: float = math.inf,
) -> tuple[list[GridSearch], FakeRuns]:
    time = FakeTime()
    runs = FakeRuns(landscape, time)
    grid_specs = [
        ShortGridSpec(batch_size=size, momentum=0.9, num_steps=50, rates=(), num_seeds=COARSE_SEEDS) for size in sizes
    ]
    clock = Clock(seconds=1e9, now=time)
    return search_optima(runs, grid_specs, ceiling=ceiling, clock=clock, until=until), runs  # type: ignore[arg-type]


# -- batch sizes -----------------------------------------------------------------------------------------------------


def small_task(num_train: int, model: Callable[[], nn.Module] = build_mlp) -> Task:
    x = torch.randn(num_train, 2, generator=torch.Generator().manual_seed(0))
    return classification("points", model, train=(x, torch.arange(num_train) % 3))


def ghosts_task(num_train: int, ghost_size: int) -> Task:
    def build() -> nn.Module:
        norm = GhostBatchNorm2d(2, ghost_size=ghost_size)
        return nn.Sequential(nn.Conv2d(1, 2, 3), norm, nn.Flatten(), nn.Linear(8, 3))

    x = torch.randn(num_train, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    y = torch.arange(num_train) % 3
    return Task(name="ghosts", model=build, train=(x, y), test=(x[:9], y[:9]))


def test_batch_sizes_are_a_factor_of_four_apart() -> None:
    assert three_batch_sizes(small_task(4000), None, centre=None) == (8, 32, 128)


def test_batch_sizes_lie_around_the_one_in_use() -> None:
    assert three_batch_sizes(small_task(40_000), None, centre=256) == (64, 256, 1024)
    assert three_batch_sizes(small_task(40_000), None, centre=1) == (2, 8, 32)
    assert three_batch_sizes(small_task(3600), None, centre=512) == (16, 64, 256)


@pytest.mark.parametrize(("num_train", "expected"), [(512, (4, 16, 64)), (300, (2, 8, 32)), (64, (1, 4))])
def test_batch_sizes_fit_a_small_training_set(num_train: int, expected: tuple[int, ...]) -> None:
    assert three_batch_sizes(small_task(num_train), None, centre=None) == expected
    assert three_batch_sizes(small_task(num_train), None, centre=4096) == expected


def test_too_few_examples_for_two_batch_sizes_are_refused() -> None:
    with pytest.raises(UserError, match="31 training examples are too few for two batch sizes"):
        three_batch_sizes(small_task(31), None, centre=None)


def test_batch_sizes_are_whole_ghosts() -> None:
    assert three_batch_sizes(ghosts_task(10_000, 64), None, centre=None) == (64, 256, 1024)
    assert three_batch_sizes(ghosts_task(10_000, 50), None, centre=None) == (50, 200, 800)
    assert three_batch_sizes(ghosts_task(10_000, 8), None, centre=128) == (32, 128, 512)


def test_with_few_examples_batches_are_smaller_than_a_ghost() -> None:
    assert three_batch_sizes(ghosts_task(1000, 64), None, centre=None) == (4, 16, 64)


def test_batch_sizes_that_are_asked_for_are_taken() -> None:
    assert three_batch_sizes(small_task(4000), [64, 16, 64], centre=8) == (16, 64)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([16], "give two or more"),
        ([16, 16], "give two or more"),
        ([16, 501], "more than an eighth of the training set; use at most 500"),
        ([0, 16], "whole numbers of at least 1, not 0"),
        ([16.0, 32], "whole numbers of at least 1, not 16.0"),
        ([True, 32], "whole numbers of at least 1, not True"),
    ],
)
def test_batch_sizes_that_cannot_be_used_are_refused(sizes: list[int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        three_batch_sizes(small_task(4000), sizes, centre=None)


def test_ghosts_refuse_batch_sizes_that_they_do_not_divide() -> None:
    with pytest.raises(UserError, match="96"):
        three_batch_sizes(ghosts_task(10_000, 64), [64, 96], centre=None)


def test_a_model_that_cannot_be_trained_is_refused() -> None:
    with pytest.raises(UserError, match="no trainable parameters"):
        three_batch_sizes(small_task(4000, nn.Identity), None, centre=None)


def test_stability_is_looked_at_at_twice_the_largest_batch_where_it_fits() -> None:
    assert large_batch_size(small_task(4000), (8, 32, 128)) == 256
    assert large_batch_size(small_task(4000), (8, 32, 251)) == 251
    assert large_batch_size(ghosts_task(10_000, 50), (50, 75)) == 150
    assert large_batch_size(ghosts_task(10_000, 64), (16, 48)) == 48


# -- stability -------------------------------------------------------------------------------------------------------


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


# -- short grids -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ceiling", [0.125, 0.5, 2.0, 30.0, 1000.0])
def test_optima_are_found_wherever_the_ceiling_lies(ceiling: float) -> None:
    searches, _ = optima(isothermal(TEMPERATURE), ceiling=ceiling, sizes=(8, 32))
    for search in searches:
        grid = search.result()
        truth = TEMPERATURE * grid.batch_size
        assert grid.optimum is not None
        assert grid.optimum.contains(truth)
        assert abs(math.log2(grid.optimum.estimate / truth)) < 0.4
        assert grid.num_seeds == MOST_SEEDS
        assert len(grid.rates) == 5
        assert grid.rates[4] / grid.rates[0] == pytest.approx(16.0)


def test_a_first_look_that_misleads_is_put_right() -> None:
    """The first two seeds have their lowest loss a factor of four too high; the others do not."""

    def loss(grid_spec: ShortGridSpec, rate: float, seed: int) -> float:
        away = math.log2(rate / 0.125)
        return 1.0 + 0.05 * (away - (2.0 if seed < 2 else 0.0)) ** 2

    (search,), _ = optima(loss, ceiling=2.0, sizes=(8,))
    grid = search.result()
    # 2 of 8 seeds move the mean's bottom by half an octave.
    assert grid.optimum is not None
    assert math.log2(grid.optimum.estimate / 0.125) == pytest.approx(0.5, abs=0.05)


def test_runs_that_diverge_are_no_optimum() -> None:
    (search,), _ = optima(isothermal(1.0, limit=0.3), ceiling=0.25, sizes=(8,))
    grid = search.result()
    assert grid.optimum is not None
    assert grid.optimum.estimate == 0.25
    assert grid.optimum.contains(0.3)
    means = dict(zip(grid.rates, grid.means, strict=True))
    assert means[0.5] == math.inf
    assert math.isfinite(means[0.25])


def test_where_every_run_diverges_there_is_no_optimum() -> None:
    (search,), _ = optima(lambda *_: math.inf, ceiling=1.0, sizes=(8,))
    assert search.result().optimum is None
    assert np.isfinite(search.draws()).all()
    assert fit_isotherm([search], limit=None).temperature is None


def test_an_optimum_beyond_what_can_be_reached_is_not_told() -> None:
    (search,), _ = optima(lambda _, rate, __: -math.log(rate), ceiling=1.0, sizes=(8,))
    assert search.result().optimum is None


@pytest.mark.parametrize("until", [0.0, 10.0, 15.0, 22.0, 30.0, 50.0, 70.0, 1e9])
@pytest.mark.parametrize("ceiling", [0.125, 2.0, 2000.0])
def test_the_search_for_the_optimum_tells_what_it_has_at_any_time(until: float, ceiling: float) -> None:
    (search,), runs = optima(isothermal(TEMPERATURE), ceiling=ceiling, sizes=(8,), until=until)
    grid = search.result()
    assert len(grid.means) == len(grid.rates)
    assert COARSE_SEEDS <= grid.num_seeds <= MOST_SEEDS
    # The first look and the fine one are made in any case.
    first = 5 * COARSE_SEEDS
    assert sum(runs.calls) <= max(until, first) + first


def test_seeds_are_added_two_at_a_time_only_if_there_is_time_for_them() -> None:
    """The first look takes 10 runs, the fine one 4 more (its ends and centre are there), two more seeds 10."""

    def seeds_by(until: float) -> tuple[int, list[int]]:
        (search,), runs = optima(isothermal(TEMPERATURE, scatter=0.0), ceiling=2.0, sizes=(8,), until=until)
        return search.num_seeds, runs.calls

    assert seeds_by(23.0) == (2, [10, 4])
    assert seeds_by(24.0) == (4, [10, 4, 10])
    assert seeds_by(1e9) == (8, [10, 4, 10, 10, 10])


@pytest.mark.parametrize(("until", "num_steps"), [(1e9, 150), (69.0, 50)])
def test_where_the_first_look_is_quick_runs_are_made_longer_up_to_a_factor(until: float, num_steps: int) -> None:
    """The first look takes 10 seconds; a search takes four such rounds."""

    def loss(grid_spec: ShortGridSpec, rate: float, seed: int) -> float:
        assert grid_spec.num_steps <= 150
        return isothermal(TEMPERATURE)(grid_spec, rate, seed)

    time = FakeTime()
    runs = FakeRuns(loss, time)
    grid_spec = ShortGridSpec(batch_size=8, momentum=0.9, num_steps=50, rates=(), num_seeds=COARSE_SEEDS)
    (search,) = search_optima(
        runs,  # type: ignore[arg-type]
        [grid_spec],
        most_longer=3.0,
        ceiling=2.0,
        clock=Clock(seconds=1e9, now=time),
        until=until,
    )
    assert search.result().num_steps == num_steps


@pytest.mark.parametrize(
    ("best", "added"), [(1e-3, (2.0**-12, 2.0**-10)), (1e3, (2.0,)), (0.25, None)], ids=["below", "above", "within"]
)
def test_runs_are_added_beyond_the_end_where_the_lowest_loss_lies(best: float, added: tuple[float, ...] | None) -> None:
    runs = FakeRuns(lambda _, rate, __: math.log2(rate / best) ** 2)
    grid_spec = ShortGridSpec(batch_size=8, momentum=0.9, num_steps=50, rates=(), num_seeds=COARSE_SEEDS)
    search = GridSearch(runs, grid_spec, ceiling=1.0)  # type: ignore[arg-type]
    runs.train([search.coarse()])
    assert search.is_at_end == (added is not None)
    more = search.further()
    assert (None if more is None else tuple(sorted(more.rates))) == added


def test_standard_deviations_are_over_seeds() -> None:
    (search,), runs = optima(isothermal(TEMPERATURE, scatter=0.2), ceiling=1.0, sizes=(8,))
    grid = search.result()
    values = [runs.trained[8, 0.9, grid.rates[2], seed] for seed in range(grid.num_seeds)]
    assert grid.means[2] == pytest.approx(np.mean(values))
    assert grid.standard_deviations[2] == pytest.approx(np.std(values, ddof=1))


# -- the isotherm ----------------------------------------------------------------------------------------------------


def test_optima_on_an_isotherm_give_its_temperature_and_a_slope_of_one() -> None:
    searches, _ = optima(isothermal(TEMPERATURE), ceiling=4.0)
    found = fit_isotherm(searches, limit=None)
    assert found.temperature is not None
    assert found.temperature.contains(TEMPERATURE)
    assert found.temperature.high / found.temperature.low < 2.5
    assert found.slope is not None
    assert found.slope.contains(1.0)
    assert found.slope.high - found.slope.low < 0.8
    assert found.batch_sizes == (8, 32, 128)


def test_optima_that_do_not_move_with_the_batch_give_a_slope_of_zero() -> None:
    def loss(grid_spec: ShortGridSpec, rate: float, seed: int) -> float:
        return 1.0 + 0.05 * math.log2(rate) ** 2 + 0.003 * noise(grid_spec, rate, seed)

    searches, _ = optima(loss, ceiling=4.0)
    found = fit_isotherm(searches, limit=None)
    assert found.slope is not None
    assert found.slope.contains(0.0)
    assert not found.slope.contains(1.0)


def test_optima_near_the_limit_of_stability_are_left_out() -> None:
    """Optima lie at 1/8, 1/2 and 2; half of the limit over √2 is what they have to lie below."""
    searches, _ = optima(isothermal(TEMPERATURE, scatter=0.0), ceiling=4.0)

    def used(limit: float) -> tuple[int, ...]:
        return fit_isotherm(searches, limit=Interval(estimate=limit, low=limit, high=limit)).batch_sizes

    edge = 2 * math.sqrt(2)
    assert used(2.0 * edge * 1.01) == (8, 32, 128)
    assert used(2.0 * edge * 0.99) == (8, 32)
    assert used(0.5 * edge * 0.99) == (8,)
    nothing = fit_isotherm(searches, limit=Interval(estimate=0.1, low=0.1, high=0.1))
    assert (nothing.temperature, nothing.slope, nothing.batch_sizes) == (None, None, ())


def test_one_batch_size_has_a_temperature_and_no_slope() -> None:
    searches, _ = optima(isothermal(TEMPERATURE), ceiling=4.0, sizes=(32,))
    found = fit_isotherm(searches, limit=None)
    assert found.slope is None
    assert found.temperature is not None
    assert found.temperature.contains(TEMPERATURE)


# -- speed -----------------------------------------------------------------------------------------------------------


def test_a_pace_adds_its_overhead_once() -> None:
    assert Pace(overhead=2.0, speed=100.0).seconds(500) == 7.0


def test_a_pace_is_that_of_the_fleet() -> None:
    task = small_task(400).with_validation(0.1)
    grid_spec = ShortGridSpec(batch_size=8, momentum=0.9, num_steps=1, rates=(), num_seeds=1)
    with ShortRuns(task, judged_by="validation", first_seed=0, device="cpu", workers=1) as runs:
        one = measure_pace(runs, grid_spec, num_runs=1, seconds=0.03)
        four = measure_pace(runs, replace(grid_spec, batch_size=32), num_runs=4, seconds=0.03)
    assert one.overhead > 0
    assert one.speed > 100
    assert four.speed > one.speed
    assert runs.num_runs == 0
