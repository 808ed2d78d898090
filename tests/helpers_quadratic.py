"""Small noisy quadratics."""

from __future__ import annotations

import numpy as np

from isotherm.theory.noisy_quadratic import NoisyQuadratic, SecondMoments


def random_model(seed: int, num_dimensions: int = 7) -> NoisyQuadratic:
    """Return a model that starts with any second moments, one dimension level and one without noise."""
    generator = np.random.default_rng(seed)
    curvature, noise, parameter, velocity = generator.uniform(0.1, 1.0, (4, num_dimensions))
    cross = generator.uniform(-0.9, 0.9, num_dimensions) * np.sqrt(parameter * velocity)
    curvature[0], noise[1] = 0.0, 0.0
    initial = SecondMoments(parameter=parameter, cross=cross, velocity=velocity)
    return NoisyQuadratic(curvature=curvature, noise_variance=noise, initial=initial)


def small_model(**changes: object) -> NoisyQuadratic:
    """Return a model in two equal dimensions, but for what is changed."""
    given = {"curvature": np.ones(2), "noise_variance": np.ones(2), "initial": SecondMoments.at_rest(np.ones(2))}
    return NoisyQuadratic(**(given | changes))
