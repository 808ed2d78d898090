from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers_protocol import diverged, failed, fill, finished, make_plan, rates_of
from isotherm.core.budget import Budget
from isotherm.core.rates import tidy
from isotherm.core.records import Direction, Outcome, RunResult, RunSpec
from isotherm.sweep.growth import Stage, build_grid, grown_grid
from isotherm.sweep.plan import SweepPlan
from isotherm.sweep.protocol import Edge, Grid, Optimum
from isotherm.sweep.rounds import Round, all_runs, confirming_runs, missing_runs, next_round, num_refining_runs

UP = Direction.MAXIMISE
Landscape = Callable[[RunSpec], RunResult | float]


# -- what comes next -------------------------------------------------------------------------------


def run_rounds(
    plans: list[SweepPlan], landscape: Landscape, results: dict[str, RunResult] | None = None
) -> tuple[dict[str, RunResult], list[list[RunSpec]]]:
    """Do what is missing, round after round, and return the results with what each round asked for."""
    results = {} if results is None else results
    rounds = []
    while specs := missing_runs(plans, results):
        rounds.append(specs)
        fill(results, specs, landscape)
        assert len(rounds) <= 1 + max(plan.max_extensions for plan in plans)
    return results, rounds


def hill(optimum: float, *, diverges_above: float = math.inf) -> Landscape:
    """Return a score that falls with the distance to an optimal learning rate in octaves."""

    def score(spec: RunSpec) -> RunResult | float:
        rate = spec.effective_learning_rate
        return diverged() if rate > diverges_above else -abs(math.log2(rate / optimum))

    return score


def only_grid(plan: SweepPlan, results: dict[str, RunResult]) -> Grid:
    (axes,) = plan.grids()
    return grown_grid(plan, axes, results)


def test_everything_is_missing_at_first() -> None:
    plan = make_plan(batch_sizes=(16, 32), momenta=(0.0, 0.9), budgets=(Budget.steps(5), Budget.epochs(1)))
    specs = missing_runs([plan], {})
    assert len(specs) == 5 * 2 * 2 * 2 * 2
    assert len({spec.key for spec in specs}) == len(specs)
    assert set(all_runs([plan], {})) == {spec.key for spec in specs}


def test_interior_optimum_asks_for_nothing_more() -> None:
    plan = make_plan()
    results, rounds = run_rounds([plan], hill(1.0))
    assert [rates_of(specs) for specs in rounds] == [[0.25, 0.5, 1.0, 2.0, 4.0]]
    assert only_grid(plan, results).edge() is Edge.INTERIOR


def test_optimum_at_the_upper_edge_adds_two_points_until_it_is_interior() -> None:
    plan = make_plan()
    results, rounds = run_rounds([plan], hill(16.0))
    assert [rates_of(specs) for specs in rounds] == [[0.25, 0.5, 1.0, 2.0, 4.0], [8.0, 16.0], [32.0, 64.0]]
    grid = only_grid(plan, results)
    best = grid.optimum()
    assert best is not None
    assert (best.effective_learning_rate, best.edge, len(grid.cells)) == (16.0, Edge.INTERIOR, 9)
    assert set(all_runs([plan], results)) == set(results)


def test_optimum_at_the_lower_edge_adds_two_points_below_with_the_grid_s_ratio() -> None:
    plan = make_plan(rates=(0.1, 0.4, 1.6))
    _, rounds = run_rounds([plan], hill(0.1))
    assert rates_of(rounds[1]) == pytest.approx([0.1 / 16, 0.1 / 4])
    assert len(rounds) == 2


def test_each_end_has_its_own_ratio() -> None:
    plan = make_plan(rates=(1.0, 2.0, 8.0), max_extensions=1)
    _, rounds = run_rounds([plan], lambda _spec: 0.5)  # level: both ends are within
    assert rates_of(rounds[1]) == [0.25, 0.5, 32.0, 128.0]


def test_single_learning_rate_grows_by_factors_of_two() -> None:
    _, rounds = run_rounds([make_plan(rates=(1.0,), max_extensions=1)], hill(1.0))
    assert [rates_of(specs) for specs in rounds] == [[1.0], [0.25, 0.5, 2.0, 4.0]]


def test_extension_stops_when_the_added_points_are_unstable() -> None:
    plan = make_plan()
    results, rounds = run_rounds([plan], hill(64.0, diverges_above=4.0))
    assert [rates_of(specs) for specs in rounds] == [[0.25, 0.5, 1.0, 2.0, 4.0], [8.0, 16.0]]
    best = only_grid(plan, results).optimum()
    assert best is not None
    assert (best.effective_learning_rate, best.edge) == (4.0, Edge.INTERIOR)


def test_grid_without_a_stable_rate_grows_downwards() -> None:
    plan = make_plan()
    results, rounds = run_rounds([plan], hill(2**-3, diverges_above=2**-3))
    assert [rates_of(specs) for specs in rounds][1:] == [[2**-4, 2**-3]]
    assert only_grid(plan, results).edge() is Edge.INTERIOR


@pytest.mark.parametrize("max_extensions", [0, 1, 3])
def test_at_most_so_many_extensions(max_extensions: int) -> None:
    plan = make_plan(max_extensions=max_extensions)
    results, rounds = run_rounds([plan], hill(2.0**40))
    assert [rates_of(specs) for specs in rounds[1:]] == [
        [2.0 ** (3 + 2 * k), 2.0 ** (4 + 2 * k)] for k in range(max_extensions)
    ]
    grid = only_grid(plan, results)
    assert (grid.edge(), len(grid.cells)) == (Edge.UPPER, 5 + 2 * max_extensions)


def test_base_grids_of_all_sweeps_come_before_any_extension() -> None:
    first, second = make_plan(batch_sizes=(16,)), make_plan(batch_sizes=(32, 48))
    results: dict[str, RunResult] = {}
    fill(results, missing_runs([first], {}), hill(16.0))  # as after an interruption: the first sweep wants to extend
    assert missing_runs([first], results)
    rounds = []
    while specs := missing_runs([first, second], results):
        rounds.append({(spec.batch_size, spec.effective_learning_rate) for spec in specs})
        fill(results, specs, lambda spec: hill(1.0 if spec.batch_size == 32 else 16.0)(spec))
    base = {(b, r) for b in (32, 48) for r in (0.25, 0.5, 1.0, 2.0, 4.0)}
    assert rounds == [
        base,
        {(16, 8.0), (16, 16.0), (48, 8.0), (48, 16.0)},
        {(b, r) for b in (16, 48) for r in (32, 64)},
    ]


def test_sweeps_extend_each_up_to_its_own_limit() -> None:
    short, long = make_plan(batch_sizes=(16,), max_extensions=1), make_plan(batch_sizes=(32,), max_extensions=2)
    _, rounds = run_rounds([short, long], hill(2.0**40))
    assert [{spec.batch_size for spec in specs} for specs in rounds] == [{16, 32}, {16, 32}, {32}]


def test_failed_runs_are_asked_for_again_unless_skipped() -> None:
    plan = make_plan()
    results, _ = run_rounds([plan], hill(1.0))
    spec = plan.run_spec(plan.grids()[0], effective_learning_rate=4.0, seed=1)
    results[spec.key] = failed()
    assert missing_runs([plan], results) == [spec]
    assert missing_runs([plan], results, skip={spec.key}) == []


def test_diverged_runs_are_not_asked_for_again() -> None:
    plan = make_plan()
    results, _ = run_rounds([plan], hill(1.0))
    results[plan.run_spec(plan.grids()[0], effective_learning_rate=4.0, seed=1).key] = diverged()
    assert missing_runs([plan], results) == []


def test_grid_with_a_failed_run_waits_while_others_extend() -> None:
    plan = make_plan(batch_sizes=(16, 32))
    results: dict[str, RunResult] = {}
    fill(results, missing_runs([plan], results), hill(16.0))
    spec = plan.run_spec(plan.grids()[0], effective_learning_rate=0.25, seed=0)
    results[spec.key] = failed()
    assert missing_runs([plan], results) == [spec]
    others = missing_runs([plan], results, skip={spec.key})
    assert {(s.batch_size, s.effective_learning_rate) for s in others} == {(32, 8.0), (32, 16.0)}


@pytest.mark.parametrize(
    ("changes", "num_new"),
    [
        ({"seeds": (0, 1, 2, 3), "num_kept": 3}, 5 * 2),
        ({"rates": (0.25, 0.5, 1.0, 1.5, 2.0, 4.0)}, 2),
        ({"batch_sizes": (16, 32)}, 5 * 2),
        ({"momenta": (0.0, 0.9)}, 5 * 2),
        ({"budgets": (Budget.steps(10), Budget.steps(20))}, 5 * 2),
        ({"num_kept": 1}, 0),
        ({"max_extensions": 9, "name": "renamed"}, 0),
    ],
    ids=str,
)
def test_asking_for_more_runs_only_what_is_new(changes: dict[str, Any], num_new: int) -> None:
    results, _ = run_rounds([make_plan()], hill(1.0))
    before = set(results)
    new = missing_runs([make_plan(**changes)], results)
    assert len(new) == num_new
    assert not before & {spec.key for spec in new}


def test_extensions_stay_when_seeds_are_added() -> None:
    results, _ = run_rounds([make_plan()], hill(16.0))
    more = make_plan(seeds=(0, 1, 2))
    _, rounds = run_rounds([more], hill(16.0), results)
    assert all({spec.seed for spec in specs} == {2} for specs in rounds)
    assert [rates_of(specs) for specs in rounds] == [[0.25, 0.5, 1.0, 2.0, 4.0], [8.0, 16.0], [32.0, 64.0]]


def test_runs_shared_by_two_sweeps_are_asked_for_once() -> None:
    narrow, wide = make_plan(rates=(0.5, 1.0, 2.0), name="narrow"), make_plan(name="wide", tune_on="train")
    specs = missing_runs([narrow, wide], {})
    assert len(specs) == len({spec.key for spec in specs}) == 5 * 2
    assert len(all_runs([narrow, wide], {})) == 5 * 2


def test_budgets_of_the_same_number_of_updates_share_their_runs() -> None:
    plan = make_plan(budgets=(Budget.steps(8), Budget.epochs(2)))  # 2 · 64 / 16 = 8 updates
    assert len(missing_runs([plan], {})) == 5 * 2


def test_runs_outside_the_plan_are_not_looked_at() -> None:
    plan = make_plan()
    results, _ = run_rounds([plan], hill(1.0))
    fill(results, missing_runs([make_plan(model_id="other")], {}), lambda _spec: 99.0)
    best = only_grid(plan, results).optimum()
    assert best is not None
    assert best.estimate.mean == 0.0


def test_build_grid_follows_the_plan_s_seeds() -> None:
    plan = make_plan(seeds=(5, 3), rates=(0.5, 1.0))
    results: dict[str, RunResult] = {}
    fill(results, missing_runs([plan], {}), lambda spec: float(spec.seed))
    del results[plan.run_spec(plan.grids()[0], effective_learning_rate=1.0, seed=5).key]
    grid = build_grid(plan, plan.grids()[0], results, (0.5, 1.0))
    values = [[None if r is None else r.test_metric for r in cell.results] for cell in grid.cells]
    assert values == [[5.0, 3.0], [None, 3.0]]
    assert (grid.num_steps, grid.objective, grid.direction) == (10, "test_metric", UP)


# -- whatever the landscape ------------------------------------------------------------------------


def _landscape(optimum: float, limit: float, noise: float, *, sharpness: float = 1.0) -> Landscape:
    """Return a hill in octaves with noise of its own for every run, and divergence above a limit."""

    def score(spec: RunSpec) -> RunResult | float:
        octaves = math.log2(spec.effective_learning_rate)
        if octaves > limit:
            return diverged()
        return -sharpness * abs(octaves - optimum) + random.Random(spec.key).gauss(0.0, noise)

    return score


@settings(max_examples=120, deadline=None)
@given(
    optimum=st.floats(-14, 14),
    limit=st.floats(-14, 14),
    noise=st.sampled_from([0.0, 0.1, 1.0, 10.0]),
    num_rates=st.integers(1, 5),
    ratio=st.sampled_from([2.0, math.sqrt(2), 4.0, 10.0]),
    num_seeds=st.integers(1, 4),
    max_extensions=st.integers(0, 4),
)
def test_every_sweep_ends_interior_or_at_its_last_extension(
    optimum: float, limit: float, noise: float, num_rates: int, ratio: float, num_seeds: int, max_extensions: int
) -> None:
    plan = make_plan(
        rates=[ratio**k for k in range(num_rates)],
        seeds=tuple(range(num_seeds)),
        num_kept=max(1, num_seeds - 1),
        max_extensions=max_extensions,
    )
    results, rounds = run_rounds([plan], _landscape(optimum, limit, noise))
    asked = [spec.key for specs in rounds for spec in specs]
    assert len(asked) == len(set(asked))
    grid = only_grid(plan, results)
    assert grid.is_complete
    assert grid.edge() is Edge.INTERIOR or len(rounds) == 1 + max_extensions
    assert len(results) == len(grid.cells) * num_seeds
    rates = [cell.effective_learning_rate for cell in grid.cells]
    # A geometric grid stays one: no point is asked for twice under a rounding error's name.
    assert [b / a for a, b in itertools.pairwise(rates)] == pytest.approx(
        [ratio if num_rates > 1 else 2.0] * (len(rates) - 1), rel=1e-9
    )


@settings(max_examples=8, deadline=None)
@given(optimum=st.floats(-8, 8), limit=st.floats(-3, 12), seed=st.integers(0, 2**32))
def test_interruptions_do_not_change_what_is_run(optimum: float, limit: float, seed: int) -> None:
    plans = [make_plan(batch_sizes=(16, 32)), make_plan(batch_sizes=(32, 64), rates=(1.0, 2.0, 4.0))]
    landscape = _landscape(optimum, limit, 0.3)
    straight, _ = run_rounds(plans, landscape)
    generator, results = random.Random(seed), dict[str, RunResult]()
    while specs := missing_runs(plans, results):
        # Some of the runs finish in whatever order, some fail, then the power goes.
        some = generator.sample(specs, generator.randint(len(specs) // 3 + 1, len(specs)))
        unlucky = {spec.key for spec in some[1:] if generator.random() < 0.1}
        fill(results, some, lambda s, unlucky=unlucky: failed() if s.key in unlucky else landscape(s))  # type: ignore[misc]
    assert results == straight


@settings(max_examples=20, deadline=None)
@given(optimum=st.floats(-3, 3), seed=st.integers(0, 2**32))
def test_failures_never_hang_a_sweep_and_never_pass_for_divergence(optimum: float, seed: int) -> None:
    plan = make_plan(batch_sizes=(16, 32), num_kept=1)
    generator, results, tried = random.Random(seed), dict[str, RunResult](), set[str]()
    for _ in range(plan.max_extensions + 2):
        specs = missing_runs([plan], results, skip=tried)
        if not specs:
            break
        fill(results, specs, lambda s: failed() if generator.random() < 0.05 else _landscape(optimum, 14, 0.1)(s))
        tried |= {s.key for s in specs if results[s.key].outcome is Outcome.FAILED}
    assert missing_runs([plan], results, skip=tried) == []
    for axes in plan.grids():
        grid = grown_grid(plan, axes, results)
        assert grid.num_diverged == 0
        assert (grid.edge() is Edge.INCOMPLETE) == any(cell.num_failed for cell in grid.cells)


def test_a_grid_may_also_grow_for_the_training_loss() -> None:
    def landscape(spec: RunSpec) -> RunResult:
        off = math.log2(spec.effective_learning_rate)
        return finished(0.7 - 0.05 * off**2, train_loss=1.0 + (off + 3.0) ** 2)  # best at 1, fits best at 1/8

    for extend_for, lowest in (("tuned", 0.25), ("tuned_and_train", 2.0**-4)):
        plan = make_plan(extend_for=extend_for)
        results: dict[str, RunResult] = {}
        while specs := missing_runs([plan], results):
            fill(results, specs, landscape)
        grid = grown_grid(plan, plan.grids()[0], results)
        assert grid.cells[0].effective_learning_rate == lowest
        train = grid.train_optimum()
        assert train is not None
        assert train.lies_at_end_of(grid) is (extend_for == "tuned")


def test_added_learning_rates_are_those_one_would_write() -> None:
    def rising(spec: RunSpec) -> float:
        return math.log(spec.effective_learning_rate)

    plan = make_plan(rates=(0.01, 0.03, 0.09), max_extensions=1)
    results: dict[str, RunResult] = {}
    while specs := missing_runs([plan], results):
        fill(results, specs, rising)
    assert [c.effective_learning_rate for c in grown_grid(plan, plan.grids()[0], results).cells] == [
        0.01,
        0.03,
        0.09,
        0.27,
        0.81,
    ]
    assert missing_runs([make_plan(rates=(0.01, 0.03, 0.09, 0.27, 0.81), max_extensions=0)], results) == []


# -- refinement ------------------------------------------------------------------------------------


def adaptive(**changes: Any) -> SweepPlan:
    return make_plan(**{"resolution": "adaptive", "seeds": (0, 1, 2), "num_kept": 3, **changes})


def parabola(optimum: float, *, noise: float = 0.0, limit: float = math.inf) -> Landscape:
    """Return a score that is best this many octaves above 1, with noise of its own for every run."""

    def score(spec: RunSpec) -> RunResult | float:
        octaves = math.log2(spec.effective_learning_rate)
        if octaves > limit:
            return diverged()
        return 0.8 - 0.03 * (octaves - optimum) ** 2 + random.Random(spec.key).gauss(0.0, noise)

    return score


def grow(plans: list[SweepPlan], landscape: Landscape) -> tuple[dict[str, RunResult], list[Round]]:
    """Do what is missing, round after round, and return the results with the rounds."""
    results, rounds = dict[str, RunResult](), list[Round]()
    while (round_ := next_round(plans, results)) is not None:
        rounds.append(round_)
        fill(results, round_.specs, landscape)
        assert len(rounds) < 100
    return results, rounds


def best_of(plan: SweepPlan, results: dict[str, RunResult]) -> Optimum:
    best = only_grid(plan, results).optimum()
    assert best is not None
    return best


@pytest.mark.parametrize("peak", [-0.5, -0.3, 0.25, 0.5, 0.77])
def test_a_peak_between_learning_rates_is_found(peak: float) -> None:
    paper, plan = adaptive(resolution="paper"), adaptive()
    results, rounds = grow([plan], parabola(peak, noise=0.0001))
    coarse, fine = best_of(paper, results), best_of(plan, results)
    assert abs(math.log2(fine.effective_learning_rate) - peak) <= 1 / 8 + 1e-6
    assert abs(math.log2(fine.effective_learning_rate) - peak) <= abs(math.log2(coarse.effective_learning_rate) - peak)
    assert fine.is_resolved
    assert (fine.unresolved_gain < fine.error) or fine.ratio == pytest.approx(2**0.25)
    assert not coarse.is_resolved
    assert len(rounds) == 3
    assert [round_.stages for round_ in rounds] == [(Stage.BASE,), (Stage.REFINEMENT,), (Stage.REFINEMENT,)]


def test_midpoints_are_added_on_both_sides_round_by_round() -> None:
    plan = adaptive(seeds=(0,), num_kept=1)  # a single run has no error: as fine as it goes
    _, rounds = grow([plan], parabola(0.0))
    assert [rates_of(round_.specs) for round_ in rounds] == [
        [0.25, 0.5, 1.0, 2.0, 4.0],
        [0.707106781186548, 1.4142135623731],
        [0.840896415253715, 1.18920711500272],
    ]


def test_refinement_stops_where_the_error_of_the_mean_hides_the_gain() -> None:
    plan = adaptive(seeds=tuple(range(5)), num_kept=5)
    nums = []
    for noise in (0.0001, 0.01, 0.3):
        results, _ = grow([plan], parabola(0.0, noise=noise))
        nums.append(len(only_grid(adaptive(max_extensions=0), results).cells))
        best = best_of(plan, results)
        assert best.is_resolved or best.at_edge
    assert nums[0] == 9
    assert nums[0] > nums[1] >= nums[2]


def test_refinement_stops_at_the_ratio_that_is_asked_for() -> None:
    for smallest, num_rounds in ((2.0, 1), (2**0.5, 2), (2**0.25, 3), (2**0.125, 4)):
        plan = adaptive(seeds=(0,), num_kept=1, smallest_ratio=smallest)
        results, rounds = grow([plan], parabola(0.0))
        assert len(rounds) == num_rounds
        assert best_of(plan, results).ratio == pytest.approx(smallest)


def test_grids_of_the_paper_are_not_refined() -> None:
    results, rounds = grow([adaptive(resolution="paper")], parabola(0.5))
    assert len(rounds) == 1
    assert len(results) == 5 * 3


def test_refinement_goes_up_to_a_cliff() -> None:
    plan = adaptive()
    results, _ = grow([plan], parabola(9.0, noise=0.0001, limit=0.8))  # diverges from 2 on; rises until then
    best = best_of(plan, results)
    assert best.effective_learning_rate == 1.68179283050743
    assert best.above.ratio == pytest.approx(2**0.25)
    assert best.is_resolved


def test_refinement_beside_a_cliff_on_both_sides() -> None:
    def island(spec: RunSpec) -> RunResult | float:
        octaves = math.log2(spec.effective_learning_rate)
        return diverged() if abs(octaves) > 0.3 else 0.8 - 0.01 * octaves

    plan = adaptive(max_extensions=1)
    results, _ = grow([plan], island)
    best = best_of(plan, results)
    assert best.effective_learning_rate == 0.840896415253715
    assert best.is_resolved


def test_extensions_come_first_and_may_come_again() -> None:
    plan = adaptive(seeds=(0,), num_kept=1)
    _, rounds = grow([plan], parabola(4.0))
    assert [round_.stages[0] for round_ in rounds] == [Stage.BASE, *[Stage.EXTENSION] * 2, *[Stage.REFINEMENT] * 2]
    assert rates_of(rounds[3].specs) == pytest.approx([16 / 2**0.5, 16 * 2**0.5])

    def wide(spec: RunSpec) -> float:
        """Narrow spread at 1; a better midpoint above with a spread that reaches both ends."""
        rate = spec.effective_learning_rate
        return {1.0: 0.8, 0.5: 0.7, 2.0: 0.75, 4.0: 0.6, 0.25: 0.6}.get(rate, 0.85 + 0.6 * (spec.seed - 1) * (rate < 4))

    stages = [round_.stages for round_ in grow([adaptive(max_extensions=1)], wide)[1]]
    assert stages[:3] == [(Stage.BASE,), (Stage.REFINEMENT,), (Stage.EXTENSION,)]


def test_extension_after_refinement_keeps_the_step_of_the_given_grid() -> None:
    def wide(spec: RunSpec) -> float:
        rate = spec.effective_learning_rate
        return {1.0: 0.8, 0.5: 0.7, 2.0: 0.75}.get(rate, 0.85 + 0.6 * (spec.seed - 1) if 0.5 < rate < 2 else 0.1)

    plan = adaptive(rates=(0.5, 1.0, 2.0), max_extensions=1)
    rounds = grow([plan], wide)[1]
    extended = next(round_ for round_ in rounds if Stage.EXTENSION in round_.stages)
    assert rates_of(extended.specs) == [0.125, 0.25, 4.0, 8.0]


def test_training_optimum_is_refined_where_it_is_asked_for() -> None:
    def landscape(spec: RunSpec) -> RunResult:
        octaves, jitter = math.log2(spec.effective_learning_rate), random.Random(spec.key).gauss(0.0, 0.0001)
        return finished(0.7 - 0.05 * octaves**2 + jitter, train_loss=1 + (octaves + 0.7) ** 2 + jitter)

    for extend_for, off in (("tuned", 0.3), ("tuned_and_train", 1 / 8)):
        plan = adaptive(extend_for=extend_for)
        results, _ = grow([plan], landscape)
        train = only_grid(plan, results).train_optimum()
        assert train is not None
        assert abs(math.log2(train.effective_learning_rate) + 0.7) <= off + 1e-6
        assert train.is_resolved is (extend_for == "tuned_and_train")


def test_sweeps_with_different_grids_share_their_midpoints() -> None:
    coarse = adaptive(rates=(0.25, 1.0, 4.0), name="coarse", seeds=(0,), num_kept=1)
    fine = adaptive(rates=tuple(2.0 ** (k / 2) for k in range(-4, 5)), name="fine", seeds=(0,), num_kept=1)
    results, _ = grow([coarse], parabola(0.0))
    missing = missing_runs([fine], results)
    assert {tidy(spec.effective_learning_rate) for spec in missing}.isdisjoint(
        {0.25, 0.5, 1.0, 2.0, 4.0, 0.840896415253715}
    )
    assert grow([fine, coarse], parabola(0.0))[0].keys() >= results.keys()


@settings(max_examples=60, deadline=None)
@given(
    optimum=st.floats(-4, 4),
    limit=st.floats(-3, 9),
    noise=st.sampled_from([0.0, 0.001, 0.02, 1.0]),
    num_rates=st.integers(1, 5),
    ratio=st.sampled_from([2.0, math.sqrt(2), 3.0, 4.0]),
    num_seeds=st.integers(1, 3),
    num_confirm=st.integers(0, 2),
)
def test_every_adaptive_sweep_ends(
    optimum: float, limit: float, noise: float, num_rates: int, ratio: float, num_seeds: int, num_confirm: int
) -> None:
    plan = adaptive(
        rates=[ratio**k for k in range(num_rates)],
        seeds=tuple(range(num_seeds)),
        num_kept=num_seeds,
        num_confirm=num_confirm,
        extend_for="tuned_and_train",
    )
    results, rounds = grow([plan], parabola(optimum, noise=noise, limit=limit))
    grid = only_grid(plan, results)
    best = grid.optimum()
    asked = [spec.key for round_ in rounds for spec in round_.specs]
    assert len(asked) == len(set(asked)) == len(results) == grid.num_runs
    assert set(all_runs([plan], results)) == set(results)
    assert grid.is_complete
    if best is not None:
        assert best.is_resolved or best.lies_at_end_of(grid)
        assert grid.cells[best.index].is_confirmed is (num_confirm > 0)
        assert all(not cell.confirmed for k, cell in enumerate(grid.cells) if k != best.index)


@settings(max_examples=8, deadline=None)
@given(optimum=st.floats(-3, 3), limit=st.floats(-1, 12), seed=st.integers(0, 2**32))
def test_interruptions_do_not_change_what_is_refined_and_confirmed(optimum: float, limit: float, seed: int) -> None:
    plans = [adaptive(batch_sizes=(16, 32), num_confirm=2), adaptive(batch_sizes=(32,), rates=(0.5, 2.0, 8.0))]
    landscape = parabola(optimum, noise=0.01, limit=limit)
    straight, _ = grow(plans, landscape)
    generator, results = random.Random(seed), dict[str, RunResult]()
    while specs := missing_runs(plans, results):
        some = generator.sample(specs, generator.randint(len(specs) // 3 + 1, len(specs)))
        unlucky = {spec.key for spec in some[1:] if generator.random() < 0.1}
        fill(results, some, lambda s, unlucky=unlucky: failed() if s.key in unlucky else landscape(s))  # type: ignore[misc]
    assert results == straight


# -- confirmation ----------------------------------------------------------------------------------


def test_confirming_seeds_run_last_and_at_the_chosen_rate_alone() -> None:
    plan = adaptive(batch_sizes=(16, 32), num_confirm=4)
    results, rounds = grow([plan], parabola(0.3, noise=0.001))
    last = rounds[-1]
    assert last.stages == (Stage.CONFIRMATION,)
    assert str(last) == f"round {last.number}, confirmation"
    confirming = [spec for round_ in rounds for spec in round_.specs if spec.seed > 2]
    assert {spec.seed for spec in confirming} == {3, 4, 5, 6}
    assert len(confirming) == 2 * 4
    for axes in plan.grids():
        grid = grown_grid(plan, axes, results)
        best = grid.optimum()
        assert best is not None
        chosen = grid.cells[best.index]
        assert chosen.is_confirmed
        assert {s.effective_learning_rate for s in confirming if s.batch_size == axes.batch_size} == {
            chosen.effective_learning_rate
        }
        confirmed = chosen.confirmation("test_metric")
        assert confirmed is not None
        assert (confirmed.num_seeds, grid.at_optimum("test_metric")) == (4, confirmed)


def test_confirming_seeds_take_no_part_in_the_choice() -> None:
    plan = adaptive(num_confirm=3, resolution="paper")

    def unlucky(spec: RunSpec) -> float:
        return 0.1 if spec.seed > 2 else -abs(math.log2(spec.effective_learning_rate))

    results, rounds = grow([plan], unlucky)
    assert [len(round_.specs) for round_ in rounds] == [15, 3]
    best = best_of(plan, results)
    assert (best.effective_learning_rate, best.estimate.mean) == (1.0, 0.0)
    reported = only_grid(plan, results).at_optimum("test_metric")
    assert reported is not None
    assert reported.mean == pytest.approx(0.1)


def test_failed_confirming_runs_are_asked_for_again() -> None:
    plan = adaptive(num_confirm=2, resolution="paper")
    results, _ = grow([plan], hill(1.0))
    spec = plan.run_spec(plan.grids()[0], effective_learning_rate=1.0, seed=4)
    results[spec.key] = failed()
    assert missing_runs([plan], results) == [spec]
    assert not only_grid(plan, results).cells[2].is_confirmed
    assert only_grid(plan, results).edge() is Edge.INTERIOR


def test_grid_without_an_optimum_confirms_nothing() -> None:
    results, rounds = grow([adaptive(num_confirm=2, max_extensions=0)], lambda _spec: diverged())
    assert (len(rounds), len(results)) == (1, 15)


def test_more_seeds_reuse_the_confirming_ones() -> None:
    results, _ = grow([adaptive(num_confirm=2, resolution="paper")], hill(1.0))
    more = missing_runs([adaptive(num_confirm=2, resolution="paper", seeds=(0, 1, 2, 3, 4), num_kept=5)], results)
    assert {(spec.effective_learning_rate, spec.seed) for spec in more} == {
        (rate, seed) for rate in (0.25, 0.5, 2.0, 4.0) for seed in (3, 4)
    }


def test_confirming_runs_are_foreseen() -> None:
    plan = adaptive(batch_sizes=(16, 32), num_confirm=4)
    assert {spec.seed for spec in confirming_runs([plan], {}).values()} == {3, 4, 5, 6}
    assert len(confirming_runs([plan], {})) == 2 * 4
    results: dict[str, RunResult] = {}
    fill(results, missing_runs([plan], {}), parabola(0.0, noise=0.3))
    assert len(confirming_runs([plan], results)) == 2 * 4
    done, _ = grow([plan], parabola(0.0))
    assert confirming_runs([plan], done) == {}
    del done[plan.run_spec(plan.grids()[0], effective_learning_rate=1.0, seed=4).key]
    assert [spec.seed for spec in confirming_runs([plan], done).values()] == [4]


def test_refining_runs_are_counted_roughly_until_the_base_grids_are_done() -> None:
    plan = adaptive(batch_sizes=(16, 32))
    assert num_refining_runs([plan], {}) == 2 * (2 * 2) * 3  # two grids, two halvings of both sides, three seeds
    assert num_refining_runs([adaptive(resolution="paper")], {}) == 0
    results: dict[str, RunResult] = {}
    fill(results, missing_runs([plan], {}), parabola(0.0))
    assert num_refining_runs([plan], results) == 0


def test_rounds_have_names() -> None:
    plans = [adaptive(batch_sizes=(16,)), adaptive(batch_sizes=(32,), num_confirm=1)]

    def landscape(spec: RunSpec) -> RunResult | float:
        return parabola(4.0 if spec.batch_size == 16 else 0.0)(spec)

    names = [str(round_) for round_ in grow(plans, landscape)[1]]
    assert names[:2] == ["base grids", "round 1, extension and refinement"]
    assert names[3] == "round 3, refinement and confirmation"
