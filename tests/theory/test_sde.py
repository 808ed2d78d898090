"""Simulations against closed forms. Seeds are fixed; limits of 4.5 standard errors fail by chance once in 150,000."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import linalg

from helpers_trajectories import LIMIT, examples_of, generator, last, standard_errors_off
from isotherm.core.statistics import Floats
from isotherm.errors import UserError
from isotherm.theory.batch_sampling import Sampling, finite_batches
from isotherm.theory.closed_forms import diffusion_second_moment, diffusion_stationary_variance
from isotherm.theory.demonstration import Demonstration
from isotherm.theory.demos import sde as piece
from isotherm.theory.sde import (
    Convergence,
    convergence,
    euler_maruyama,
    fitted_slope,
    quadratic_gradients,
    sgd,
    standard_normals,
)

MATRIX = np.array([[2.0, 0.6], [0.6, 0.5]])


# -- SGD and its differential equation against closed forms ----------------------------------------


@pytest.mark.parametrize(("learning_rate", "batch_size"), [(0.05, 1), (0.4, 8), (0.9, 3)])
def test_mean_square_of_sgd_is_the_closed_form_at_every_step(learning_rate: float, batch_size: int) -> None:
    h, c, start = np.array([2.0, 0.5]), np.array([1.5, 0.3]), 0.7
    batches = finite_batches(
        examples_of([1.5, 0.3], num_examples=50, seed=1),
        batch_size=batch_size,
        sampling=Sampling.WITH_REPLACEMENT,
        num_paths=8_000,
        num_steps=60,
        generator=generator(2),
    )
    start_MD = np.full((8_000, 2), start)
    states = sgd(quadratic_gradients(h), start_MD, learning_rate=learning_rate, batches=batches)
    for step, state_MD in enumerate(states, start=1):
        decay = (1 - learning_rate * h) ** (2 * step)
        stationary = learning_rate * c / (batch_size * h * (2 - learning_rate * h))
        assert standard_errors_off(state_MD**2, decay * start**2 + stationary * (1 - decay)) < LIMIT
        assert standard_errors_off(state_MD, (1 - learning_rate * h) ** step * start) < LIMIT


def test_small_steps_of_euler_maruyama_follow_the_equation() -> None:
    h, c = np.array([2.0, 0.5]), np.array([1.5, 0.3])
    normals = standard_normals((8_000, 2), num_steps=600, generator=generator(3))
    start_MD = np.full((8_000, 2), 0.7)
    states = euler_maruyama(lambda w: -h * w, c, start_MD, temperature=0.2, step_size=0.005, normals=normals)
    for step, state_MD in enumerate(states, start=1):
        exact = diffusion_second_moment(
            0.005 * step, temperature=0.2, curvature=h, noise_variance=c, initial=np.full(2, 0.49)
        )
        if step % 50 == 0:  # the step's own error is 2 / (2 - εh) - 1 = 0.5 %, below one standard error
            assert standard_errors_off(state_MD**2, exact) < LIMIT


@pytest.mark.parametrize(
    ("learning_rate", "batch_size", "excess"), [(0.125, 1, 16 / 15), (1.0, 8, 2.0), (1.75, 14, 8.0)]
)
def test_at_equal_temperature_sgd_has_more_variance_by_its_step(
    learning_rate: float, batch_size: int, excess: float
) -> None:
    batches = finite_batches(
        examples_of([1.0], num_examples=100, seed=4),
        batch_size=batch_size,
        sampling=Sampling.WITH_REPLACEMENT,
        num_paths=20_000,
        num_steps=40,
        generator=generator(5),
    )
    final = last(sgd(quadratic_gradients(1.0), np.zeros((20_000, 1)), learning_rate=learning_rate, batches=batches))
    limit = diffusion_stationary_variance(1 / 8, curvature=1.0, noise_variance=1.0)
    assert standard_errors_off(final**2 / limit, excess) < LIMIT


def test_stationary_covariance_solves_the_lyapunov_equation() -> None:
    hessian = np.array([[1.0, -0.4], [-0.4, 0.6]])
    normals = standard_normals((20_000, 2), num_steps=120, generator=generator(6))
    states = euler_maruyama(
        lambda w: -w @ hessian, MATRIX, np.zeros((20_000, 2)), temperature=0.3, step_size=0.2, normals=normals
    )
    final = last(states)
    step = np.eye(2) - 0.2 * hessian
    exact = linalg.solve_discrete_lyapunov(step, 0.2 * 0.3 * MATRIX)
    products = (final[:, :, None] * final[:, None, :]).reshape(-1, 4)
    assert standard_errors_off(products, exact.reshape(4)) < LIMIT


def test_constant_and_state_dependent_forms_of_a_covariance_agree() -> None:
    def final(covariance: Any) -> Floats:
        normals = standard_normals((50, 2), num_steps=10, generator=generator(7))
        return last(
            euler_maruyama(lambda w: -w, covariance, np.ones((50, 2)), temperature=0.5, step_size=0.1, normals=normals)
        )

    diagonal = np.array([2.0, 0.5])
    expected = final(diagonal)
    for same in (
        np.diag(diagonal),
        lambda w: np.tile(diagonal, (50, 1)),
        lambda w: np.tile(np.diag(diagonal), (50, 1, 1)),
    ):
        np.testing.assert_allclose(final(same), expected, rtol=1e-12)
    np.testing.assert_allclose(final(MATRIX), final(lambda w: np.tile(MATRIX, (50, 1, 1))), rtol=1e-12)
    np.testing.assert_allclose(final(np.zeros(2)), 0.9**10, rtol=1e-12)  # no noise: gradient descent


def test_one_step_of_equation_3_by_hand() -> None:
    covariance = np.array([[2.0, 0.6, -0.3], [0.6, 0.5, 0.1], [-0.3, 0.1, 1.0]])
    normal, start = np.array([[0.3, -1.2, 0.4]]), np.array([[1.0, 2.0, -1.0]])
    expected = start - 0.25 * 3.0 * start + math.sqrt(0.25 * 0.04) * normal @ linalg.sqrtm(covariance)
    for form in (covariance, lambda w: covariance[None]):
        (state,) = euler_maruyama(lambda w: -3.0 * w, form, start, temperature=0.04, step_size=0.25, normals=[normal])
        np.testing.assert_allclose(state, expected, rtol=1e-12)


def regression(seed: int) -> tuple[Floats, Floats, float, float]:
    """Return examples (a, y) of ½ (aω - y)² with the best ω at 0, (N, 2); their curvature; and E (a y)²."""
    drawn = generator(seed)
    a, y = drawn.standard_normal(40), drawn.standard_normal(40)
    y = y - a * (a @ y) / (a @ a)
    return np.stack([a, y], axis=1), a, float(np.mean(a**2)), float(np.mean((a * y) ** 2))


def regression_gradients(state_M1: Floats, batch_MB2: Floats) -> Floats:
    a, y = batch_MB2[..., 0], batch_MB2[..., 1]
    return np.asarray((a * (a * state_M1 - y))[..., None])


def test_noise_that_depends_on_the_state_follows_its_recursion() -> None:
    """Linear regression: Var g(ω) = Var(a²) ω² - 2 E(a³y) ω + E(a²y²), so mean and mean square close."""
    examples, a, h, constant = regression(8)
    quadratic, linear = float(np.var(a**2)), -2 * float(np.mean(a**3 * examples[:, 1]))
    learning_rate, batch_size = 0.15, 3
    mean, square = 1.5, 1.5**2
    start = np.full((30_000, 1), 1.5)
    batches = finite_batches(
        examples,
        batch_size=batch_size,
        sampling=Sampling.WITH_REPLACEMENT,
        num_paths=30_000,
        num_steps=25,
        generator=generator(9),
    )
    normals = standard_normals((30_000, 1), num_steps=25, generator=generator(10))
    of_sgd = sgd(regression_gradients, start, learning_rate=learning_rate, batches=batches)
    of_sde = euler_maruyama(
        lambda w: -h * w,
        lambda w: quadratic * w**2 + linear * w + constant,
        start,
        temperature=learning_rate / batch_size,
        step_size=learning_rate,
        normals=normals,
    )
    for real, model in zip(of_sgd, of_sde, strict=True):
        noise = quadratic * square + linear * mean + constant
        square = (1 - learning_rate * h) ** 2 * square + learning_rate**2 / batch_size * noise
        mean = (1 - learning_rate * h) * mean
        assert standard_errors_off(real**2, square) < LIMIT
        assert standard_errors_off(model**2, square) < LIMIT


def test_the_uncentred_fisher_matrix_has_noise_that_sgd_has_not() -> None:
    """With F = Σ + GG^T the mean square shrinks by (1 - εh)² + εT h² per step; SGD's shrinks by (1 - εh)²."""
    learning_rate, start = 0.5, np.full((20_000, 1), 10.0)
    batches = finite_batches(
        examples_of([1.0], num_examples=30, seed=11),
        batch_size=2,
        sampling=Sampling.WITH_REPLACEMENT,
        num_paths=20_000,
        num_steps=3,
        generator=generator(12),
    )
    normals = standard_normals((20_000, 1), num_steps=3, generator=generator(13))
    uncentred = last(
        euler_maruyama(lambda w: -w, lambda w: 1 + w**2, start, temperature=0.25, step_size=0.5, normals=normals)
    )
    real = last(sgd(quadratic_gradients(1.0), start, learning_rate=learning_rate, batches=batches))
    centred_exact, uncentred_exact = 100.0, 100.0
    for _ in range(3):
        centred_exact = 0.25 * centred_exact + 0.125
        uncentred_exact = (0.25 + 0.125) * uncentred_exact + 0.125
    assert standard_errors_off(real**2, centred_exact) < LIMIT
    assert standard_errors_off(uncentred**2, uncentred_exact) < LIMIT
    assert standard_errors_off(real**2, uncentred_exact) > 100


# -- order of convergence --------------------------------------------------------------------------


def order_of(drift: Any, covariance: Any, *, seed: int, num_steps: int = 16, num_paths: int = 10_000) -> Convergence:
    return convergence(
        drift,
        covariance,
        np.full((num_paths, 1), 1.5),
        temperature=0.25,
        time=1.0,
        num_steps=num_steps,
        num_halvings=3,
        observable=lambda w: w[:, 0] ** 2,
        generator=generator(seed),
    )


@pytest.mark.parametrize("drift", [lambda w: -w, lambda w: w - w**3], ids=["quadratic", "double well"])
def test_weak_and_strong_order_are_1_with_constant_noise(drift: Callable[[Floats], Floats]) -> None:
    result = order_of(drift, np.ones(1), seed=14)
    assert result.step_sizes == [1 / 16, 1 / 32, 1 / 64]
    assert result.weak_order_standard_error < 0.05
    assert abs(result.weak_order - 1) < 0.15
    assert abs(result.strong_order - 1) < 0.1


def test_strong_order_is_a_half_with_noise_that_depends_on_the_state() -> None:
    result = order_of(lambda w: -w, lambda w: w**2, seed=15, num_steps=64)
    assert abs(result.strong_order - 0.5) < 0.08
    coarse = order_of(lambda w: -w, lambda w: w**2, seed=16, num_steps=4, num_paths=40_000)
    assert coarse.weak_order_standard_error < 0.06
    assert abs(coarse.weak_order - 1) < 0.15


def test_weak_errors_are_those_of_the_closed_form() -> None:
    """E θ² of one step size is SGD's at ε = step and B = step / T."""

    def exact(num_steps: int) -> float:
        decay = (1 - 1 / num_steps) ** (2 * num_steps)
        return decay * 1.5**2 + 0.25 / (2 - 1 / num_steps) * (1 - decay)

    result = order_of(lambda w: -w, np.ones(1), seed=17)
    for place, num_steps in enumerate((16, 32, 64)):
        error = abs(exact(num_steps) - exact(2 * num_steps))
        assert abs(result.weak_errors[place] - error) < LIMIT * result.weak_standard_errors[place]


def test_matrix_noise_is_coupled_between_step_sizes() -> None:
    """The symmetric root is continuous in the state; a root with free signs would leave paths far apart."""

    def covariance(state_MD: Floats) -> Floats:
        along = np.stack([np.cos(state_MD[:, 0]), np.sin(state_MD[:, 0])], axis=1)
        return 0.2 * np.eye(2) + along[:, :, None] * along[:, None, :]

    result = convergence(
        lambda w: -w,
        covariance,
        np.ones((500, 2)),
        temperature=0.25,
        time=1.0,
        num_steps=16,
        num_halvings=3,
        observable=lambda w: w[:, 0],
        generator=generator(18),
    )
    assert 0.35 < result.strong_order < 1.1
    assert result.strong_errors[-1] < 0.05


# -- what cannot be used ---------------------------------------------------------------------------


def simulate(**changes: Any) -> Any:
    settings: dict[str, Any] = {
        "drift": lambda w: -w,
        "covariance": np.ones(2),
        "start_MD": np.ones((4, 2)),
        "temperature": 0.1,
        "step_size": 0.1,
        "normals": [np.zeros((4, 2))] * 3,
    }
    settings |= changes
    drift, covariance, start = settings.pop("drift"), settings.pop("covariance"), settings.pop("start_MD")
    return euler_maruyama(drift, covariance, start, **settings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step_size": 0.0}, "step_size must be a positive number, not 0.0"),
        ({"step_size": -0.1}, "step_size must be a positive number, not -0.1"),
        ({"step_size": math.nan}, "step_size must be a positive number, not nan"),
        ({"step_size": "0.1"}, "step_size must be a positive number, not '0.1'"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"temperature": math.inf}, "temperature=inf"),
        ({"start_MD": np.ones(4)}, r"the start has shape \(4,\)"),
        ({"start_MD": np.full((4, 2), math.nan)}, "finite numbers"),
        ({"covariance": np.ones(3)}, r"covariance has shape \(3,\); need \(2,\) for a diagonal or \(2, 2\)"),
        ({"covariance": np.ones((4, 2))}, r"covariance has shape \(4, 2\)"),
        ({"covariance": np.array(1.0)}, r"covariance has shape \(\)"),
        ({"covariance": np.array([1.0, -0.1])}, "negative variance -0.1"),
        ({"covariance": np.array([1.0, math.nan])}, "NaN"),
        ({"covariance": np.array([[1.0, 2.0], [2.0, 1.0]])}, "not positive semidefinite, it has the eigenvalue -1;"),
        ({"covariance": np.array([[1.0, 0.5], [0.0, 1.0]])}, "not symmetric"),
    ],
)
def test_unusable_arguments_are_refused_before_the_first_step(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        simulate(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drift": lambda w: w[:, 0]}, r"the drift returned shape \(4,\) at step 0; need \(4, 2\)"),
        ({"drift": lambda w: np.where(w < 0.95, math.nan, -w)}, "the drift returned NaN or infinity at step 1"),
        ({"covariance": lambda w: np.ones(2)}, r"covariance has shape \(2,\); need \(4, 2\) .* \(4, 2, 2\)"),
        ({"covariance": lambda w: w - 2}, "negative variance -1"),
        ({"covariance": lambda w: w * math.inf}, "NaN or infinity"),
        ({"covariance": lambda w: np.tile(np.array([[0.0, 1.0], [1.0, 0.0]]), (4, 1, 1))}, "positive semidefinite"),
        ({"normals": [np.zeros((4, 1))]}, r"normals of step 0 have shape \(4, 1\)"),
        ({"drift": lambda w: 1e200 * w, "normals": [np.zeros((4, 2))] * 9}, "smaller steps"),
        ({"drift": lambda w: np.full_like(w, 1.7e308), "step_size": 2.0}, "a trajectory overflowed at step 0"),
    ],
)
def test_unusable_functions_are_refused_at_their_step(changes: dict[str, Any], message: str) -> None:
    steps = simulate(**changes)
    with pytest.raises(UserError, match=message):
        list(steps)


def test_a_semidefinite_covariance_is_used() -> None:
    (state,) = simulate(covariance=np.ones((2, 2)), normals=[np.ones((4, 2))])
    np.testing.assert_allclose(state, 0.9 + 0.1 * math.sqrt(2), rtol=1e-12)


def test_unusable_sgd_is_refused() -> None:
    start, batch = np.ones((4, 2)), np.zeros((4, 3, 2))
    with pytest.raises(UserError, match="learning_rate must be a positive number, not 0"):
        sgd(quadratic_gradients(1.0), start, learning_rate=0, batches=[batch])
    with pytest.raises(UserError, match=r"batch 0 has shape \(5, 3, 2\); need \(4, batch size"):
        list(sgd(quadratic_gradients(1.0), start, learning_rate=0.1, batches=[np.zeros((5, 3, 2))]))
    with pytest.raises(UserError, match=r"the gradients returned shape \(4, 2\) at step 0; need \(4, 3, 2\)"):
        list(sgd(lambda w, x: w, start, learning_rate=0.1, batches=[batch]))
    with pytest.raises(UserError, match="the gradients returned NaN or infinity at step 0"):
        list(sgd(quadratic_gradients(1.0), start, learning_rate=0.1, batches=[batch * math.nan]))
    with pytest.raises(UserError, match="smaller steps"):  # far above the critical learning rate
        list(sgd(quadratic_gradients(1.0), start, learning_rate=1e100, batches=[batch] * 9))


def test_a_slope_needs_positive_numbers() -> None:
    with pytest.raises(ValueError, match="positive"):
        fitted_slope([1.0, 2.0], [0.0, 1.0])


# -- demonstration ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown() -> Demonstration:
    return piece.demonstrate(seed=0)


def test_demonstration_fits_its_contract(shown: Demonstration) -> None:
    assert shown.name == "sde"
    assert len(shown.panels) == 3
    for panel in shown.panels:
        for curve in panel.curves:
            assert np.isfinite([*curve.x, *curve.y]).all()
            assert not panel.y_log or min(curve.y) > 0
            assert not panel.x_log or min(curve.x) > 0
            if curve.low is not None and curve.high is not None:
                assert (np.less(curve.low, curve.y) & np.less(curve.y, curve.high)).all()
    for table in shown.tables:
        assert {len(row) for row in table.rows} == {len(table.columns)}
        assert all(type(value) in (str, int, float) for row in table.rows for value in row)
    assert json.loads(json.dumps(shown.as_json(), allow_nan=False))["settings"]["seed"] == 0


def test_demonstration_finds_what_theory_says(shown: Demonstration) -> None:
    transient, order, scaling, noise, stable, sampling = shown.tables
    for row in transient.rows:
        assert abs(float(row[3]) - float(row[5])) < LIMIT * float(row[4])
    assert [row[6] for row in transient.rows] == pytest.approx([1.0, 32 / 31, 4.0], rel=2e-3)
    assert [float(row[4]) for row in order.rows] == pytest.approx([1.0, 1.0, 0.5], abs=0.08)
    for row in scaling.rows:
        assert float(row[2]) == pytest.approx(float(row[3]), rel=0.05)
        assert float(row[5]) == pytest.approx(float(row[6]), rel=0.05)
    assert [row[1] for row in noise.rows] == pytest.approx([0.5, 2 / 3], abs=0.02)
    for row in stable.rows:
        assert float(row[3]) == pytest.approx(float(row[4]), rel=0.06)
    for row in sampling.rows:
        assert float(row[2]) == pytest.approx(float(row[5]), rel=0.08)


def test_paragraph_has_the_numbers_of_the_tables(shown: Demonstration) -> None:
    _, order, _, noise, _, sampling = shown.tables

    def said(before: str) -> float:
        (number,) = re.findall(re.escape(before) + r"(-?[\d.]*\d)", shown.paragraph)
        return float(number)

    assert said("converge to it with order ") == pytest.approx(float(order.rows[0][1]), abs=0.006)
    assert said("ε = 1.5 / h leaves ") == pytest.approx(4, abs=0.2)
    assert said("a relative error that grows like (nεh)^") == pytest.approx(2, abs=0.1)
    assert said("in the mean and (nεh)^") == pytest.approx(1, abs=0.06)
    assert said("finite variance adds up like n^") == pytest.approx(float(noise.rows[0][1]), abs=0.006)
    assert said("α = 1.5 adds up like n^") == pytest.approx(float(noise.rows[1][1]), abs=0.006)
    assert said("appendix A is too small by a factor of ") == pytest.approx(256 ** (1 / 6), abs=0.15)
    assert said("the spread of θ grows like T^") == pytest.approx(1 / 3, abs=0.03)
    assert said("a batch of 16 out of 64 has ") == pytest.approx(48 / 63, abs=0.02)
    assert said("the batches of one epoch are correlated by ") == pytest.approx(-1 / 3, abs=0.001)
    assert said("the variance after an epoch is ") == pytest.approx(float(sampling.rows[0][2]), abs=1e-4)


def test_demonstration_depends_on_its_seed_alone(shown: Demonstration) -> None:
    again, other = (piece._show_sampling(np.random.default_rng(seed).spawn(6)[5])[0] for seed in (0, 1))
    assert again == shown.tables[5]
    assert other != shown.tables[5]
