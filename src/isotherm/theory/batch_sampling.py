"""Batches from a finite training set: how they are drawn, and what that does to the noise of SGD.

Shapes: M trajectories (paths), D parameters, B examples of a batch, N examples in all.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterator
from enum import StrEnum

import numpy as np

from isotherm.core.statistics import Floats
from isotherm.errors import UserError
from isotherm.theory.checks import need_stable


class Sampling(StrEnum):
    """How batches are drawn from N examples."""

    WITH_REPLACEMENT = "with replacement"
    WITHOUT_REPLACEMENT = "without replacement"
    SHUFFLED = "shuffled epochs"


def finite_batches(
    examples_ND: Floats,
    *,
    batch_size: int,
    sampling: Sampling,
    num_paths: int,
    num_steps: int,
    generator: np.random.Generator,
) -> Iterator[Floats]:
    """Yield batches (M, B, ...) of a finite set of examples, drawn independently for every trajectory.

    Without replacement, every batch is drawn afresh from all examples; in shuffled epochs, one permutation is cut into
    batches until it is used up, as in training.
    """
    num_examples = len(examples_ND)
    _check_batch(batch_size, num_examples, sampling)

    def batches() -> Iterator[Floats]:
        in_order = np.broadcast_to(np.arange(num_examples), (num_paths, num_examples))
        epoch = in_order
        per_epoch = num_examples // batch_size if sampling is Sampling.SHUFFLED else 1
        for step in range(num_steps):
            if sampling is Sampling.WITH_REPLACEMENT:
                yield examples_ND[generator.integers(num_examples, size=(num_paths, batch_size))]
                continue
            index = step % per_epoch
            if index == 0:
                epoch = generator.permuted(in_order, axis=1)
            yield examples_ND[epoch[:, index * batch_size : (index + 1) * batch_size]]

    return batches()


def batch_covariance(*, batch_size: int, num_examples: int, sampling: Sampling) -> tuple[float, float]:
    """Return the variance of a batch mean, and the covariance of two batches of one epoch, for examples of variance 1.

    1 / B with replacement, (N - B) / (N - 1) of that without. Batches of a shuffled epoch have covariance -1 / (N - 1):
    all of them together are always the whole set.

    >>> batch_covariance(batch_size=2, num_examples=5, sampling=Sampling.WITHOUT_REPLACEMENT)
    (0.375, 0.0)
    >>> batch_covariance(batch_size=2, num_examples=4, sampling=Sampling.SHUFFLED)  # the other half: -1 times this one
    (0.3333333333333333, -0.3333333333333333)
    """
    _check_batch(batch_size, num_examples, sampling)
    if sampling is Sampling.WITH_REPLACEMENT:
        return 1 / batch_size, 0.0
    if num_examples == 1:  # a single example has no variance
        return 0.0, 0.0
    variance = (num_examples - batch_size) / (num_examples - 1) / batch_size
    return variance, -1 / (num_examples - 1) if sampling is Sampling.SHUFFLED else 0.0


def epoch_end_variance(
    *,
    curvature: float,
    noise_variance: float,
    learning_rate: float,
    batch_size: int,
    num_examples: int,
    sampling: Sampling,
) -> float:
    """Return the stationary variance of SGD as seen after every epoch of K = N / B updates.

    With w_j = (1 - εh)^j, batch variance v and covariance u of `batch_covariance`, an epoch adds
    ε² c ((v - u) Σ w_j² + u (Σ w_j)²). In shuffled epochs the noise of an epoch cancels except for the decay within it,
    so the variance is far below T c / (2h) unless εhK ≫ 1, that is, unless SGD forgets within an epoch.

    >>> settings = dict(curvature=1.0, noise_variance=1.0, learning_rate=0.01, batch_size=1, num_examples=10)
    >>> [round(epoch_end_variance(**settings, sampling=sampling), 6) for sampling in Sampling]
    [0.005025, 0.005025, 5e-06]
    """
    need_stable(curvature, learning_rate)
    variance, covariance = batch_covariance(batch_size=batch_size, num_examples=num_examples, sampling=sampling)
    if num_examples % batch_size:
        raise UserError(
            f"batch_size={batch_size} does not divide num_examples={num_examples}; an epoch must be a whole number of "
            "batches"
        )
    decay = 1 - learning_rate * curvature
    weights = decay ** np.arange(num_examples // batch_size)
    spread = (variance - covariance) * np.sum(weights**2) + covariance * np.sum(weights) ** 2
    return float(learning_rate**2 * noise_variance * spread / (1 - decay ** (2 * len(weights))))


def _check_batch(batch_size: int, num_examples: int, sampling: Sampling) -> None:
    if not (isinstance(batch_size, numbers.Integral) and batch_size >= 1 and num_examples >= 1):
        raise UserError(
            f"batch_size={batch_size!r} with num_examples={num_examples}; both must be positive whole numbers"
        )
    if sampling is not Sampling.WITH_REPLACEMENT and batch_size > num_examples:
        raise UserError(
            f"batch_size={batch_size} is more than the num_examples={num_examples} available; take a smaller batch or "
            f"draw with replacement"
        )
    if sampling is Sampling.SHUFFLED and num_examples % batch_size:
        raise UserError(
            f"batch_size={batch_size} does not divide num_examples={num_examples}; shuffled epochs here consist of "
            f"whole batches, so take a divisor"
        )
