from __future__ import annotations

import math

import numpy as np
import pytest

from isotherm.analysis.verdicts.margins import metric_margin


def test_bounded_metrics_have_half_a_point_of_their_range_whatever_their_height() -> None:
    for height in (0.2, 0.99):
        assert metric_margin((0.0, 1.0), [np.full((10, 3), height)]) == 0.005
    assert metric_margin((-1.0, 1.0), []) == 0.01
    assert metric_margin((-math.inf, 1.0), [np.full((10, 3), 0.5)]) == pytest.approx(0.005)


@pytest.mark.parametrize("noise", [0.0, 0.1, 1.0])
def test_noisier_runs_do_not_widen_a_margin(noise: float) -> None:
    draws = 3.0 + noise * np.random.default_rng(0).normal(size=(4001, 5))
    assert metric_margin(None, [draws]) == pytest.approx(0.03, rel=0.03)


def test_the_scale_is_the_middle_of_all_series_compared() -> None:
    plain, heavy = np.full((10, 3), 2.0), np.full((10, 5), -4.0)
    assert metric_margin(None, [plain, heavy]) == pytest.approx(0.04)
