from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from helpers_protocol import NAN, diverged, failed, finished, make_cell, make_grid
from isotherm.core.records import Direction, RunResult
from isotherm.sweep.protocol import Edge

UP, DOWN = Direction.MAXIMISE, Direction.MINIMISE


# -- a cell ----------------------------------------------------------------------------------------


def test_best_k_stand_beside_all_n() -> None:
    cell = make_cell(0.5, [0.5, 0.75, 0.25, 1.0], num_kept=2)
    kept = cell.kept("test_metric", UP)
    estimate = cell.estimate("test_metric", kept=kept)
    assert kept == [3, 1]
    assert (estimate.mean, estimate.num_kept, estimate.num_seeds) == (0.875, 2, 4)
    assert estimate.standard_deviation == pytest.approx(math.sqrt(2) / 8)
    assert (estimate.mean_all, estimate.values_all) == (0.625, (0.5, 0.75, 0.25, 1.0))
    assert estimate.standard_deviation_all == pytest.approx(math.sqrt(5 / 48))
    assert estimate.interval_all.estimate == 0.625
    assert estimate.interval_all.high - 0.625 == pytest.approx(3.182446 * math.sqrt(5 / 48) / 2, rel=1e-6)


def test_smallest_losses_are_kept_where_smaller_is_better() -> None:
    cell = make_cell(0.5, [0.5, 0.75, 0.25, 1.0], num_kept=2)
    assert cell.kept("test_metric", DOWN) == [2, 0]


def test_diverged_run_is_never_kept_while_others_are_there() -> None:
    cell = make_cell(0.5, [diverged(), 0.75, 0.25], num_kept=2)
    assert cell.kept("test_metric", UP) == [1, 2]
    assert not cell.is_unstable
    assert cell.is_usable
    estimate = cell.estimate("test_metric", kept=[1, 2])
    assert (estimate.mean, estimate.mean_all, estimate.values_all) == (0.5, 0.5, (0.75, 0.25))
    assert estimate.num_seeds == 3


@pytest.mark.parametrize(("num_diverged", "unstable"), [(0, False), (3, False), (4, True), (15, True)])
def test_cell_is_unstable_when_more_than_n_minus_k_diverge(num_diverged: int, unstable: bool) -> None:
    cell = make_cell(0.5, [diverged()] * num_diverged + [0.5] * (15 - num_diverged), num_kept=12)
    assert (cell.num_diverged, cell.is_unstable, cell.is_usable) == (num_diverged, unstable, not unstable)


def test_failed_run_makes_a_cell_incomplete_and_not_unstable() -> None:
    cell = make_cell(0.5, [failed(), failed(), 0.5], num_kept=2)
    assert (cell.num_failed, cell.num_diverged) == (2, 0)
    assert (cell.is_complete, cell.is_unstable, cell.is_usable) == (False, False, False)


def test_missing_run_makes_a_cell_incomplete() -> None:
    cell = make_cell(0.5, [None, 0.5, 0.25], num_kept=2)
    assert (cell.is_complete, cell.num_failed, cell.num_diverged) == (False, 0, 0)
    assert cell.estimate("test_metric", kept=cell.kept("test_metric", UP)).mean == 0.375


def test_cell_of_diverged_runs_has_no_numbers() -> None:
    cell = make_cell(0.5, [diverged(), diverged()], num_kept=1)
    estimate = cell.estimate("test_metric", kept=cell.kept("test_metric", UP))
    assert math.isnan(estimate.mean)
    assert math.isnan(estimate.mean_all)
    assert estimate.values_all == ()
    assert (estimate.interval_all.low, estimate.interval_all.high) == (-math.inf, math.inf)


# -- optimum and interval --------------------------------------------------------------------------


def _spread(mean: float) -> list[float]:
    """Return three values of this mean and a sample standard deviation of 1/8."""
    return [mean - 0.125, mean, mean + 0.125]


def test_optimum_and_every_rate_within_one_standard_deviation() -> None:
    grid = make_grid(
        {
            0.25: _spread(0.5),
            0.5: _spread(0.75),  # one standard deviation below the best: just within
            1.0: _spread(0.875),
            2.0: _spread(0.8125),
            4.0: _spread(0.749),  # just out
        },
        num_kept=3,
    )
    best = grid.optimum()
    assert best is not None
    assert (best.index, best.effective_learning_rate) == (2, 1.0)
    assert best.interval == (0.5, 2.0)
    assert best.estimate.mean == 0.875
    assert best.estimate.standard_deviation == pytest.approx(0.125)
    assert (best.edge, best.at_edge, grid.edge()) == (Edge.INTERIOR, False, Edge.INTERIOR)


def test_optimum_prints_as_one_short_line() -> None:
    rows = {0.25: _spread(0.25), 0.5: _spread(0.5), 1.0: _spread(0.75), 2.0: _spread(0.6875), 4.0: _spread(0.25)}
    assert str(make_grid(rows, num_kept=3).optimum()) == "ε_eff 1 [1, 2], interior"
    del rows[4.0]
    assert str(make_grid(rows, num_kept=3).optimum()) == "ε_eff 1 [1, 2], upper edge"


def test_estimate_prints_the_kept_runs_and_all_runs() -> None:
    cell = make_cell(0.5, [0.25, 0.5, 0.75], num_kept=2)
    estimate = cell.estimate("test_metric", kept=cell.kept("test_metric", UP))
    assert str(estimate) == "0.625 ± 0.18 (best 2 of 3), 0.5 ± 0.25 (all 3 finished)"
    whole = make_cell(0.5, [0.25, diverged(), 0.75], num_kept=2)
    found = whole.estimate("test_metric", kept=whole.kept("test_metric", UP))
    assert str(found) == "0.5 ± 0.35 (all 2 finished, 1 diverged)"
    all_ = make_cell(0.5, [0.25, 0.75], num_kept=2)
    assert str(all_.estimate("test_metric", kept=[0, 1])) == "0.5 ± 0.35 (all 2 finished)"


def test_all_seeds_say_how_many_diverged() -> None:
    cell = make_cell(0.5, [0.25, diverged(), 0.75, 0.5, 0.5], num_kept=3)
    estimate = cell.estimate("test_metric", kept=cell.kept("test_metric", UP))
    assert (estimate.num_diverged, estimate.num_seeds) == (1, 5)
    assert str(estimate) == "0.5833 ± 0.14 (best 3 of 5), 0.5 ± 0.2 (all 4 finished, 1 diverged)"


# -- bounded metrics -------------------------------------------------------------------------------


def test_intervals_of_an_accuracy_stay_within_its_bounds() -> None:
    cell = make_cell(0.5, [0.98, 1.0, 0.99], num_kept=3)
    free = cell.estimate("test_metric", kept=[0, 1, 2]).interval_all
    bounded = dataclasses.replace(cell, metric_bounds=(0.0, 1.0)).estimate("test_metric", kept=[0, 1, 2]).interval_all
    assert free.high > 1.0
    assert (bounded.estimate, bounded.low, bounded.high) == (free.estimate, free.low, 1.0)


def test_bounds_are_those_of_the_metric_and_not_of_a_loss() -> None:
    runs = [finished(0.5, train_loss=loss, validation_metric=0.02 * k) for k, loss in enumerate((1.0, 3.0))]
    cell = dataclasses.replace(make_cell(0.5, runs, num_kept=2), metric_bounds=(0.0, 1.0))
    assert cell.estimate("train_loss", kept=[0, 1]).interval_all.high > 3.0
    assert cell.estimate("validation_metric", kept=[0, 1]).interval_all.low == 0.0


def test_single_run_of_an_accuracy_says_that_it_lies_between_0_and_1() -> None:
    cell = dataclasses.replace(make_cell(0.5, [0.75], num_kept=1), metric_bounds=(0.0, 1.0))
    interval = cell.estimate("test_metric", kept=[0]).interval_all
    assert (interval.low, interval.high) == (0.0, 1.0)


# -- confirming seeds ------------------------------------------------------------------------------


def test_confirming_seeds_are_reported_and_take_no_part_in_the_choice() -> None:
    grid = make_grid({0.5: [0.5, 0.5, 0.5], 1.0: [0.9, 0.8, 0.1], 2.0: [0.6, 0.6, 0.6]}, num_kept=2)
    chosen = dataclasses.replace(grid.cells[1], confirmed=tuple(finished(m) for m in (0.5, 0.7, 0.6)))
    confirmed = dataclasses.replace(grid, cells=(grid.cells[0], chosen, grid.cells[2]))
    assert confirmed.optimum() == grid.optimum()
    before, after = grid.at_optimum("test_metric"), confirmed.at_optimum("test_metric")
    assert before is not None
    assert after is not None
    assert before.mean == pytest.approx(0.85)
    assert (after.mean, after.mean_all, after.num_kept) == (pytest.approx(0.6), pytest.approx(0.6), 3)
    assert (confirmed.num_runs, grid.num_runs) == (12, 9)
    bias = chosen.selection_bias("test_metric", kept=[0, 1])
    assert bias is not None
    assert bias.difference == pytest.approx(0.25)
    assert bias.standard_error == pytest.approx(math.sqrt(0.005 / 2 + 0.01 / 3))
    assert grid.cells[1].selection_bias("test_metric", kept=[0, 1]) is None


def test_confirmation_waits_for_all_its_seeds() -> None:
    cell = dataclasses.replace(make_cell(1.0, [0.9, 0.9], num_kept=2), confirmed=(finished(0.5), None))
    assert not cell.is_confirmed
    assert cell.is_complete
    assert cell.confirmation("test_metric") is None
    assert cell.reported("test_metric", kept=[0, 1]).mean == 0.9
    done = dataclasses.replace(cell, confirmed=(finished(0.5), failed()))
    assert done.confirmation("test_metric") is None


def test_diverged_confirming_seeds_are_counted_and_make_no_cell_unstable() -> None:
    cell = dataclasses.replace(make_cell(1.0, [0.9, 0.9], num_kept=2), confirmed=(finished(0.5), diverged()))
    found = cell.confirmation("test_metric")
    assert found is not None
    assert str(found) == "0.5 ± 0 (all 1 finished, 1 diverged)"
    assert not cell.is_unstable
    assert cell.num_diverged == 0
    none_left = dataclasses.replace(cell, confirmed=(diverged(), diverged()))
    assert none_left.reported("test_metric", kept=[0, 1]).mean == 0.9
    nothing = none_left.confirmation("test_metric")
    assert nothing is not None
    assert (nothing.num_diverged, nothing.values_all) == (2, ())
    assert none_left.selection_bias("test_metric", kept=[0, 1]) is None


def test_optimum_where_smaller_is_better() -> None:
    grid = make_grid(
        {0.25: _spread(1.0), 0.5: _spread(0.625), 1.0: _spread(0.5), 2.0: _spread(0.626), 4.0: _spread(2.0)},
        num_kept=3,
        direction=DOWN,
    )
    best = grid.optimum()
    assert best is not None
    assert (best.effective_learning_rate, best.interval) == (1.0, (0.5, 1.0))


def test_standard_deviation_is_the_optimum_s_and_of_the_kept_runs() -> None:
    # All four at 1.0 spread widely; the best two, which alone count, do not.
    grid = make_grid({0.5: [0.5, 0.5, 0.5, 0.5], 1.0: [0.875, 0.875, 0.0, 0.0], 2.0: [0.9, 0.2, 0.0, 0.0]}, num_kept=2)
    best = grid.optimum()
    assert best is not None
    assert best.kept == (0, 1)
    assert (best.estimate.mean, best.estimate.standard_deviation) == (0.875, 0.0)
    assert best.interval == (1.0, 1.0)
    assert best.estimate.mean_all == 0.4375


def test_ties_go_to_the_middle_of_the_tied_range() -> None:
    saturated = {2.0**k: [1.0, 1.0] if -2 <= k <= 2 else [0.5, 0.4] for k in range(-4, 5)}
    best = make_grid(saturated, num_kept=2).optimum()
    assert best is not None
    assert (best.effective_learning_rate, best.interval, best.edge) == (1.0, (0.25, 4.0), Edge.INTERIOR)
    assert best.unresolved_gain == 0.0
    assert best.is_resolved


def test_means_that_only_rounding_tells_apart_are_tied() -> None:
    rows = {0.5: [0.1], 1.0: [0.9], 2.0: [0.9 - 1e-9], 4.0: [0.9 + 1e-9], 8.0: [0.1]}
    best = make_grid(rows, num_kept=1).optimum()
    assert best is not None
    assert (best.effective_learning_rate, best.interval) == (2.0, (1.0, 4.0))


def test_of_two_tied_learning_rates_the_lower_one_is_taken() -> None:
    best = make_grid({0.5: [0.1], 1.0: [0.9], 2.0: [0.9], 4.0: [0.1]}, num_kept=1).optimum()
    assert best is not None
    assert (best.effective_learning_rate, best.interval) == (1.0, (1.0, 2.0))


def test_rate_of_a_second_hill_is_in_the_interval() -> None:
    best = make_grid({0.5: [0.0], 1.0: [0.9], 2.0: [0.1], 4.0: [0.9], 8.0: [0.0]}, num_kept=1).optimum()
    assert best is not None
    assert best.interval == (1.0, 4.0)


def test_unstable_cell_is_neither_optimal_nor_in_the_interval() -> None:
    rows: dict[float, Any] = {0.5: [0.5, 0.5, 0.5], 1.0: [0.6, 0.8, 0.7], 2.0: [1.0, diverged(), diverged()]}
    grid = make_grid(rows, num_kept=2)
    best = grid.optimum()
    assert best is not None
    assert (best.effective_learning_rate, best.interval[1]) == (1.0, 1.0)
    assert grid.edge() is Edge.INTERIOR
    assert grid.num_diverged == 2
    as_stable = make_grid({**rows, 2.0: [1.0, 1.0, diverged()]}, num_kept=2).optimum()
    assert as_stable is not None
    assert as_stable.effective_learning_rate == 2.0


@pytest.mark.parametrize("bad", [NAN, -math.inf])
def test_finished_run_whose_metric_is_not_a_number_cannot_be_optimal(bad: float) -> None:
    grid = make_grid({0.25: [bad, bad], 0.5: [0.5, 0.5], 1.0: [0.75, 0.75], 2.0: [0.5, 0.5]}, num_kept=2)
    best = grid.optimum()
    assert best is not None
    assert (best.effective_learning_rate, best.interval) == (1.0, (1.0, 1.0))


def test_quantity_that_no_run_has_gives_no_optimum() -> None:
    grid = make_grid({0.5: [0.5, 0.5], 1.0: [0.75, 0.75]}, num_kept=2)  # tuned on test data: no validation set
    assert grid.optimum("validation_loss", DOWN) is None


def test_train_optimum_ranks_by_training_loss() -> None:
    def run(metric: float, loss: float) -> RunResult:
        return finished(metric, train_loss=loss)

    grid = make_grid(
        {
            0.5: [run(0.5, 3.0), run(0.5, 3.0), run(0.5, 3.0)],
            1.0: [run(0.9, 1.0), run(0.7, 0.5), run(0.8, 2.0)],
            2.0: [run(0.6, 0.25), run(0.5, 0.25), run(0.5, 9.0)],
            4.0: [run(0.1, 4.0), run(0.1, 4.0), run(0.1, 4.0)],
        },
        num_kept=2,
    )
    best, train = grid.optimum(), grid.train_optimum()
    assert best is not None
    assert train is not None
    assert (best.effective_learning_rate, best.kept) == (1.0, (0, 2))
    assert (train.effective_learning_rate, train.kept, train.estimate.mean) == (2.0, (0, 1), 0.25)
    # The training loss at the optimum is that of the runs kept by test accuracy, not of the lowest losses.
    at_optimum = grid.at_optimum("train_loss")
    assert at_optimum is not None
    assert at_optimum.mean == 1.5
    assert at_optimum.values_all == (1.0, 0.5, 2.0)


# -- edges -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("means", "edge"),
    [
        ([0.1, 0.2, 0.9, 0.3], Edge.INTERIOR),
        ([0.9, 0.2, 0.1, 0.0], Edge.LOWER),
        ([0.0, 0.1, 0.2, 0.9], Edge.UPPER),
        ([0.9, 0.9, 0.9, 0.9], Edge.BOTH),
        ([0.9, 0.1, 0.1, 0.9], Edge.BOTH),
    ],
)
def test_edge_of_optimum_or_interval(means: list[float], edge: Edge) -> None:
    grid = make_grid({2.0**k: [mean, mean] for k, mean in enumerate(means)}, num_kept=2)
    assert grid.edge() is edge
    best = grid.optimum()
    assert best is not None
    assert best.at_edge is (edge is not Edge.INTERIOR)


def test_interval_at_the_edge_counts_although_the_optimum_is_interior() -> None:
    grid = make_grid({0.5: _spread(0.8), 1.0: _spread(0.875), 2.0: _spread(0.5)}, num_kept=3)
    best = grid.optimum()
    assert best is not None
    assert (best.effective_learning_rate, best.edge) == (1.0, Edge.LOWER)


def test_edge_is_about_the_quantity_asked_for() -> None:
    rows = {
        rate: [finished(metric, train_loss=loss)]
        for rate, metric, loss in [(0.5, 0.1, 3.0), (1.0, 0.9, 2.0), (2.0, 0.1, 1.0)]
    }
    grid = make_grid(rows, num_kept=1)
    train = grid.train_optimum()
    assert train is not None
    assert (grid.edge(), train.edge) == (Edge.INTERIOR, Edge.UPPER)


def test_grid_without_a_stable_cell_has_no_optimum() -> None:
    grid = make_grid({0.5: [diverged()] * 2, 1.0: [0.5, diverged()]}, num_kept=2)
    assert grid.optimum() is None
    assert grid.train_optimum() is None
    assert grid.at_optimum("train_loss") is None
    assert grid.edge() is Edge.NO_OPTIMUM


@pytest.mark.parametrize("hole", [None, failed()], ids=["missing", "failed"])
def test_grid_with_a_hole_is_incomplete_and_not_unstable(hole: RunResult | None) -> None:
    grid = make_grid({0.5: [0.1, 0.1], 1.0: [0.9, 0.9], 2.0: [0.1, hole]}, num_kept=2)
    assert (grid.edge(), grid.is_complete) == (Edge.INCOMPLETE, False)
    best = grid.optimum()
    assert best is not None
    assert (best.effective_learning_rate, best.edge) == (1.0, Edge.INCOMPLETE)
    nothing = make_grid({0.5: [hole, hole]}, num_kept=2)
    assert (nothing.optimum(), nothing.edge()) == (None, Edge.INCOMPLETE)


@pytest.mark.parametrize(
    ("rows", "ends"),
    [
        ({0.5: [0.1, 0.1], 1.0: [0.9, 0.9], 2.0: [0.1, 0.1]}, (False, False)),
        ({0.5: [0.1, 0.1], 1.0: [0.9, 0.9]}, (False, True)),
        ({0.5: [0.1, 0.1], 1.0: [0.9, 0.9], 2.0: [0.1, None], 4.0: [None, None]}, (False, True)),
        ({0.5: [0.1, 0.1], 1.0: [0.9, 0.9], 2.0: [0.1, failed()]}, (False, True)),
        ({0.5: [None, 0.1], 1.0: [0.9, 0.9], 2.0: [0.1, 0.1]}, (True, False)),
        ({0.5: [None, 0.1], 1.0: [0.9, 0.9], 2.0: [None, 0.1]}, (True, True)),
        ({0.5: [0.1, 0.1], 1.0: [0.9, 0.9], 2.0: [None, 0.1], 4.0: [0.1, 0.1]}, (False, False)),  # half refined
        ({0.5: [0.1, 0.1], 1.0: [0.9, 0.9], 2.0: [diverged(), diverged()]}, (False, False)),
    ],
)
def test_the_end_of_a_grid_is_that_of_what_was_tried(
    rows: dict[float, list[RunResult | float | None]], ends: tuple[bool, bool]
) -> None:
    grid = make_grid(rows, num_kept=2)
    best = grid.optimum()
    assert best is not None
    assert best.effective_learning_rate == 1.0
    assert (best.is_lowest_of(grid), best.is_highest_of(grid)) == ends
    assert best.lies_at_end_of(grid) is any(ends)


# -- what a finer grid could gain ------------------------------------------------------------------


def test_an_optimum_says_what_its_grid_leaves_unresolved() -> None:
    rows = {2.0**k: [0.8 - 0.1 * k**2 + noise for noise in (-0.01, 0.01)] for k in range(-2, 3)}
    best = make_grid(rows, num_kept=2).optimum()
    assert best is not None
    assert (best.ratio, best.below.ratio) == (2.0, 2.0)
    assert best.unresolved_gain == pytest.approx(0.05)  # concave: at most half of what is lost one step away
    assert best.error == pytest.approx(0.01)  # √2 · 0.01 / √2
    assert not best.is_resolved


@pytest.mark.parametrize(
    ("spread", "ratio", "resolved"), [(0.01, 2.0, False), (0.06, 2.0, True), (0.01, 2**0.25, True)]
)
def test_resolved_by_the_error_of_the_mean_or_by_the_ratio(spread: float, ratio: float, resolved: bool) -> None:
    rows = {ratio**k: [0.8 - 0.1 * k**2 + noise for noise in (-spread, spread)] for k in range(-2, 3)}
    best = make_grid(rows, num_kept=2).optimum()
    assert best is not None
    assert best.unresolved_gain == pytest.approx(0.05)
    assert best.is_resolved is resolved


def test_lucky_equal_runs_at_the_optimum_do_not_make_its_error_zero() -> None:
    rows = {0.5: [0.5, 0.7], 1.0: [0.9, 0.9], 2.0: [0.5, 0.7], 4.0: [0.1, 0.1]}
    best = make_grid(rows, num_kept=2).optimum()
    assert best is not None
    assert best.estimate.standard_deviation == 0.0
    assert best.error == pytest.approx(math.sqrt(0.02 / 2))


def test_neighbour_that_half_fails_does_not_make_the_error_large() -> None:
    rows = {0.5: [0.60, 0.62], 1.0: [0.70, 0.72], 2.0: [0.74, 0.1], 4.0: [0.1, 0.1]}
    best = make_grid(rows, num_kept=2).optimum()
    assert best is not None
    assert best.error == pytest.approx(0.01)
    assert not best.is_resolved


def test_optimum_at_the_end_of_a_grid_is_never_resolved() -> None:
    best = make_grid({0.5: [0.5, 0.5], 1.0: [0.9, 0.9]}, num_kept=2).optimum()
    assert best is not None
    assert (best.unresolved_gain, best.ratio, best.is_resolved) == (math.inf, math.inf, False)


def test_training_optimum_is_of_loss_plus_penalty_with_the_loss_beside_it() -> None:
    rows = {
        rate: [finished(0.5, train_loss=loss, l2_penalty=penalty)]
        for rate, loss, penalty in [(0.5, 0.3, 0.1), (1.0, 0.2, 0.15), (2.0, 0.1, 0.4), (4.0, 0.5, 0.5)]
    }
    grid = make_grid(rows, num_kept=1)
    with_penalty, plain = grid.train_optimum(), grid.train_loss_optimum()
    assert with_penalty is not None
    assert plain is not None
    assert (with_penalty.effective_learning_rate, plain.effective_learning_rate) == (1.0, 2.0)
