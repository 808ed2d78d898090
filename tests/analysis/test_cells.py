"""Cells as far as they have come."""

from __future__ import annotations

import dataclasses
import math

import pytest

from helpers_protocol import diverged, failed, finished, make_cell
from isotherm.analysis.cells import CellState, estimate_so_far, learning_curve, state_of
from isotherm.core.records import CurvePoint, Direction, RunResult


@pytest.mark.parametrize(
    ("results", "state"),
    [
        ([None, None, None], CellState.MISSING),
        ([0.5, None, None], CellState.PARTIAL),
        ([0.5, 0.5, diverged()], CellState.FINISHED),
        ([0.5, diverged(), diverged()], CellState.DIVERGED),
        ([diverged(), diverged(), None], CellState.DIVERGED),
        ([0.5, failed(), diverged()], CellState.FAILED),
    ],
)
def test_the_state_of_a_cell(results: list[RunResult | float | None], state: CellState) -> None:
    assert state_of(make_cell(1.0, results, num_kept=2)) is state


def test_an_estimate_so_far_leaves_out_what_is_missing_and_what_diverged() -> None:
    cell = make_cell(1.0, [0.4, None, diverged(), 0.6, 0.5], num_kept=2)
    found = estimate_so_far(cell, "test_metric", ranking="test_metric", direction=Direction.MAXIMISE)
    assert (found.mean, found.num_kept) == (pytest.approx(0.55), 2)
    assert (found.mean_all, len(found.values_all)) == (pytest.approx(0.5), 3)


def test_a_complete_cell_has_the_numbers_of_the_protocol() -> None:
    cell = make_cell(1.0, [0.4, 0.7, 0.6], num_kept=2)
    kept = cell.kept("test_metric", Direction.MAXIMISE)
    found = estimate_so_far(cell, "test_metric", ranking="test_metric", direction=Direction.MAXIMISE)
    assert found == cell.estimate("test_metric", kept=kept)


def test_a_cell_without_the_quantity_has_no_number() -> None:
    found = estimate_so_far(
        make_cell(1.0, [diverged(), None], num_kept=1), "test_loss", ranking="test_metric", direction=Direction.MAXIMISE
    )
    assert math.isnan(found.mean)
    assert found.num_kept == 0


def with_curve(*points: tuple[int, float]) -> RunResult:
    curve = tuple(CurvePoint(step=step, test_loss=1.0, test_metric=value) for step, value in points)
    return dataclasses.replace(finished(0.5), curve=curve)


def test_a_mean_curve_says_at_every_step_over_how_many_runs() -> None:
    runs = [with_curve((1, 0.2), (2, 0.4)), with_curve((1, 0.4), (2, math.nan)), with_curve((1, 0.6))]
    first, second = learning_curve(runs, "test_metric", bounds=(0.0, 1.0))
    assert (first.step, first.num_runs, first.interval.estimate) == (1, 3, pytest.approx(0.4))
    assert first.interval.low == 0.0  # of a wide interval, cut off where accuracy ends
    assert (second.step, second.num_runs, second.interval.estimate) == (2, 1, pytest.approx(0.4))


def test_no_runs_no_curve() -> None:
    assert learning_curve([], "test_loss") == []
    assert learning_curve([finished(0.5)], "test_loss") == []
