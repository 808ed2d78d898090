import math
import time

import numpy as np
import pytest
import torch

from helpers_quadratic import random_model, small_model
from isotherm.core.multipliers import multipliers
from isotherm.core.schedule import Schedule
from isotherm.errors import UserError
from isotherm.theory.closed_forms import critical_effective_learning_rate, sgd_second_moment, stationary_variance
from isotherm.theory.noisy_quadratic import (
    NoisyQuadratic,
    SecondMoments,
    Setting,
    constant_blocks,
    final_losses,
    final_second_moments,
    one_update,
    propagate,
    simulate_final_losses,
)
from isotherm.theory.quadratic_tuning import constant_examples, learning_rate_grid

CONSTANT = Schedule(gamma=1.0)


@pytest.fixture(scope="module")
def harmonic() -> NoisyQuadratic:
    return NoisyQuadratic.harmonic()


def moments_by_walking(model: NoisyQuadratic, setting: Setting, rate: float) -> tuple[np.ndarray, ...]:
    """Return E θ², E θu and E u² by one update after the other, from the definitions of u and θ."""
    x, y, z = model.initial.parameter, model.initial.cross, model.initial.velocity
    h, v, m = model.curvature, model.noise_variance / setting.batch_size, setting.momentum
    for multiplier in multipliers(setting.num_steps, gamma=setting.schedule.gamma_from(initial=rate)):
        bare = rate * multiplier * (1 - m)
        new_z = m**2 * z + 2 * m * h * y + h**2 * x + v
        theta_new_u = m * y + h * x
        x, y, z = x - 2 * bare * theta_new_u + bare**2 * new_z, theta_new_u - bare * new_z, new_z
    return x, y, z


# The recursion.


@pytest.mark.parametrize("num_steps", [1, 2, 3, 8, 19, 20, 21, 39, 64, 333])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("schedule", [Schedule(), Schedule(gamma=1.0), Schedule(gamma=1.3), Schedule.ending_at(0.01)])
def test_moments_equal_one_update_after_the_other(num_steps, momentum, schedule):
    model = random_model(num_steps)
    rates = [0.02, 0.3, 1.7]
    setting = Setting(batch_size=3, num_steps=num_steps, momentum=momentum, schedule=schedule)
    moments = final_second_moments(model, setting, effective_learning_rates=rates)
    for place, rate in enumerate(rates):
        x, y, z = moments_by_walking(model, setting, rate)
        np.testing.assert_allclose(moments.parameter[place], x, rtol=1e-11, atol=1e-14)
        np.testing.assert_allclose(moments.cross[place], y, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(moments.velocity[place], z, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_powers_equal_those_of_the_augmented_four_by_four_matrix(momentum):
    rate, h, v = 0.13, 0.7, 0.4
    update = np.array([[1 - rate * h, -rate * momentum], [h, momentum]])
    matrix = np.zeros((5, 5))
    matrix[:4, :4] = np.kron(update, update)
    matrix[:4, 4] = v * np.outer([-rate, 1], [-rate, 1]).ravel()
    matrix[4, 4] = 1.0
    power = one_update(np.array([[rate]]), curvature=np.array([h]), momentum=momentum).power(37)
    expected = np.linalg.matrix_power(matrix, 37) @ np.array([2.0, 0.3, 0.3, 1.5, 1.0])
    initial = np.array([[2.0, 0.3], [0.3, 1.5]])[:, :, None, None]
    np.testing.assert_allclose((power.carry(initial) + v * power.noise).ravel(), expected[:4], rtol=1e-12)


def test_a_power_needs_a_positive_exponent():
    with pytest.raises(ValueError, match="exponent=0"):
        one_update(np.array([[0.1]]), curvature=np.array([1.0]), momentum=0.0).power(0)


@pytest.mark.parametrize("num_steps", [1, 2, 7, 8, 19, 20, 21, 40, 9765])
def test_blocks_say_what_the_multipliers_say(num_steps):
    blocks = constant_blocks(num_steps)
    spelled_out = np.concatenate([np.full(length, 2.0**-drops) for drops, length in blocks])
    assert spelled_out.tolist() == multipliers(num_steps, gamma=2.0).tolist()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_means_are_those_of_torch_s_sgd(momentum):
    curvature, start, rate, num_steps = [0.2, 0.9], [1.0, -2.0], 0.8, 47
    weights = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([weights], lr=1.0, momentum=momentum)
    for multiplier in multipliers(num_steps, gamma=2.0):
        optimiser.param_groups[0]["lr"] = rate * multiplier * (1 - momentum)
        optimiser.zero_grad()
        (0.5 * torch.tensor(curvature, dtype=torch.float64) @ weights**2).backward()
        optimiser.step()
    setting = Setting(batch_size=1, num_steps=num_steps, momentum=momentum)
    *_, run = propagate(np.array(curvature), setting, effective_learning_rates=[rate])
    np.testing.assert_allclose(run.gain[0, 0, 0] * start, weights.detach().numpy(), rtol=1e-12)


def test_learning_rates_share_nothing():
    model = NoisyQuadratic.harmonic(100)
    setting = constant_examples(2**12, batch_size=4, momentum=0.9)
    rates = learning_rate_grid(model, momentum=0.9)
    together = final_losses(model, setting, effective_learning_rates=rates)
    alone = [final_losses(model, setting, effective_learning_rates=[rate])[0] for rate in rates]
    assert together.tolist() == alone
    assert np.isfinite(together).any()
    assert np.isinf(together).any()


def test_the_loss_is_half_the_curvature_times_the_second_moment():
    model, setting = random_model(5), Setting(batch_size=2, num_steps=50, momentum=0.5)
    moments = final_second_moments(model, setting, effective_learning_rates=[0.1, 0.5])
    expected = [0.5 * sum(h * x for h, x in zip(model.curvature, row, strict=True)) for row in moments.parameter]
    losses = final_losses(model, setting, effective_learning_rates=[0.1, 0.5])
    np.testing.assert_allclose(losses, expected, rtol=1e-13)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_what_grows_too_large_is_infinite_and_never_nan(harmonic, momentum):
    setting = Setting(batch_size=1, num_steps=10**6, momentum=momentum)
    for growth_limit in (2.0**24, math.inf):
        losses = final_losses(harmonic, setting, effective_learning_rates=[0.01, 1e3, 1e300], growth_limit=growth_limit)
        assert math.isfinite(losses[0])
        assert losses[1:].tolist() == [math.inf, math.inf]
    moments = final_second_moments(harmonic, setting, effective_learning_rates=[1e3])
    assert not np.isnan([moments.parameter, moments.cross, moments.velocity]).any()


def test_a_dimension_in_its_minimum_without_noise_stays_there():
    model = NoisyQuadratic(
        curvature=np.array([1.0, 100.0]),
        noise_variance=np.array([1.0, 0.0]),
        initial=SecondMoments.at_rest([1.0, 0.0]),
    )
    moments = final_second_moments(
        model, Setting(batch_size=1, num_steps=5000), effective_learning_rates=[1.0], growth_limit=2.0**24
    )
    assert moments.parameter[0, 1] == moments.velocity[0, 1] == 0.0
    assert math.isfinite(moments.parameter[0, 0])


def test_a_level_dimension_costs_nothing():
    with_level, without = random_model(3), random_model(3)
    start = without.initial
    without = NoisyQuadratic(
        curvature=without.curvature[1:],
        noise_variance=without.noise_variance[1:],
        initial=SecondMoments(parameter=start.parameter[1:], cross=start.cross[1:], velocity=start.velocity[1:]),
    )
    setting = Setting(batch_size=2, num_steps=100, momentum=0.5)
    losses = [final_losses(model, setting, effective_learning_rates=[0.3])[0] for model in (with_level, without)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-14)


def test_a_million_updates_are_exact_and_take_seconds(harmonic):
    setting = constant_examples(2**20, batch_size=1)
    rates = learning_rate_grid(harmonic)
    began = time.process_time()
    losses = final_losses(harmonic, setting, effective_learning_rates=rates)
    assert time.process_time() - began < 5.0
    stable = rates <= critical_effective_learning_rate(1.0)
    assert np.isinf(losses[~stable]).all()
    for rate, loss in zip(rates[stable][::-5], losses[stable][::-5], strict=True):
        expected = harmonic.initial.parameter
        for drops, length in constant_blocks(setting.num_steps):
            expected = sgd_second_moment(
                length,
                learning_rate=rate / 2**drops,
                curvature=harmonic.curvature,
                noise_variance=harmonic.noise_variance,
                batch_size=1,
                initial=expected,
            )
        assert loss == pytest.approx(0.5 * np.sum(harmonic.curvature * expected), rel=1e-9)


# Monte Carlo.


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_plain_simulation_agrees_with_transient_and_stationary_variance(momentum):
    # 40,000 independent chains with skewed noise; within five standard errors, a false alarm in a million.
    generator = np.random.default_rng(11)
    h, c, batch_size, rate, num_chains = 0.8, 3.0, 4, 0.25, 40_000
    theta, velocity = np.full(num_chains, 1.5), np.zeros(num_chains)
    seen = {}
    for step in range(1, 301):
        noise = (generator.standard_exponential(num_chains) - 1.0) * math.sqrt(c / batch_size)
        velocity = momentum * velocity + h * theta + noise
        theta = theta - rate * velocity
        seen[step] = theta**2
    model = NoisyQuadratic(curvature=np.array([h]), noise_variance=np.array([c]), initial=SecondMoments.at_rest([2.25]))
    for step in (1, 3, 300):
        setting = Setting(batch_size=batch_size, num_steps=step, momentum=momentum, schedule=CONSTANT)
        exact = final_second_moments(model, setting, effective_learning_rates=[rate / (1 - momentum)]).parameter[0, 0]
        error = seen[step].std() / math.sqrt(num_chains)
        assert abs(seen[step].mean() - exact) < 5 * error
    closed = stationary_variance(rate, curvature=h, noise_variance=c, batch_size=batch_size, momentum=momentum)
    assert abs(seen[300].mean() - float(closed)) < 5 * seen[300].std() / math.sqrt(num_chains)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_simulated_runs_with_the_schedule_agree_with_the_expected_loss(momentum):
    model = random_model(8)
    setting = Setting(batch_size=2, num_steps=60, momentum=momentum)
    losses = simulate_final_losses(model, setting, effective_learning_rate=0.9, num_runs=20_000, seed=3)
    (exact,) = final_losses(model, setting, effective_learning_rates=[0.9])
    standard_error = losses.std() / math.sqrt(len(losses))
    assert standard_error < 0.02 * exact
    assert abs(losses.mean() - exact) < 5 * standard_error


def test_simulated_runs_follow_their_seed_and_may_diverge():
    model, setting = random_model(8), Setting(batch_size=2, num_steps=10)
    first, again, other = (
        simulate_final_losses(model, setting, effective_learning_rate=0.5, num_runs=4, seed=seed) for seed in (0, 0, 1)
    )
    assert first.tolist() == again.tolist()
    assert set(first) & set(other) == set()
    gone = simulate_final_losses(
        model, Setting(batch_size=1, num_steps=2000), effective_learning_rate=1e4, num_runs=3, seed=0
    )
    assert gone.tolist() == [math.inf] * 3


# What cannot be used.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: small_model(curvature=[1.0, -1.0]), "curvature .* negative"),
        (lambda: small_model(curvature=[0.0, 0.0]), "needs at least one positive curvature"),
        (lambda: small_model(curvature=[1.0]), r"curvature \(1,\)"),
        (lambda: small_model(noise_variance=[1.0, math.nan]), "noise_variance .* not finite"),
        (
            lambda: small_model(initial=SecondMoments(parameter=[1, 1], cross=[0, 2], velocity=[1, 1])),
            "are impossible",
        ),
        (lambda: NoisyQuadratic.harmonic(0), "num_dimensions must be a whole number of at least 1, not 0"),
        (lambda: Setting(batch_size=0, num_steps=1), "batch_size must be a whole number of at least 1, not 0"),
        (lambda: Setting(batch_size=1, num_steps=1.5), "num_steps must be a whole number of at least 1, not 1.5"),
        (lambda: Setting(batch_size=1, num_steps=1, momentum=1.0), "momentum=1.0"),
    ],
)
def test_bad_values_are_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()
