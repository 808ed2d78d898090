"""What a short probe of a fleet tells about its time."""

from __future__ import annotations

import pytest

import cases
from isotherm.engine.fleet_checks import FleetChecks
from isotherm.engine.placed_task import place_task
from isotherm.running.fleet_probe import EvaluationCost, probed


def test_a_pause_of_the_machine_in_one_evaluation_does_not_count() -> None:
    steady = [(100, 9.0), (500, 0.6), (1_500, 1.6), (1_500, 1.6)]
    expected = EvaluationCost.of(steady, num_reestimated=0)
    assert (expected.fixed, expected.per_example) == pytest.approx((0.1, 1e-3))
    for place in (2, 3):
        timed = [(num, 100.0 if at == place else seconds) for at, (num, seconds) in enumerate(steady)]
        assert EvaluationCost.of(timed, num_reestimated=0) == expected


def test_the_parts_of_an_evaluation_are_told_apart_and_added_up() -> None:
    sizes = {"train": 50_000, "test": 10_000}
    # 1 ms per example, 2 ms per example of the 512 that are re-estimated over; the first one warms up
    timed = [(100, 9.0), (500, 0.5 + 1.024), (1500, 1.5 + 1.024)]
    with_ghosts = EvaluationCost.of(timed, num_reestimated=512)
    look, end = 10 + 2 * 4.096, 60 + 10 + 2 * 50
    assert with_ghosts.of_run(sizes, num_evaluations=3) == pytest.approx(3 * look + end)
    # without ghosts the same second is what it takes to begin
    plain = EvaluationCost.of(timed, num_reestimated=0)
    assert plain.of_run(sizes, num_evaluations=3) == pytest.approx(3 * (10 + 1.024) + 60 + 2 * 1.024)
    # one size tells only the sum
    alike = EvaluationCost.of([(100, 6.12)], num_reestimated=512)
    assert alike.of_run(sizes, num_evaluations=0) == pytest.approx(0.01 * (60_000 + 10_000 + 50_000))


def test_a_real_fleet_is_probed_and_its_task_left_as_it_was() -> None:
    task = cases.blobs_task()
    placed = place_task(task, precision="float64")
    found = probed(placed, [cases.spec(task, seed=seed) for seed in range(2)], checks=FleetChecks())
    assert found.setup > 0
    assert found.per_update > 0
    assert found.evaluation is not None
    assert {name: len(y) for name, (_, y) in placed.splits.items()} == {"train": 64, "test": 30}
