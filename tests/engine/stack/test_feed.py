"""Batches, learning rates and keys of a stack's updates."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import cases
from cases_paper import lazy_task, spec_of
from isotherm.core.run_schedule import num_drops
from isotherm.engine.dropout import run_keys
from isotherm.engine.placed_task import place_task
from isotherm.engine.stack.feed import Feed
from isotherm.engine.stack.plan import StackPlan
from isotherm.tasks.seeding import DataOrder

SEEDS, GAMMAS = (3, 0, 3), (2.0, 4.0, 2.0)


def plan_of(*, size: int = 4, num_steps: int = 10, binds: bool = True) -> StackPlan:
    task = cases.blobs_task()
    specs = [
        cases.spec(task, seed=seed, gamma=gamma, num_steps=num_steps, effective_learning_rate=0.1 * (k + 1))
        for k, (seed, gamma) in enumerate(zip(SEEDS, GAMMAS, strict=True))
    ]
    plan = StackPlan.of(place_task(task, precision="float64"), specs, convolves=False, updates_per_window=size)
    return dataclasses.replace(plan, binds_batch=binds)


def expected_batch(plan: StackPlan, position: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    order = DataOrder(seed=plan.specs[position].seed, num_train=64, batch_size=10)
    return plan.placed.training_batch(torch.from_numpy(order.block(step, 1)[0]))


def test_every_run_reads_the_batches_of_its_seed_and_its_own_learning_rates() -> None:
    plan = plan_of()
    feed = Feed(plan)
    assert [feed.window_size(first) for first in (0, 4, 8)] == [4, 4, 2]
    for first in (0, 4, 8):
        feed.fill(first, feed.window_size(first))
        for offset in range(feed.window_size(first)):
            index_MB, rate_M1 = feed.row(offset)
            (x_MB, y_MB), index = feed.batch(index_MB)
            assert index is None
            for position, spec in enumerate(plan.specs):
                x, y = expected_batch(plan, position, first + offset)
                assert torch.equal(x_MB[position], x)
                assert torch.equal(y_MB[position], y)
                drops = num_drops(first + offset, num_steps=10)
                assert float(rate_M1[position]) == pytest.approx(spec.learning_rate * spec.gamma**-drops)


def test_a_row_is_found_by_an_offset_on_the_device_too() -> None:
    feed = Feed(plan_of())
    feed.fill(4, 4)
    for offset in range(4):
        for ours, theirs in zip(feed.row_at(torch.tensor([offset])), feed.row(offset), strict=True):
            assert torch.equal(ours, theirs)


def test_windows_of_one_update_leave_room_for_the_calls_before_a_recording() -> None:
    feed = Feed(plan_of(size=1))
    feed.fill(0, 1)
    assert feed.num_rows == 3  # two calls and the recording
    feed.row_at(torch.tensor([2]))


def test_a_program_that_is_handed_its_batch_gets_all_data_and_an_index() -> None:
    plan = plan_of(binds=False)
    feed = Feed(plan)
    assert feed.bound_batch is None
    feed.fill(0, 4)
    (inputs, targets), index_MB = feed.batch(feed.row(1)[0])
    assert index_MB is not None
    for position in range(3):
        x, y = expected_batch(plan, position, 1)
        assert torch.equal(inputs[index_MB[position]], x)
        assert torch.equal(targets[index_MB[position]], y)


def test_runs_that_are_kept_keep_their_batches_keys_and_learning_rates() -> None:
    plan = plan_of()
    feed = Feed(plan)
    feed.select(torch.tensor([1, 2]))
    feed.fill(4, 4)
    assert [torch.equal(key, run_keys(plan.specs[k].seed)) for key, k in zip(feed.key_M, (1, 2), strict=True)] == [
        True
    ] * 2
    (x_MB, _), _ = feed.batch(feed.row(0)[0])
    for position, index in enumerate((1, 2)):
        assert torch.equal(x_MB[position], expected_batch(plan, index, 4)[0])
    other = Feed(plan)
    other.fill(4, 4)
    assert torch.equal(feed.row(0)[1], other.row(0)[1][1:])


def test_a_batch_apart_from_any_window_is_that_of_the_window() -> None:
    feed = Feed(plan_of())
    feed.fill(4, 4)
    (x_MB, y_MB), _ = feed.batch(feed.row(2)[0])
    x, y = feed.batch_of(6)
    assert torch.equal(x_MB, x)
    assert torch.equal(y_MB, y)
    assert torch.equal(feed.first_batch()[0], feed.batch_of(0)[0][1])  # of the first seed


def test_batches_from_disk_come_with_every_update() -> None:
    task = lazy_task()
    specs = [spec_of(task, batch_size=8, num_steps=6, seed=seed) for seed in (0, 5)]
    plan = StackPlan.of(place_task(task, precision="float64"), specs, convolves=False, updates_per_window=3)
    feed = Feed(plan)
    assert feed.reads_ahead
    feed.bind(*feed.batch_of(0))
    for first in (0, 3):
        feed.fill(first, 3)
        for step in range(first, first + 3):
            feed.read(step)
            (x_MB, y_MB), index = feed.batch(feed.row(step - first)[0])
            assert index is None
            for position, spec in enumerate(specs):
                order = plan.placed.order(seed=spec.seed, batch_size=8)
                x, y = plan.placed.lazy_batch(order.block(step, 1)[0], seed=spec.seed, step=step)
                assert torch.equal(x_MB[position], x)
                assert torch.equal(y_MB[position], y)
