"""Records of a stack's runs; the numbers themselves are compared with the reference in `contracts`."""

from __future__ import annotations

import pytest
import torch

import cases
from isotherm.core.records import Outcome
from isotherm.engine.placed_task import place_task
from isotherm.engine.stack import scoring
from isotherm.engine.stack.parts import StackParts
from isotherm.engine.stack.plan import StackPlan


def parts_of(num_runs: int = 3, **changes: object) -> StackParts:
    task = cases.blobs_task()
    specs = [cases.spec(task, seed=seed, num_steps=7, **changes) for seed in range(num_runs)]
    return StackParts.of(StackPlan.of(place_task(task, precision="float64"), specs, convolves=False))


def test_points_of_curves_are_those_of_the_runs_in_the_stack() -> None:
    parts = parts_of()
    whole = scoring.curve_points(parts)
    assert [point.step for point in whole] == [0, 0, 0]
    parts.select([2, 0])
    found = [point.test_loss for point in scoring.curve_points(parts)]
    assert found == pytest.approx([whole[2].test_loss, whole[0].test_loss], rel=1e-12)


def test_records_are_in_the_order_of_the_plan() -> None:
    parts = parts_of()
    parts.updates.start(0)
    losses_KM = parts.updates.finish()
    parts.state.note_losses(losses_KM)
    losses_KM[4:, 1] = torch.nan
    parts.divergence.note(losses_KM, first=0)
    handed: list[int] = []
    records = scoring.results(parts, on_trained=lambda index, _: handed.append(index))
    assert handed == [0, 2]
    assert [record.outcome for record in records] == [Outcome.FINISHED, Outcome.DIVERGED, Outcome.FINISHED]
    assert records[1].divergence_step == 4
    assert records[0].last_batch_loss == float(losses_KM[-1, 0])
    assert records[2].train_loss_running == pytest.approx(float(losses_KM[:, 2].mean()))


@pytest.mark.parametrize(("clip_norm", "expected"), [(None, None), (1e-6, 1.0), (1e6, 0.0)])
def test_the_fraction_of_clipped_updates(clip_norm: float | None, expected: float | None) -> None:
    parts = parts_of(1, clip_norm=clip_norm)
    parts.updates.start(0)
    parts.state.note_losses(parts.updates.finish())
    [record] = scoring.results(parts, on_trained=lambda *_: None)
    assert record.clipped_fraction == expected


def test_the_penalty_is_that_of_the_parameters_l2_covers() -> None:
    parts = parts_of(2, l2=0.5)
    records = scoring.results(parts, on_trained=lambda *_: None)
    parameters_M = parts.state.weights.parameters()
    for run, record in enumerate(records):
        expected = sum(float(parameters_M[name][run].square().sum()) for name in ("0.weight", "2.weight"))
        assert record.weight_norm_squared == pytest.approx(expected)
        assert record.l2_penalty == pytest.approx(0.25 * expected)
