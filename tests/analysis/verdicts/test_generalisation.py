from __future__ import annotations

import re

import pytest

from helpers_verdicts import alone, broken, made_series, with_optimum_at_end
from isotherm.analysis.verdicts.generalisation import higher_test_optimum, large_batches

LINE = broken(1.0, 7.0)


def falls_by(amount: float):  # type: ignore[no-untyped-def]
    return lambda b: 0.7 - (amount if b == 1024 else 0.0)


def test_a_fall_of_the_largest_batch_is_seen() -> None:
    found = alone(large_batches(made_series(optimum=LINE, height=falls_by(0.03))))
    assert found.holds is True
    assert "to 1024 the test metric loses 3.0" in found.evidence


def test_no_fall_within_the_margin_does_not_hold() -> None:
    assert alone(large_batches(made_series(optimum=LINE, height=falls_by(0.0)))).holds is False
    best_last = alone(large_batches(made_series(optimum=LINE, height=lambda b: 0.6 + 1e-4 * b)))
    assert best_last.holds is False


def test_a_fall_that_noise_could_make_is_open() -> None:
    found = alone(large_batches(made_series(optimum=LINE, height=falls_by(0.01), error=0.6)))
    assert found.holds is None
    assert "--seeds" in found.command


def test_picking_the_best_of_many_is_paid_for() -> None:
    """Ahead by 2.3 standard errors: enough for one comparison, not for the best of seven."""
    heights = {8: 0.7, 1024: 0.7 - 2.3 * 0.01 * 0.05 * 2**0.5}
    two = made_series(optimum=LINE, height=lambda b: heights.get(b, 0.5))
    claim = large_batches(two)
    assert 7 * 0.02 < claim.p_holds < 7 * 0.1  # type: ignore[operator]


def test_fitting_worse_too_says_nothing_about_generalisation() -> None:
    series = made_series(optimum=LINE, height=falls_by(0.05), train_height=lambda b: 0.2 if b == 1024 else 0.1)
    found = alone(large_batches(series))
    assert found.holds is False
    assert "+100" in found.evidence
    slightly = made_series(optimum=LINE, height=falls_by(0.05), train_height=lambda b: 0.105 if b == 1024 else 0.1)
    assert alone(large_batches(slightly)).holds is True


@pytest.mark.parametrize(("shift", "holds"), [(0.5, True), (0.0, False), (-0.5, False)])
def test_the_test_optimum_against_the_training_optimum(shift: float, holds: bool) -> None:
    found = alone(higher_test_optimum(made_series(optimum=LINE, train_shift=shift)))
    assert found.holds is holds
    told = re.search(r"mean log2 ratio (.+?) \[(.+?), (.+?)\], margin 0\.25", found.evidence)
    assert told is not None, found.evidence
    assert float(told[1]) == pytest.approx(shift, abs=0.011)
    assert float(told[2]) < shift < float(told[3])


def test_a_shift_that_noise_could_make_is_open() -> None:
    assert alone(higher_test_optimum(made_series(optimum=LINE, train_shift=0.15, error=0.4))).holds is None


@pytest.mark.parametrize(
    ("claim", "name"),
    [
        (large_batches, "optimum"),
        (large_batches, "train_optimum"),
        (higher_test_optimum, "test_optimum"),
        (higher_test_optimum, "train_optimum"),
    ],
)
def test_optima_at_the_end_leave_it_open(claim, name: str) -> None:  # type: ignore[no-untyped-def]
    series = with_optimum_at_end(made_series(optimum=LINE, height=falls_by(0.05), train_shift=1.0), 32, name)
    found = alone(claim(series))
    assert found.holds is None
    assert "the end of its grid at B = 32" in found.evidence
    assert found.p_fails is None


def test_learning_rates_chosen_on_validation_data_decide_what_the_largest_batch_loses() -> None:
    """The test curves are equally high, but the learning rate that was chosen for B = 1,024 is two octaves off."""
    off = made_series(optimum=LINE, tuned=lambda b: LINE(b) - (2.0 if b == 1024 else 0.0))
    found = alone(large_batches(off))
    assert found.holds is True
    assert "the test metric, at learning rates chosen on the validation set, loses 4.0" in found.evidence
    on = alone(large_batches(made_series(optimum=LINE, tuned=LINE)))
    assert on.holds is False


def test_the_best_batch_size_is_that_of_what_was_tuned() -> None:
    """By the test set it would be B = 64, which the validation set does not know of."""
    series = made_series(optimum=LINE, height=lambda b: 0.75 if b == 64 else 0.7, tuned=LINE)
    assert series.fit is not None
    series.fit.heights[:, series.fit.batch_sizes.index(32)] += 0.02
    assert "from B = 32 to 1024" in alone(large_batches(series)).evidence
