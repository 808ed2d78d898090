from __future__ import annotations

import numpy as np
import pytest

from helpers_verdicts import MadeFit
from isotherm.analysis.verdicts.draws import (
    HEIGHT_WIDENING,
    independent,
    limits_of_kink,
    mean_over_sizes,
    shortfalls,
    widened,
)


def fit(**changes: object) -> MadeFit:
    generator = np.random.default_rng(0)
    fields = {
        "batch_sizes": (8, 16, 32, 64),
        "optima": generator.normal(size=(4000, 4)),
        "heights": generator.normal(size=(4000, 4)),
        "slopes": np.ones(4000),
        "kinks": np.full(4000, 5.0),
        "plateaus": np.zeros(4000),
    }
    return MadeFit(**{**fields, **changes})  # type: ignore[arg-type]


def test_errors_of_position_do_not_average_out_over_batch_sizes_but_those_of_seeds_do() -> None:
    made = fit()
    columns = [0, 1, 2, 3]
    assert np.std(mean_over_sizes(made, made.optima, columns)) == pytest.approx(1.0, rel=0.05)  # type: ignore[arg-type]
    assert np.std(mean_over_sizes(made, made.heights, columns)) == pytest.approx(0.5, rel=0.05)  # type: ignore[arg-type]
    unresolved = fit(heights=0.05 * made.optima)  # all that is known of a height is where its optimum lies
    assert np.std(mean_over_sizes(unresolved, unresolved.heights, columns)) == pytest.approx(0.05, rel=0.05)  # type: ignore[arg-type]


def test_only_the_named_batch_sizes_count() -> None:
    made = fit(heights=np.tile([1.0, 2.0, 3.0, 10.0], (4000, 1)))
    assert np.mean(mean_over_sizes(made, made.heights, [1, 2])) == pytest.approx(2.5)  # type: ignore[arg-type]


def test_a_kink_that_draws_do_not_show_has_no_upper_limit() -> None:
    kinks = np.where(np.arange(4000) % 10 == 0, np.nan, 5.0)
    low, high = limits_of_kink(fit(kinks=kinks))  # type: ignore[arg-type]
    assert (low, high) == (32.0, np.inf)
    assert np.mean(shortfalls(fit(kinks=kinks)) == 0) == pytest.approx(0.1)  # type: ignore[arg-type]
    assert np.max(shortfalls(fit())) == 1.0  # type: ignore[arg-type]


def test_differences_of_heights_are_widened_about_their_medians() -> None:
    draws = np.random.default_rng(0).normal([1.0, 5.0], 0.1, size=(4001, 2))
    wide = widened(draws)
    assert np.median(wide, axis=0) == pytest.approx(np.median(draws, axis=0))
    assert np.std(wide, axis=0) / np.std(draws, axis=0) == pytest.approx(HEIGHT_WIDENING, rel=1e-3)


def test_draws_in_another_order_are_the_same_draws() -> None:
    draws = np.arange(100.0)
    moved = independent(draws, seed=1)
    assert sorted(moved) == draws.tolist()
    assert abs(np.corrcoef(draws, moved)[0, 1]) < 0.3
