"""How few updates are enough: larger batches are compared with smaller ones at equal length."""

from __future__ import annotations

import math

from helpers_short_runs import FakeRuns, noise
from isotherm.diagnose.grids import GridSearch
from isotherm.diagnose.short_runs import ShortGridSpec
from isotherm.diagnose.steps import enough_steps

LENGTH = 4096


def searches(needed: int, *, scatter: float = 0.001, num_seeds: int = 4) -> list[GridSearch]:
    """Return grids whose runs lose 0.1 for every halving of the updates below those needed."""

    def loss(spec: ShortGridSpec, rate: float, seed: int) -> float:
        lost = 0.1 * max(0.0, math.log2(needed / spec.num_steps))
        return 1.0 + lost + 0.05 * math.log2(rate) ** 2 + scatter * noise(spec, rate, seed)

    runs = FakeRuns(loss)
    found = []
    for length in (LENGTH // 2, LENGTH):
        for size in (8, 32, 128):
            spec = ShortGridSpec(
                batch_size=size, momentum=0.9, num_steps=length // size, rates=(0.5, 1.0, 2.0), num_seeds=num_seeds
            )
            found.append(GridSearch(runs, spec))  # type: ignore[arg-type]
    runs.train([search.spec for search in found])
    return found


def test_the_fewest_updates_that_lost_nothing_are_enough() -> None:
    assert enough_steps(searches(10), margin=0.02) == LENGTH // 128
    assert enough_steps(searches(100), margin=0.02) == LENGTH // 32
    assert enough_steps(searches(500), margin=0.02) == LENGTH // 8


def test_a_loss_within_the_margin_or_within_the_noise_does_not_count() -> None:
    assert enough_steps(searches(50), margin=0.2) == LENGTH // 128
    assert enough_steps(searches(50, scatter=0.5), margin=0.0) == LENGTH // 128
    assert enough_steps(searches(50, scatter=0.05, num_seeds=2), margin=0.0) == LENGTH // 128


def test_one_batch_size_tells_nothing() -> None:
    (first, *_) = searches(10)
    assert enough_steps([first], margin=0.0) == first.spec.num_steps
