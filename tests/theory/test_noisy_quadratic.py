import itertools
import math
import time

import numpy as np
import pytest
import torch

from isotherm.errors import UserError
from isotherm.schedule import Schedule, multipliers
from isotherm.theory.noisy_quadratic import (
    GridEdge,
    NoisyQuadratic,
    Optimum,
    SecondMoments,
    Setting,
    constant_blocks,
    constant_examples,
    critical_effective_learning_rate,
    critical_learning_rate,
    diffusion_second_moment,
    diffusion_stationary_variance,
    final_losses,
    final_second_moments,
    find_optimum,
    fitted_kink,
    kink_batch_size,
    learning_rate_grid,
    one_update,
    optima_at_constant_examples,
    optima_at_constant_steps,
    predicted_kink,
    propagate,
    sgd_second_moment,
    simulate_final_losses,
    stationary_variance,
)
from isotherm.theory.shown.noisy_quadratic import demonstrate

BATCH_SIZES = [1, 4, 16, 64, 256, 1024, 4096, 16384]
NUM_EXAMPLES = 2**17
CONSTANT = Schedule(gamma=1.0)

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


def random_model(seed: int, num_dimensions: int = 7) -> NoisyQuadratic:
    """Return a model that starts with any second moments, one dimension level and one without noise."""
    generator = np.random.default_rng(seed)
    curvature, noise, parameter, velocity = generator.uniform(0.1, 1.0, (4, num_dimensions))
    cross = generator.uniform(-0.9, 0.9, num_dimensions) * np.sqrt(parameter * velocity)
    curvature[0], noise[1] = 0.0, 0.0
    initial = SecondMoments(parameter=parameter, cross=cross, velocity=velocity)
    return NoisyQuadratic(curvature=curvature, noise_variance=noise, initial=initial)


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


# Closed forms.


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99])
def test_just_below_the_critical_learning_rate_means_shrink_and_above_they_grow(momentum):
    critical = critical_learning_rate(3.0, momentum=momentum)
    assert critical == pytest.approx(2 * (1 + momentum) / 3.0)
    for factor, shrinks in ((0.999, True), (1.001, False)):
        update = one_update(np.array([[factor * critical]]), curvature=np.array([3.0]), momentum=momentum)
        radius = np.abs(np.linalg.eigvals(update.gain[:, :, 0, 0])).max()
        assert (radius < 1) == shrinks


def test_momentum_of_nine_tenths_raises_the_effective_limit_nineteen_fold():
    ratio = critical_effective_learning_rate(0.7, momentum=0.9) / critical_effective_learning_rate(0.7)
    assert ratio == pytest.approx(19.0)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("fraction", [0.05, 0.5, 0.95])
def test_long_runs_reach_the_stationary_variance(momentum, fraction):
    model = random_model(2)
    model = NoisyQuadratic(curvature=model.curvature + 0.2, noise_variance=model.noise_variance, initial=model.initial)
    rate = fraction * critical_learning_rate(model.largest_curvature, momentum=momentum)
    setting = Setting(batch_size=5, num_steps=20_000, momentum=momentum, schedule=CONSTANT)
    moments = final_second_moments(model, setting, effective_learning_rates=[rate / (1 - momentum)])
    expected = stationary_variance(
        rate, curvature=model.curvature, noise_variance=model.noise_variance, batch_size=5, momentum=momentum
    )
    np.testing.assert_allclose(moments.parameter[0], expected, rtol=1e-9)


def test_the_stationary_variance_is_infinite_where_nothing_is_stationary():
    variance = stationary_variance(1.0, curvature=[0.0, 1.0, 2.0, 3.0], noise_variance=[1, 1, 0, 1], batch_size=1)
    assert variance.tolist() == [math.inf, 1.0, math.inf, math.inf]


@pytest.mark.parametrize("num_steps", [1, 5, 1000])
def test_the_transient_of_sgd_equals_the_recursion(num_steps):
    curvature = np.array([0.0, 1e-9, 0.3, 1.0, 1.7, 2.0 - 1e-9, 2.0, 2.01])
    model = NoisyQuadratic(
        curvature=curvature, noise_variance=np.full(8, 3.0), initial=SecondMoments.at_rest(np.full(8, 2.0))
    )
    setting = Setting(batch_size=4, num_steps=num_steps, schedule=CONSTANT)
    moments = final_second_moments(model, setting, effective_learning_rates=[1.0])
    closed = sgd_second_moment(
        num_steps, learning_rate=1.0, curvature=curvature, noise_variance=3.0, batch_size=4, initial=2.0
    )
    np.testing.assert_allclose(moments.parameter[0], closed, rtol=1e-10)


def test_discrete_steps_raise_the_stationary_variance_by_two_over_two_minus_rate_times_curvature():
    curvature, rate, batch_size = np.array([0.1, 1.0, 1.9]), 1.0, 8
    sgd = stationary_variance(rate, curvature=curvature, noise_variance=2.0, batch_size=batch_size)
    diffusion = diffusion_stationary_variance(rate / batch_size, curvature=curvature, noise_variance=2.0)
    np.testing.assert_allclose(sgd / diffusion, 2 / (2 - rate * curvature), rtol=1e-14)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_at_one_temperature_small_learning_rates_approach_the_diffusion_at_first_order(momentum):
    # Halving ε and B together keeps T, and twice the updates keep the time.
    h, c, start, time_passed, temperature = 0.5, 1600.0, 3.0, 2.0, 1 / 12800
    model = NoisyQuadratic(
        curvature=np.array([h]), noise_variance=np.array([c]), initial=SecondMoments.at_rest([start])
    )
    closed = diffusion_second_moment(time_passed, temperature=temperature, curvature=h, noise_variance=c, initial=start)
    errors = []
    for batch_size in (16, 8, 4, 2):
        rate = temperature * batch_size
        num_steps = round(time_passed / rate)
        setting = Setting(batch_size=batch_size, num_steps=num_steps, momentum=momentum, schedule=CONSTANT)
        moments = final_second_moments(model, setting, effective_learning_rates=[rate])
        errors.append(abs(moments.parameter[0, 0] - float(closed)))
    assert errors[0] < 0.01
    for coarse, fine in itertools.pairwise(errors):
        assert coarse / fine == pytest.approx(2.0, abs=0.1)


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


def test_the_kink_is_the_critical_learning_rate_over_the_temperature():
    assert kink_batch_size(0.01, largest_curvature=4.0, momentum=0.5) == pytest.approx(2 * 1.5 / 0.5 / 4 / 0.01)


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


ONE = {"learning_rate": 1.0, "curvature": 1.0, "noise_variance": 1.0, "batch_size": 1, "initial": 1.0}


def small(**changes) -> NoisyQuadratic:
    given = {"curvature": np.ones(2), "noise_variance": np.ones(2), "initial": SecondMoments.at_rest(np.ones(2))}
    return NoisyQuadratic(**(given | changes))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: small(curvature=[1.0, -1.0]), "curvature .* negative"),
        (lambda: small(curvature=[0.0, 0.0]), "nothing to minimise"),
        (lambda: small(curvature=[1.0]), r"curvature \(1,\)"),
        (lambda: small(noise_variance=[1.0, math.nan]), "noise_variance .* not finite"),
        (lambda: small(initial=SecondMoments(parameter=[1, 1], cross=[0, 2], velocity=[1, 1])), "no distribution"),
        (lambda: NoisyQuadratic.harmonic(0), "num_dimensions=0"),
        (lambda: Setting(batch_size=0, num_steps=1), "batch_size=0"),
        (lambda: Setting(batch_size=1, num_steps=1.5), "num_steps=1.5"),
        (lambda: Setting(batch_size=1, num_steps=1, momentum=1.0), "momentum=1.0"),
        (lambda: constant_examples(10, batch_size=11), "batch_size=11"),
        (lambda: constant_examples(10, batch_size=0), "batch_size=0"),
        (lambda: critical_learning_rate(0.0), "largest_curvature"),
        (lambda: critical_learning_rate(1.0, momentum=-0.1), "momentum=-0.1"),
        (lambda: stationary_variance(-1.0, curvature=1, noise_variance=1, batch_size=1), "learning_rate"),
        (lambda: diffusion_stationary_variance(1.0, curvature=0.0, noise_variance=1.0), "curvature"),
        (lambda: sgd_second_moment(1, **ONE | {"noise_variance": -1.0}), "noise_variance=-1.0"),
        (lambda: sgd_second_moment(0, **ONE), "num_steps=0"),
        (lambda: kink_batch_size(0.0, largest_curvature=1.0), "optimal_temperature"),
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
        ([], 2.0, "are not a list"),
        ([0.1, 0.2], 2.0, "three rising"),
        ([0.1, 0.3, 0.2], 2.0, "three rising"),
        ([0.1, 0.2, 0.3], 1.0, "growth_limit=1.0"),
        ([50.0, 60.0, 70.0], 2.0, "no effective learning rate from 50 to 70 is stable"),
    ],
)
def test_bad_grids_are_refused(rates, limit, message):
    with pytest.raises(UserError, match=message):
        find_optimum(small(), Setting(batch_size=1, num_steps=100), effective_learning_rates=rates, growth_limit=limit)


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
