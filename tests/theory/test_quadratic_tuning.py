import itertools
import math

import numpy as np
import pytest

from helpers_quadratic import small_model
from isotherm.errors import UserError
from isotherm.theory.closed_forms import critical_effective_learning_rate
from isotherm.theory.demos.noisy_quadratic import demonstrate
from isotherm.theory.noisy_quadratic import NoisyQuadratic, Setting
from isotherm.theory.quadratic_tuning import (
    GridEdge,
    Optimum,
    constant_examples,
    find_optimum,
    fitted_kink,
    learning_rate_grid,
    optima_at_constant_examples,
    optima_at_constant_steps,
    predicted_kink,
)

BATCH_SIZES = [1, 4, 16, 64, 256, 1024, 4096, 16384]
NUM_EXAMPLES = 2**17

# The specification's table, as printed: h_i = c_i = 1/i in 1,000 dimensions, E θ_0² = 1, 2^17 examples.
PRINTED = {
    (0.0, "rate"): ["0.031", "0.125", "0.5", "2.0", "2.0", "2.0", "2.0", "8.0"],
    (0.0, "loss"): ["0.0109", "0.0109", "0.0109", "0.0109", "0.0938", "0.479", "1.08", "1.04"],
    (0.9, "rate"): ["0.031", "0.125", "0.5", "2.0", "8.0", "22.6", "32", "32"],
    (0.9, "loss"): ["0.0109", "0.0109", "0.0109", "0.0110", "0.0116", "0.0146", "0.308", "1.21"],
}


@pytest.fixture(scope="module")
def harmonic() -> NoisyQuadratic:
    return NoisyQuadratic.harmonic()


@pytest.fixture(scope="module")
def table(harmonic) -> dict[tuple[float, int], Optimum]:
    return {
        (momentum, optimum.setting.batch_size): optimum
        for momentum in (0.0, 0.9)
        for optimum in optima_at_constant_examples(harmonic, BATCH_SIZES, num_examples=NUM_EXAMPLES, momentum=momentum)
    }


# The table.


@pytest.mark.parametrize(
    ("momentum", "what", "batch_size", "printed"),
    [
        (momentum, what, batch_size, printed)
        for (momentum, what), row in PRINTED.items()
        for batch_size, printed in zip(BATCH_SIZES, row, strict=True)
    ],
)
def test_the_specification_s_table_to_its_printed_digits(table, momentum, what, batch_size, printed):
    optimum = table[momentum, batch_size]
    value = optimum.effective_learning_rate if what == "rate" else optimum.loss
    assert f"{value:.{len(printed.partition('.')[2])}f}" == printed


def test_every_optimum_of_the_table_lies_inside_its_grid(table):
    assert {optimum.edge for optimum in table.values()} == {GridEdge.INTERIOR}


@pytest.mark.parametrize(("batch_size", "loss"), [(256, "0.0245"), (1024, "0.248"), (4096, "0.769")])
def test_in_exact_arithmetic_sgd_is_better_above_the_critical_learning_rate(harmonic, batch_size, loss):
    # ε = 4 grows by 3 per update where h = 1, until two halvings make ε h = 1 and nothing is left of it.
    setting = constant_examples(NUM_EXAMPLES, batch_size=batch_size)
    optimum = find_optimum(harmonic, setting, growth_limit=math.inf)
    assert optimum.effective_learning_rate == 4.0
    assert f"{optimum.loss:.3g}" == loss


@pytest.mark.parametrize("batch_size", [256, 1024, 4096])
def test_a_curvature_that_no_power_of_two_meets_needs_no_growth_limit(harmonic, batch_size):
    curvature = harmonic.curvature.copy()
    curvature[0] = 1.01
    model = NoisyQuadratic(curvature=curvature, noise_variance=curvature, initial=harmonic.initial)
    setting = constant_examples(NUM_EXAMPLES, batch_size=batch_size)
    exact = find_optimum(model, setting, growth_limit=math.inf)
    assert exact == find_optimum(model, setting)
    assert exact.effective_learning_rate == 2.0


def test_which_growth_limits_give_the_table(harmonic):
    def best(batch_size: int, growth_limit: float) -> float:
        setting = constant_examples(NUM_EXAMPLES, batch_size=batch_size)
        return find_optimum(harmonic, setting, growth_limit=growth_limit).effective_learning_rate

    # 16 updates by 3 at B = 4096; four by 7 and one by 3 at B = 16384.
    assert [best(4096, 3.0**16 * factor) for factor in (0.99, 1.01)] == [2.0, 4.0]
    assert best(16384, 7.0**4 * 3 * 1.01) == 8.0
    assert best(16384, 7.0**4 * 3 * 0.99) < 8.0


# Tuning.


def test_grids_say_when_the_optimum_is_at_their_edge():
    model = NoisyQuadratic.harmonic(100)
    setting = constant_examples(2**14, batch_size=1)
    inside = find_optimum(model, setting)
    rates = learning_rate_grid(model)
    place = rates.tolist().index(inside.effective_learning_rate)
    assert not inside.at_edge
    below = find_optimum(model, setting, effective_learning_rates=rates[: place + 1])
    above = find_optimum(model, setting, effective_learning_rates=rates[place:])
    assert (below.edge, above.edge) == (GridEdge.UPPER, GridEdge.LOWER)
    assert below.at_edge
    assert above.at_edge
    assert below.loss == above.loss == inside.loss


def test_the_default_grid_has_half_octaves_around_the_critical_learning_rate(harmonic):
    for momentum in (0.0, 0.9):
        rates = learning_rate_grid(harmonic, momentum=momentum)
        critical = critical_effective_learning_rate(1.0, momentum=momentum)
        np.testing.assert_allclose(np.diff(np.log2(rates)), 0.5)
        assert rates[0] < critical / 2**15
        assert 4 * critical < rates[-1] <= 8 * critical
        np.testing.assert_allclose(2 * np.log2(rates), np.round(2 * np.log2(rates)), atol=1e-9)


def test_below_the_kink_the_optimum_is_proportional_to_the_batch_and_momentum_changes_nothing(table):
    for momentum in (0.0, 0.9):
        assert {table[momentum, size].temperature for size in (1, 4, 16, 64)} == {1 / 32}
    for size in (1, 4, 16, 64):
        assert table[0.9, size].loss == pytest.approx(table[0.0, size].loss, rel=0.01)


def test_above_the_kink_curvature_limits_sgd_and_momentum_helps(table):
    for size in (256, 1024, 4096):
        assert table[0.0, size].effective_learning_rate == 2.0
        assert 2.0 < table[0.9, size].effective_learning_rate <= 38.0
        assert table[0.9, size].loss < 0.3 * table[0.0, size].loss


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_predicted_kink_is_where_the_optima_bend(harmonic, table, momentum):
    optima = [table[momentum, size] for size in BATCH_SIZES]
    predicted = predicted_kink(harmonic, num_examples=NUM_EXAMPLES, momentum=momentum)
    found = fitted_kink(optima)
    assert found is not None
    assert abs(math.log2(found / predicted)) < 0.5
    # SGD: T* = 0.0341 to an eighth of an octave; momentum: 19 times as far.
    assert predicted == pytest.approx(58.7 if momentum == 0.0 else 1115, rel=1e-3)


def test_a_line_without_a_level_part_has_no_fitted_kink():
    model = NoisyQuadratic.harmonic(100)
    optima = optima_at_constant_examples(model, [1, 2, 4, 8], num_examples=2**14, momentum=0.9)
    assert fitted_kink(optima) is None


def test_at_constant_steps_the_optimum_rises_with_the_batch_up_to_the_critical_learning_rate(harmonic):
    optima = optima_at_constant_steps(harmonic, [1, 4, 16, 256, 4096], num_steps=2048)
    rates = [optimum.effective_learning_rate for optimum in optima]
    assert all(1 < later / earlier < 4 for earlier, later in itertools.pairwise(rates[:3]))
    assert rates[3:] == [2.0, 2.0]
    assert [optimum.setting for optimum in optima] == [
        Setting(batch_size=size, num_steps=2048) for size in (1, 4, 16, 256, 4096)
    ]
    losses = [optimum.loss for optimum in optima]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_best_learning_rate_for_the_training_loss_falls_as_the_budget_grows(momentum):
    model = NoisyQuadratic.harmonic(200)
    optima = [
        find_optimum(model, constant_examples(2**exponent, batch_size=16, momentum=momentum))
        for exponent in range(14, 23, 2)
    ]
    rates = [optimum.effective_learning_rate for optimum in optima]
    assert all(later < earlier for earlier, later in itertools.pairwise(rates))
    assert rates[0] / rates[-1] >= 32
    assert not any(optimum.at_edge for optimum in optima)


def test_a_last_incomplete_batch_is_left_out(harmonic):
    (optimum,) = optima_at_constant_examples(harmonic, [24], num_examples=1000)
    assert optimum.setting == Setting(batch_size=24, num_steps=41)


# What cannot be used.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: constant_examples(10, batch_size=11), "batch_size=11"),
        (lambda: constant_examples(10, batch_size=0), "batch_size=0"),
        (lambda: fitted_kink([]), "three or more"),
    ],
)
def test_bad_values_are_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.parametrize(
    ("rates", "limit", "message"),
    [
        ([0.1, -0.2, 0.3], 2.0, "not positive"),
        ([], 2.0, "must be a non-empty list"),
        ([0.1, 0.2], 2.0, "three rising"),
        ([0.1, 0.3, 0.2], 2.0, "three rising"),
        ([0.1, 0.2, 0.3], 1.0, "growth_limit=1.0"),
        ([50.0, 60.0, 70.0], 2.0, "no effective learning rate from 50 to 70 is stable"),
    ],
)
def test_bad_grids_are_refused(rates, limit, message):
    with pytest.raises(UserError, match=message):
        find_optimum(
            small_model(), Setting(batch_size=1, num_steps=100), effective_learning_rates=rates, growth_limit=limit
        )


# The demonstration.


def test_the_demonstration_shows_the_table_both_kinks_and_both_panels(table):
    shown = demonstrate(seed=1)
    optima, kinks, budgets = shown.tables
    for row in optima.rows:
        sgd, heavy = table[0.0, row[0]], table[0.9, row[0]]
        assert row[1:] == [
            sgd.setting.num_steps,
            sgd.effective_learning_rate,
            sgd.loss,
            heavy.effective_learning_rate,
            heavy.loss,
        ]
    assert [row[0] for row in optima.rows] == BATCH_SIZES
    assert [row[1] for row in kinks.rows] == pytest.approx([2.0, 38.0])
    rates = [row[2] for row in budgets.rows]
    assert rates == sorted(rates, reverse=True)
    left, right = shown.panels
    assert [curve.style for curve in left.curves] == ["line", "line", "dashed", "dashed"]
    for curve, momentum in zip(left.curves, (0.0, 0.9), strict=False):
        assert curve.y == [table[momentum, size].effective_learning_rate for size in curve.x]
    assert [curve.y[0] for curve in left.curves[2:]] == pytest.approx([2.0, 38.0])
    assert [curve.style for curve in right.curves] == ["line", "line", "points", "points"]
    for exact, simulated in zip(right.curves[:2], right.curves[2:], strict=True):
        by_size = dict(zip(exact.x, exact.y, strict=True))
        assert simulated.x == BATCH_SIZES[4:]
        for size, low, high in zip(simulated.x, simulated.low, simulated.high, strict=True):
            # Twice the half width of a 95 % interval with 31 degrees of freedom: a false alarm in 420 for all eight.
            middle, half = (low + high) / 2, (high - low) / 2
            assert abs(by_size[size] - middle) < 2 * half
    for text in (f"B ≈ {kinks.rows[0][2]:.0f}", f"B ≈ {kinks.rows[1][3]:.0f}", "19-fold", "B = 256, 1024, 4096"):
        assert text in shown.paragraph
    assert shown.as_json()["settings"]["seed"] == 1
