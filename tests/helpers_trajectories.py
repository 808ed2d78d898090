"""Many trajectories at once, and how far their mean is from what it should be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from isotherm.core.statistics import Floats
from isotherm.theory.noise_kinds import skewed_noise

LIMIT = 4.5  # standard errors; exceeded by chance once in 150,000


def generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def standard_errors_off(sample: Floats, exact: Any) -> float:
    """Return the largest distance of the mean over paths (first axis) from the exact values, in standard errors."""
    error = sample.std(axis=0, ddof=1) / math.sqrt(len(sample))
    return float(np.max(np.abs(sample.mean(axis=0) - exact) / error))


def examples_of(variance: list[float], *, num_examples: int, seed: int) -> Floats:
    """Return skewed examples with mean 0 and exactly these variances, shape (N, D)."""
    drawn = skewed_noise(generator(seed), (num_examples, len(variance)))
    return np.asarray((drawn - drawn.mean(axis=0)) / drawn.std(axis=0) * np.sqrt(variance))


def last(states: Any) -> Floats:
    *_, final = states
    return np.asarray(final)
