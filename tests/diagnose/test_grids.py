"""Short grids of rising length on a known landscape: where they look, how long they go on, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from helpers_short_runs import FakeRuns, FakeTime, Landscape, noise
from isotherm.diagnose.grids import FEWEST_STEPS, LONGEST_PART, MOST_SEEDS, GridPlan, GridSearch, search_grids
from isotherm.diagnose.law import fit_law
from isotherm.diagnose.pace import Pace
from isotherm.diagnose.short_runs import Clock, ShortGridSpec

EXAMPLES = 64_000  # of the intended training
PEAK = 1 / 64


def moving(exponent: float, *, limit: float = math.inf, scatter: float = 0.005) -> Landscape:
    """Return losses with their bottom at T B, T a power of the length; infinite above a limit."""

    def loss(spec: ShortGridSpec, rate: float, seed: int) -> float:
        length = spec.num_steps * spec.batch_size / EXAMPLES
        away = math.log2(rate / (PEAK * length**exponent * spec.batch_size))
        return math.inf if rate > limit else 1.0 + 0.05 * away**2 + scatter * noise(spec, rate, seed)

    return loss


def searched(
    landscape: Landscape,
    *,
    ceiling: float = 8.0,
    until: float = math.inf,
    most: float = 60.0,
    steps: Callable[[int], int] = lambda size: EXAMPLES // size,
    sizes: tuple[int, ...] = (8, 32, 128),
) -> tuple[list[GridSearch], FakeRuns]:
    time = FakeTime()
    runs = FakeRuns(landscape, time)
    plan = GridPlan(
        batch_sizes=sizes,
        momentum=0.9,
        intended_steps=steps,
        ceiling=ceiling,
        paces=dict.fromkeys(sizes, Pace(overhead=0.0, speed=EXAMPLES / 4)),
        most_examples=most * EXAMPLES,
    )
    clock = Clock(seconds=1e9, now=time)
    return search_grids(runs, plan, clock=clock, until=until), runs  # type: ignore[arg-type]


def parts(searches: list[GridSearch]) -> list[float]:
    return sorted({round(16 * s.num_examples / EXAMPLES) / 16 for s in searches})


@pytest.mark.parametrize("exponent", [0.0, -1.0])
@pytest.mark.parametrize("ceiling", [1.0, 8.0, 500.0])
def test_the_optimum_is_followed_from_length_to_length(exponent: float, ceiling: float) -> None:
    searches, _ = searched(moving(exponent), ceiling=ceiling)
    assert parts(searches) == [1 / 8, 1 / 4, 1 / 2]
    law = fit_law([search.curve() for search in searches])
    assert law is not None
    assert abs(math.log2(law.at(32, EXAMPLES).estimate / (32 * PEAK))) < 0.4
    for search in searches:
        assert abs(search.curve().best - math.log2(law.at(search.spec.batch_size, search.num_examples).estimate)) < 1.1


def test_the_longest_runs_have_half_of_the_intended_length_and_all_stay_within_the_cost() -> None:
    for most in (20.0, 40.0, 60.0, 1e9):
        searches, runs = searched(moving(-0.5), most=most)
        assert max(parts(searches)) <= LONGEST_PART
        assert runs.num_examples <= max(most, 20.0) * EXAMPLES
    assert all(search.spec.num_seeds <= MOST_SEEDS for search in searches)


@pytest.mark.parametrize("most", [42.0, 48.0, 54.0, 80.0, 100.0])
def test_the_longest_runs_get_the_seeds_and_all_batch_sizes_alike(most: float) -> None:
    searches, _ = searched(moving(-0.5), most=most, sizes=(8, 24, 120))  # lengths differ a little, as updates are whole
    seeds = {part: {s.spec.num_seeds for s in searches if parts([s]) == [part]} for part in parts(searches)}
    assert all(len(different) == 1 for different in seeds.values()), seeds
    assert max(seeds[1 / 2]) >= max(3, *seeds[1 / 4])


def test_with_little_time_runs_are_shorter() -> None:
    """A second is a run; a length of an eighth wants about a hundred."""
    full, _ = searched(moving(-0.5))
    little, runs = searched(moving(-0.5), until=60.0)
    assert max(parts(little)) < max(parts(full))
    assert sum(runs.calls) < 200


def test_a_batch_with_too_few_updates_takes_no_part() -> None:
    searches, _ = searched(moving(-0.5), steps=lambda size: 6000 // size)
    assert all(search.spec.num_steps >= FEWEST_STEPS for search in searches)
    assert {search.spec.batch_size for search in searches} == {8, 32, 128}
    assert 128 not in {search.spec.batch_size for search in searches if search.num_examples < 2000}


def test_runs_that_diverge_are_no_optimum() -> None:
    searches, _ = searched(moving(0.0, limit=2.5), ceiling=2.0)
    for search in searches:
        grid = search.result()
        assert all((rate > 2.5) == (mean == math.inf) for rate, mean in zip(grid.rates, grid.means, strict=True))


def test_a_grid_is_extended_beyond_the_end_where_its_best_value_lies() -> None:
    for best, added in ((1e-3, {2.0**-10, 2.0**-8}), (1e3, {2.0}), (0.25, None)):
        runs = FakeRuns(lambda _, rate, __, best=best: math.log2(rate / best) ** 2)  # type: ignore[misc]
        rates = tuple(4.0**-k for k in range(4))
        spec = ShortGridSpec(batch_size=8, momentum=0.9, num_steps=50, rates=rates, num_seeds=2)
        search = GridSearch(runs, spec)  # type: ignore[arg-type]
        runs.train([search.spec])
        more = search.further()
        assert (None if more is None else set(more.rates) - set(rates)) == added


def test_nearly_equal_learning_rates_are_one() -> None:
    spec = ShortGridSpec(batch_size=8, momentum=0.9, num_steps=50, rates=(0.25, 0.251, 0.5), num_seeds=2)
    assert GridSearch(FakeRuns(moving(0.0)), spec).spec.rates == (0.25, 0.5)  # type: ignore[arg-type]


def test_standard_deviations_are_over_seeds() -> None:
    searches, runs = searched(moving(0.0, scatter=0.2))
    grid = searches[-1].result()
    values = -runs.scores(searches[-1].spec)[2]
    sign = runs.task.metric_definition.direction.sign  # the fake metric is minus the loss, whatever the task's
    assert grid.means[2] == pytest.approx(-sign * np.mean(values))
    assert grid.standard_deviations[2] == pytest.approx(np.std(values, ddof=1))
