"""Claims against batch size hold where they are true, fail where they are false, and stay open otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from helpers_paper import made_analysis
from helpers_verdicts import alone, broken, made_pair, made_series
from isotherm.studies.paper.claims import batch_sizes as claims
from isotherm.studies.paper.settings import EQUAL_EPOCHS, EQUAL_STEPS

LINE = broken(1.0, 7.0)  # rises up to B = 128


def falling(b: int) -> float:
    return 0.7 if b <= 128 else 0.6


def flat(b: int) -> float:
    return 0.7


def tilted(b: int) -> float:
    return 0.7 - 0.0008 * b


@pytest.mark.parametrize(
    ("test", "height", "holds"),
    [
        (claims.flat_below_kink(0.0), falling, True),
        (claims.flat_below_kink(0.0), tilted, False),
        (claims.worse_above_kink(0.0), falling, True),
        (claims.worse_above_kink(0.0), flat, False),
        (claims.proportional(0.0), flat, True),
        (claims.square_root(0.0), flat, False),
        (claims.levels_off(0.0), flat, True),
        (claims.proportional_throughout(0.0), flat, False),
        (claims.less_than_proportional(0.0), flat, True),
    ],
)
def test_equal_epochs(test: claims.Test, height: Callable[[int], float], holds: bool) -> None:
    analysis = made_analysis(made_series(optimum=LINE, height=height), name=EQUAL_EPOCHS)
    assert alone(test("a claim", analysis)).holds is holds


def rising(b: int) -> float:
    return 0.1 if b <= 128 else 0.3


@pytest.mark.parametrize(
    ("test", "train", "holds"),
    [
        (claims.flat_below_kink(0.0, quantity="train"), rising, True),
        (claims.flat_below_kink(0.0, quantity="train"), lambda b: 0.1 + 0.001 * b, False),
        (claims.worse_above_kink(0.0, quantity="train"), rising, True),
        (claims.worse_above_kink(0.0, quantity="train"), flat, False),
    ],
)
def test_the_training_panel_at_equal_epochs(test: claims.Test, train: Callable[[int], float], holds: bool) -> None:
    analysis = made_analysis(made_series(optimum=LINE, train_height=train), name=EQUAL_EPOCHS)
    assert alone(test("a claim", analysis)).holds is holds


@pytest.mark.parametrize(
    ("side", "heavy", "holds"),
    [
        ("below", flat_train := (lambda _b: 0.1), True),
        ("below", lambda _b: 0.05, False),
        ("above", flat_train, True),
        ("above", rising, False),
    ],
)
def test_momentum_s_training_loss(
    side: str, heavy: Callable[[int], float], holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain SGD's training loss rises above its kink."""
    plain = made_series(optimum=LINE, train_height=rising)
    pair = made_pair(plain, made_series(optimum=LINE, train_height=heavy, momentum=0.9))
    monkeypatch.setattr(claims, "pair_named", lambda *_: pair)
    analysis = made_analysis(plain, name=EQUAL_EPOCHS)
    assert alone(claims.training_gain(side)("a claim", analysis)).holds is holds


def test_a_square_root_is_seen() -> None:
    analysis = made_analysis(made_series(optimum=broken(0.5, 7.0)), name=EQUAL_EPOCHS)
    assert alone(claims.square_root(0.0)("a claim", analysis)).holds is True
    assert alone(claims.proportional(0.0)("a claim", analysis)).holds is False


@pytest.mark.parametrize(
    ("test", "height", "train", "holds"),
    [
        (claims.best_batch_beats("last"), falling, flat, True),
        (claims.best_batch_beats("last"), flat, flat, False),
        (claims.best_batch_beats("first"), lambda b: 0.6 if b == 8 else 0.7, flat, True),
        (claims.best_batch_beats("first"), falling, flat, False),
        (claims.training_improves(), flat, lambda b: 1 / b, True),
        (claims.training_improves(), flat, lambda b: 0.1 + 1e-3 * b, False),
        (claims.large_batches_worse(), falling, flat, True),
        (claims.fits_no_worse(), falling, flat, True),
        (claims.fits_no_worse(), flat, flat, True),  # whatever the test set says
        (claims.fits_no_worse(), falling, rising, False),
        (claims.training_rises_in_the_end(), flat, rising, True),
        (claims.training_rises_in_the_end(), flat, lambda b: 1 / b, False),
        (claims.proportional(0.9, name=EQUAL_STEPS), flat, flat, True),
        (claims.same_rate(), flat, flat, False),
    ],
)
def test_equal_steps(
    test: claims.Test, height: Callable[[int], float], train: Callable[[int], float], holds: bool
) -> None:
    series = made_series(optimum=LINE, height=height, train_height=train, momentum=0.9)
    assert alone(test("a claim", made_analysis(series, name=EQUAL_STEPS))).holds is holds


def test_one_rate_for_all_batch_sizes_is_seen() -> None:
    series = made_series(optimum=lambda _b: -2.0, momentum=0.9)
    assert alone(claims.same_rate()("a claim", made_analysis(series, name=EQUAL_STEPS))).holds is True


def test_noise_leaves_claims_open() -> None:
    series = made_series(optimum=LINE, height=lambda b: 0.7 - 0.002 * (b == 1024), error=2.0, momentum=0.9)
    found = alone(claims.best_batch_beats("last")("a claim", made_analysis(series, name=EQUAL_STEPS)))
    assert found.holds is None
    assert found.remedy


def test_a_batch_size_without_an_optimum_blocks_the_claim() -> None:
    """The largest batch that has one is not the largest of the table."""
    analysis = made_analysis(made_series(optimum=LINE, momentum=0.9), name=EQUAL_STEPS)
    sweep = analysis.sweeps[0]
    sweep.series = [type(s)(**{n: getattr(s, n) for n in s.__slots__} | {"grids": s.grids[:-1]}) for s in sweep.series]
    found = alone(claims.best_batch_beats("last")("a claim", analysis))
    assert found.holds is None
    assert "no optimum at B = 1024" in found.evidence


def test_few_seeds_decide_nothing() -> None:
    analysis = made_analysis(made_series(optimum=LINE, num_seeds=1), name=EQUAL_EPOCHS)
    assert alone(claims.proportional(0.0)("a claim", analysis)).holds is None
