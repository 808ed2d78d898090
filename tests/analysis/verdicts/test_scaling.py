from __future__ import annotations

import pytest

from helpers_verdicts import alone, broken, made_series, same_attributes, with_optimum_at_end
from isotherm.analysis.verdicts.scaling import kink, proportional


def test_claims_read_what_a_fit_has() -> None:
    assert same_attributes()


@pytest.mark.parametrize(("slope", "holds"), [(1.0, True), (0.9, True), (1.15, True), (0.5, False), (1.6, False)])
def test_a_slope_inside_the_margin_is_proportional(slope: float, holds: bool) -> None:
    found = alone(proportional(made_series(optimum=broken(slope, 7.0))))
    assert found.holds is holds, found
    assert f"∝ B^{slope:.2f} [" in found.evidence
    assert "proportional within [0.8, 1.25]" in found.evidence


@pytest.mark.parametrize("slope", [0.8, 1.25])
def test_a_slope_on_the_margin_is_left_open(slope: float) -> None:
    found = alone(proportional(made_series(optimum=broken(slope, 7.0))))
    assert found.holds is None
    assert "--seeds" in found.command


def test_a_wide_interval_is_left_open_with_the_seeds_that_would_decide() -> None:
    found = alone(proportional(made_series(optimum=broken(1.0, 7.0), error=0.7)))
    assert found.holds is None
    assert "80 % power" in found.remedy


def test_a_slope_of_one_through_optima_that_are_not_proportional_does_not_hold() -> None:
    off = {8: 0.0, 16: 0.0, 32: 0.0, 64: 3.0, 128: 4.0, 256: 5.0, 512: 6.0, 1024: 7.0}
    found = alone(proportional(made_series(optimum=lambda b: off[b])))
    assert found.holds is False
    assert "no one temperature fits" in found.evidence


@pytest.mark.parametrize(("log_kink", "holds"), [(6.0, True), (8.0, True), (20.0, False)])
def test_a_kink_is_seen_or_shown_not_to_be_there(log_kink: float, holds: bool) -> None:
    found = alone(kink(made_series(optimum=broken(1.0, log_kink))))
    assert found.holds is holds, found
    assert ("kink at B ≈" in found.evidence) is holds


def test_a_kink_between_nothing_and_the_margin_is_left_open() -> None:
    found = alone(kink(made_series(optimum=broken(1.0, 9.5), error=0.3)))
    assert found.holds is None


def test_optima_that_do_not_rise_have_no_kink_to_judge() -> None:
    assert alone(kink(made_series(optimum=lambda _b: 1.0))).holds is None


@pytest.mark.parametrize("claim", [proportional, kink])
def test_an_optimum_at_the_end_of_its_grid_leaves_everything_open(claim) -> None:  # type: ignore[no-untyped-def]
    series = with_optimum_at_end(made_series(optimum=broken(1.0, 7.0)), 64)
    found = alone(claim(series))
    assert found.holds is None
    assert found.p_holds is None
    assert found.evidence == "cannot be judged: an optimum lies at the end of its grid at B = 64"
    assert "--max-extensions" in found.command


def test_too_few_batch_sizes_or_seeds_are_said() -> None:
    three = made_series(optimum=broken(1.0, 9.0), sizes=(8, 16, 32))
    assert alone(proportional(three)).holds is True
    found = alone(kink(three))
    assert found.holds is None
    assert "3 batch sizes are not enough" in found.evidence
    assert "batch_sizes = [2, 4, 8, 16, 32, 64, 128]" in found.remedy
    for num, words in ((1, "one seed is not enough"), (2, "2 seeds are not enough")):
        found = alone(proportional(made_series(optimum=broken(1.0, 7.0), num_seeds=num)))
        assert found.holds is None
        assert words in found.evidence
        assert found.command == "isotherm run made.toml --seeds 5"
