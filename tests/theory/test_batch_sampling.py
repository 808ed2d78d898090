"""Batches of a finite set against exact answers; seeds are fixed, limits as in `helpers_trajectories`."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from helpers_trajectories import LIMIT, examples_of, generator, last, standard_errors_off
from isotherm.errors import UserError
from isotherm.theory.batch_sampling import Sampling, batch_covariance, epoch_end_variance, finite_batches
from isotherm.theory.sde import quadratic_gradients, sgd

WITH, WITHOUT, SHUFFLED = Sampling.WITH_REPLACEMENT, Sampling.WITHOUT_REPLACEMENT, Sampling.SHUFFLED


@pytest.mark.parametrize(("num_examples", "batch_size"), [(6, 1), (6, 2), (6, 3), (6, 6), (4, 2)])
def test_batch_covariance_is_that_of_all_orders(num_examples: int, batch_size: int) -> None:
    """Over all permutations: exact, no sampling."""
    examples = examples_of([1.0], num_examples=num_examples, seed=29)[:, 0]
    orders = np.array(list(itertools.permutations(range(num_examples))))
    means = examples[orders].reshape(len(orders), -1, batch_size).mean(axis=2)
    covariance = np.atleast_2d(np.cov(means, rowvar=False, bias=True))
    variance, between = batch_covariance(batch_size=batch_size, num_examples=num_examples, sampling=SHUFFLED)
    exact = np.full_like(covariance, between)
    np.fill_diagonal(exact, variance)
    np.testing.assert_allclose(covariance, exact, atol=1e-12)
    assert batch_covariance(batch_size=batch_size, num_examples=num_examples, sampling=WITHOUT) == (variance, 0.0)


@pytest.mark.parametrize(
    ("sampling", "num_examples", "factor"), [(WITH, 20, 1.0), (WITHOUT, 20, 12 / 19), (SHUFFLED, 24, 16 / 23)]
)
def test_drawn_batches_have_the_variance_of_their_sampling(
    sampling: Sampling, num_examples: int, factor: float
) -> None:
    batches = finite_batches(
        examples_of([1.0], num_examples=num_examples, seed=30),
        batch_size=8,
        sampling=sampling,
        num_paths=20_000,
        num_steps=3,
        generator=generator(31),
    )
    means = np.stack([batch.mean(axis=(1, 2)) for batch in batches], axis=1)
    assert standard_errors_off(8 * means**2, factor) < LIMIT
    between = -1 / 23 if sampling is SHUFFLED else 0.0
    products = np.stack([means[:, i] * means[:, j] for i, j in itertools.combinations(range(3), 2)], axis=1)
    assert standard_errors_off(products, between) < LIMIT


def test_batches_of_a_shuffled_epoch_are_correlated_and_their_sum_is_certain() -> None:
    examples = examples_of([1.0, 2.0], num_examples=12, seed=32)
    batches = finite_batches(
        examples, batch_size=3, sampling=SHUFFLED, num_paths=10_000, num_steps=8, generator=generator(33)
    )
    means_SMD = np.stack([batch.mean(axis=1) for batch in batches])
    for epoch in (means_SMD[:4], means_SMD[4:]):
        np.testing.assert_allclose(epoch.sum(axis=0), 0.0, atol=1e-12)
        assert np.corrcoef(epoch[..., 0])[np.triu_indices(4, k=1)] == pytest.approx([-1 / 3] * 6, abs=0.045)
    across = np.corrcoef(means_SMD[..., 0])[:4, 4:]
    assert np.abs(across).max() < 0.045
    two_of_four = means_SMD[:2, :, 0].sum(axis=0)
    assert np.abs(two_of_four).max() > 0.5  # only the whole epoch is certain


@pytest.mark.parametrize("sampling", list(Sampling))
@pytest.mark.parametrize("learning_rate", [1 / 32, 1 / 4, 1.2])
def test_variance_after_an_epoch(sampling: Sampling, learning_rate: float) -> None:
    num_paths, num_epochs = 8_000, 30 if learning_rate < 0.1 else 6
    batches = finite_batches(
        examples_of([2.0], num_examples=24, seed=34),
        batch_size=3,
        sampling=sampling,
        num_paths=num_paths,
        num_steps=8 * num_epochs,
        generator=generator(35),
    )
    final = last(sgd(quadratic_gradients(1.0), np.zeros((num_paths, 1)), learning_rate=learning_rate, batches=batches))
    exact = epoch_end_variance(
        curvature=1.0,
        noise_variance=2.0,
        learning_rate=learning_rate,
        batch_size=3,
        num_examples=24,
        sampling=sampling,
    )
    assert standard_errors_off(final**2, exact) < LIMIT


def test_variance_after_an_epoch_in_its_limits() -> None:
    def variance(learning_rate: float, sampling: Sampling, num_examples: int = 24) -> float:
        return epoch_end_variance(
            curvature=2.0,
            noise_variance=3.0,
            learning_rate=learning_rate,
            batch_size=3,
            num_examples=num_examples,
            sampling=sampling,
        )

    exact = 0.1 * 3.0 / (3 * 2.0 * (2 - 0.2))
    assert variance(0.1, WITH) == pytest.approx(exact, rel=1e-12)
    assert variance(0.1, WITHOUT) == pytest.approx(exact * 21 / 23, rel=1e-12)
    assert variance(0.1, SHUFFLED, 3_000_000) == pytest.approx(exact, rel=1e-3)
    assert variance(1e-4, SHUFFLED) < 1e-4 * variance(1e-4, WITH)
    assert variance(0.1, SHUFFLED, 3) == pytest.approx(0.0, abs=1e-15)  # the whole set in one batch: no noise


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: batch_covariance(batch_size=7, num_examples=6, sampling=WITHOUT), "more than the num_examples=6"),
        (lambda: batch_covariance(batch_size=4, num_examples=6, sampling=SHUFFLED), "does not divide"),
        (lambda: batch_covariance(batch_size=0, num_examples=6, sampling=WITH), "batch_size=0"),
        (lambda: batch_covariance(batch_size=1.5, num_examples=6, sampling=WITH), "batch_size=1.5"),  # type: ignore[arg-type]
        (
            lambda: finite_batches(
                np.ones((6, 1)), batch_size=4, sampling=SHUFFLED, num_paths=1, num_steps=1, generator=generator(0)
            ),
            "does not divide",
        ),
        (
            lambda: epoch_end_variance(
                curvature=1.0, noise_variance=1.0, learning_rate=0.1, batch_size=4, num_examples=6, sampling=WITH
            ),
            "does not divide",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()
