"""Claims against the budget hold where they are true, fail where they are false, and stay open otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from helpers_paper import over_budgets
from helpers_verdicts import alone, made_series
from isotherm.studies.paper.claims import budgets as claims
from isotherm.studies.paper.settings import BUDGETS


def made(
    heights: Sequence[float] = (0.6, 0.7, 0.7),
    *,
    optima: Sequence[float] = (0.0, 0.0, 0.0),
    train_optima: Sequence[float] = (0.0, 0.0, 0.0),
    train: Sequence[float] = (0.3, 0.2, 0.1),
    error: float = 0.05,
) -> Any:
    """Return an analysis of one batch size at rising budgets."""
    series = [
        made_series(
            optimum=lambda _b, o=o: o,  # type: ignore[misc]
            height=lambda _b, h=h: h,  # type: ignore[misc]
            train_shift=o - t,
            train_height=lambda _b, v=v: v,  # type: ignore[misc]
            sizes=(32,),
            momentum=0.9,
            error=error,
        )
        for h, o, t, v in zip(heights, optima, train_optima, train, strict=True)
    ]
    return over_budgets(*series, name=BUDGETS)


@pytest.mark.parametrize(
    ("test", "analysis", "holds"),
    [
        (claims.metric_falls_in_the_end(BUDGETS), made((0.6, 0.7, 0.65)), True),
        (claims.metric_falls_in_the_end(BUDGETS), made((0.6, 0.65, 0.7)), False),
        (claims.metric_saturates(BUDGETS), made((0.6, 0.7, 0.7)), True),
        (claims.metric_saturates(BUDGETS), made((0.6, 0.65, 0.7)), False),
        (claims.no_smaller_budget_is_better(BUDGETS), made((0.6, 0.65, 0.7)), True),
        (claims.no_smaller_budget_is_better(BUDGETS), made((0.6, 0.75, 0.7)), False),
        (claims.training_falls(BUDGETS), made(), True),
        (claims.training_falls(BUDGETS), made(train=(0.3, 0.1, 0.2)), False),
        (claims.rate_stays(BUDGETS, "test"), made(), True),
        (claims.rate_stays(BUDGETS, "test"), made(optima=(2.0, 1.0, 0.0)), False),
        (claims.rate_stays(BUDGETS, "test", octaves=1.0), made(optima=(1.0, 0.5, 0.0)), True),
        (claims.rate_falls(BUDGETS, "train"), made(train_optima=(4.0, 2.0, 0.0)), True),
        (claims.rate_falls(BUDGETS, "train"), made(train_optima=(0.0, 0.0, 1.0)), False),
        (claims.train_rate_falls_faster(BUDGETS), made(train_optima=(4.0, 2.0, 0.0)), True),
        (claims.train_rate_falls_faster(BUDGETS), made(optima=(2.0, 1.0, 0.0)), False),
    ],
)
def test_claims(test: claims.Test, analysis: Any, holds: bool) -> None:
    assert alone(test("a claim", analysis)).holds is holds


def test_noise_leaves_claims_open() -> None:
    analysis = made((0.6, 0.7, 0.699), error=1.0)
    assert alone(claims.metric_falls_in_the_end(BUDGETS)("a claim", analysis)).holds is None


def test_a_budget_without_an_optimum_blocks_the_claim() -> None:
    analysis = made()
    analysis.sweeps[0].series.pop()
    found = alone(claims.training_falls(BUDGETS)("a claim", analysis))
    assert found.holds is None
    assert "too few grids" in found.evidence
