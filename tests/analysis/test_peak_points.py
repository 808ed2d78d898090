"""Fits at given points are those of `fit_heights`, which is the definition, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from isotherm.analysis import peak, peak_points
from isotherm.analysis.curves import Curves
from isotherm.analysis.peak_points import PointFits


def made_up(*, falls: Sequence[float] = ()) -> Curves:
    """Return curves of four batch sizes at six learning rates, one of which is unstable."""
    generator = np.random.default_rng(1)
    log_rates = np.arange(6.0) + np.arange(4.0)[:, None] / 3
    below_best = -0.1 * (log_rates - 2.5) ** 2 + 0.01 * generator.standard_normal((4, 6))
    below_best -= below_best.max(axis=1, keepdims=True)
    used = np.ones((4, 6), dtype=np.bool_)
    used[3, 5] = False
    seen = np.zeros((4, 6))
    seen[0, : len(falls)] = falls
    return Curves(
        octaves=np.arange(4.0) - 1.5,
        log_rates=log_rates,
        best=np.full(4, 0.9),
        below_best=np.where(used, below_best, 0.0),
        used=used & (seen == 0),
        variances=np.full((4, 6), 1e-4),
        common_variance=np.full(4, 1e-5),
        drops=-below_best,
        depths=np.full((4, 6), 1e-3),
        falls=seen,
        low=log_rates[:, 0] - 1,
        high=log_rates[:, -1] + 1,
        freedom=20.0,
        common_freedom=5.0,
    )


@pytest.mark.parametrize("falls", [(), (0.3, 0.1)])
@pytest.mark.parametrize("at_once", [1, 100_000])
def test_they_are_those_of_the_definition(
    falls: Sequence[float], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peak_points, "_NUMBERS_AT_ONCE", at_once)
    curves, generator = made_up(falls=falls), np.random.default_rng(0)
    points = np.linspace(curves.low, curves.high, 9)
    points[4] = curves.log_rates[:, 2]  # exactly at a learning rate, where nothing is lost
    shapes = peak.rough_shapes(curves, generator, 50)
    expected = peak.fit_heights(curves, shapes[:, None], points).log_likelihoods
    fits = PointFits(curves, points)
    for _ in range(2):  # in arrays that were used before
        assert np.array_equal(fits.log_likelihoods(shapes), expected)
    assert np.isfinite(expected).all()
