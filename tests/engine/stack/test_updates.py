"""Programs and windows of updates, by themselves."""

from __future__ import annotations

import pytest
import torch

import cases
from isotherm.engine.placed_task import place_task
from isotherm.engine.stack import updates as updates_module
from isotherm.engine.stack.parts import StackParts
from isotherm.engine.stack.plan import StackPlan


def parts_of(num_runs: int = 3, *, size: int = 4, num_steps: int = 10) -> StackParts:
    task = cases.dropout_task()
    specs = [cases.spec(task, seed=seed, num_steps=num_steps) for seed in range(num_runs)]
    plan = StackPlan.of(place_task(task, precision="float64"), specs, convolves=False, updates_per_window=size)
    return StackParts.of(plan)


def test_a_window_gives_the_losses_of_its_updates_and_changes_the_state() -> None:
    parts, whole = parts_of(size=4), parts_of(size=10)
    found = []
    for first in (0, 4, 8):
        parts.updates.start(first)
        found.append(parts.updates.finish().clone())
    whole.updates.start(0)
    losses_KM = whole.updates.finish()
    assert losses_KM.dtype == torch.float64
    assert torch.equal(torch.cat(found), losses_KM)
    for ours, theirs in zip(parts.state.updated, whole.state.updated, strict=True):
        assert torch.equal(ours, theirs)


def test_gradients_change_nothing() -> None:
    parts = parts_of()
    before = [tensor.clone() for tensor in parts.state.updated]
    losses, gradients, _ = parts.updates.gradients(*parts.feed.batch_of(0), step=0)
    assert all(torch.equal(old, new) for old, new in zip(before, parts.state.updated, strict=True))
    assert any(gradient.any() for gradient in gradients)
    parts.updates.start(0)
    assert torch.equal(parts.updates.finish()[0], losses.double())


def test_a_program_is_made_once_for_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    plain = updates_module.trace

    def watch(function, *arguments):  # type: ignore[no-untyped-def]
        sizes.append(len(arguments[0]))
        return plain(function, *arguments)

    monkeypatch.setattr(updates_module, "trace", watch)
    parts = parts_of()
    assert not parts.updates.is_prepared
    for first in (0, 4):
        parts.updates.start(first)
    assert parts.updates.is_prepared
    assert sizes == [3]
    parts.select([0, 2])
    assert not parts.updates.is_prepared
    parts.updates.start(8)
    assert sizes == [3, 2]
    assert parts.updates.finish().shape == (2, 2)


def test_what_is_left_trains_on_as_it_would_have() -> None:
    parts, whole = parts_of(), parts_of()
    for each in (parts, whole):
        each.updates.start(0)
    parts.select([0, 2])
    for each in (parts, whole):
        each.updates.start(4)
    torch.testing.assert_close(parts.updates.finish(), whole.updates.finish()[:, [0, 2]], rtol=1e-12, atol=0.0)


def test_on_a_cpu_updates_are_made_when_start_returns() -> None:
    parts = parts_of()
    assert not parts.updates.is_asynchronous
    assert not parts.updates.bfloat16_copies
