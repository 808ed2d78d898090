from __future__ import annotations

import pytest

from helpers_landscape import broken_line, first_sweep, landscape_study
from isotherm.regimes import regimes, series


@pytest.mark.parametrize(("slope", "kink"), [(1.0, 64), (1.0, 256), (0.5, 128)])
def test_a_known_broken_line_is_recovered_within_its_intervals(slope: float, kink: float) -> None:
    study = landscape_study(optimum=broken_line(slope, kink, 4.0), peak=lambda _b, _m: 0.7, momenta=(0.9,))
    (found,) = regimes(first_sweep(study))
    assert found.slope.contains(slope)
    assert found.slope.high - found.slope.low < 1.2
    assert found.kink is not None
    assert found.kink.contains(kink)
    assert found.plateau == pytest.approx(4.0, rel=0.3)
    assert found.shows_kink
    assert found.shortfall.low > 0
    assert "kink at B" in str(found)


def test_no_kink_is_said_where_the_optimum_rises_to_the_end() -> None:
    study = landscape_study(optimum=broken_line(1.0, 2**12, 64.0), peak=lambda _b, _m: 0.7, momenta=(0.9,))
    (found,) = regimes(first_sweep(study))
    assert found.kink is None
    assert not found.shows_kink
    assert found.shortfall.estimate == 0
    assert "no kink seen up to B = 1024" in str(found)


def test_one_fit_per_momentum_and_none_below_three_batch_sizes() -> None:
    study = landscape_study(optimum=broken_line(1.0, 64, 4.0), peak=lambda _b, _m: 0.7)
    assert [r.momentum for r in regimes(first_sweep(study))] == [0.0, 0.9]
    short = landscape_study(optimum=broken_line(1.0, 64, 4.0), peak=lambda _b, _m: 0.7, sizes=(8, 16))
    assert regimes(first_sweep(short)) == []
    assert [len(grids) for grids in series(first_sweep(short))] == [2, 2]


def test_the_interval_covers_the_grid_spacing() -> None:
    """Without seed noise the learning rates still resolve the optimum to half a step only."""
    study = landscape_study(optimum=broken_line(1.0, 64, 4.0), peak=lambda _b, _m: 0.7, momenta=(0.9,), noise=0.0)
    (found,) = regimes(first_sweep(study))
    assert found.slope.low < 0.95 < 1.05 < found.slope.high


def test_three_batch_sizes_determine_no_kink() -> None:
    study = landscape_study(
        optimum=broken_line(1.0, 64, 4.0), peak=lambda _b, _m: 0.7, momenta=(0.9,), sizes=(32, 64, 128)
    )
    (found,) = regimes(first_sweep(study))
    assert not found.shows_kink


def test_straight_lines_seldom_look_broken() -> None:
    """Under a straight line with seed noise a kink is claimed in at most 5 of 40 studies (expected: 1 in 40)."""
    claimed = 0
    for shift in range(40):
        rate = 2.0**-5 * 2 ** (shift / 40)  # where the line lies between the grid points

        def optimum(batch_size: int, _momentum: float, rate: float = rate) -> float:
            return rate * batch_size**0.75

        study = landscape_study(
            optimum=optimum, peak=lambda _b, _m: 0.7, momenta=(0.9,), sizes=(8, 16, 32, 64, 128, 256), noise=0.01
        )
        claimed += regimes(first_sweep(study))[0].shows_kink
    assert claimed <= 5
