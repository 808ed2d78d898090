import itertools
import math

import numpy as np
import pytest

from helpers_quadratic import random_model
from isotherm.core.schedule import Schedule
from isotherm.errors import UserError
from isotherm.theory.closed_forms import (
    critical_effective_learning_rate,
    critical_learning_rate,
    diffusion_second_moment,
    diffusion_stationary_variance,
    kink_batch_size,
    sgd_second_moment,
    stationary_variance,
)
from isotherm.theory.noisy_quadratic import NoisyQuadratic, SecondMoments, Setting, final_second_moments, one_update

CONSTANT = Schedule(gamma=1.0)
ONE = {"learning_rate": 1.0, "curvature": 1.0, "noise_variance": 1.0, "batch_size": 1, "initial": 1.0}


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


def test_the_kink_is_the_critical_learning_rate_over_the_temperature():
    assert kink_batch_size(0.01, largest_curvature=4.0, momentum=0.5) == pytest.approx(2 * 1.5 / 0.5 / 4 / 0.01)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: critical_learning_rate(0.0), "largest_curvature"),
        (lambda: critical_learning_rate(1.0, momentum=-0.1), "momentum=-0.1"),
        (lambda: stationary_variance(-1.0, curvature=1, noise_variance=1, batch_size=1), "learning_rate"),
        (lambda: diffusion_stationary_variance(1.0, curvature=0.0, noise_variance=1.0), "curvature"),
        (lambda: sgd_second_moment(1, **ONE | {"noise_variance": -1.0}), "noise_variance=-1.0"),
        (lambda: sgd_second_moment(0, **ONE), "num_steps must be a whole number of at least 1, not 0"),
        (lambda: kink_batch_size(0.0, largest_curvature=1.0), "optimal_temperature"),
    ],
)
def test_bad_values_are_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()
