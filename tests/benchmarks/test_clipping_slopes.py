"""Powers of the batch size from hand-made optima."""

from __future__ import annotations

import math

import pytest

from pages import clipping
from pages.clipping_slopes import optimum, power


def rows(exponent: float, *, sizes: tuple[int, ...] = (16, 64, 256), num_seeds: int = 3) -> list[clipping.Row]:
    """Return runs whose optimum is at 2.8 (B / 64) ** exponent, a little higher for every seed."""
    return [
        {
            "spec": {"batch_size": size, "seed": seed, "effective_learning_rate": rate, "clip_norm": 5.0},
            "result": {"validation_metric": math.exp(1 + (math.log2(rate / 2.8) - best) ** 2)},
        }
        for size in sizes
        for seed in range(num_seeds)
        for best in [exponent * math.log2(size / 64) + 0.1 * seed]
        for rate in clipping.learning_rates("fixed", size)
    ]


@pytest.mark.parametrize("exponent", [0.5, 0.75, 1.0])
def test_the_power_is_found(exponent: float) -> None:
    found = power(rows(exponent))
    assert found is not None
    interval, num = found
    assert num == 3
    assert interval.estimate == pytest.approx(exponent, abs=1e-9)
    assert interval.high - interval.low < 1e-6


def test_seeds_that_disagree_widen_the_interval() -> None:
    mixed = [row for s, e in enumerate((0.5, 0.75, 1.0)) for row in rows(e) if row["spec"]["seed"] == s]
    found = power(mixed)
    assert found is not None
    assert found[0].estimate == pytest.approx(0.75)
    assert found[0].low < 0.5 < 1.0 < found[0].high


def test_what_does_not_determine_a_power() -> None:
    assert power([]) is None
    assert power(rows(0.5, sizes=(16, 256))) is None
    assert power(rows(0.5, num_seeds=1)) is None
    assert power(rows(3.0)) is None  # optima at the ends of the grids


def test_a_diverged_neighbour_bounds_no_optimum() -> None:
    assert optimum({1.0: 2.0, 2.0: 1.0, 4.0: 1.5}) == pytest.approx(math.log2(2.0) + 1 / 6)
    assert optimum({1.0: 2.0, 2.0: 1.0, 4.0: math.inf}) is None


def test_the_page_tells_the_power_of_every_kind_that_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipping, "rows", lambda: rows(0.5))
    assert clipping._powers() == (
        "Power of B with which the optimal ε_eff grows, 95 % interval: fixed 0.50 [0.50, 0.50] (3 seeds)."
    )
    monkeypatch.setattr(clipping, "rows", list)
    assert clipping._powers() == ""
