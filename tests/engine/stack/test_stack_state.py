"""The tensors of a stack: counted, reduced to some runs, saved and restored."""

from __future__ import annotations

import dataclasses
import functools
import io

import pytest
import torch
from torch import nn

import cases
from isotherm.engine.placed_task import place_task
from isotherm.engine.stack.plan import StackPlan
from isotherm.engine.stack.state import StackState
from isotherm.tasks.task import Task

SEEDS = (4, 1, 4)


def state_of(task: Task, *, num_steps: int = 10, unused: tuple[str, ...] = (), **changes: object) -> StackState:
    specs = [
        cases.spec(task, seed=seed, num_steps=num_steps, momentum=0.1 * k, **changes) for k, seed in enumerate(SEEDS)
    ]
    placed = place_task(task, precision="float64")
    plan = StackPlan.of(placed, specs, convolves=False)
    models = [placed.model(seed=seed, batch_size=plan.batch_size) for seed in plan.seeds]
    return StackState(plan, models, unused=unused)


def test_every_run_begins_with_the_parameters_of_its_seed() -> None:
    task = cases.frozen_task()
    state = state_of(task)
    placed = place_task(task, precision="float64")
    parameters_M = {**state.weights.parameters(), **state.fixed_M}
    assert set(state.fixed_M) == {"0.weight"}
    for position, seed in enumerate(SEEDS):
        for name, parameter in placed.model(seed=seed, batch_size=10).named_parameters():
            assert torch.equal(parameters_M[name][position], parameter)


def test_losses_of_the_last_epoch_are_added_up() -> None:
    state = state_of(cases.blobs_task(), num_steps=10)  # 64 examples in batches of 10: seven updates
    rows = torch.arange(10.0, dtype=torch.float64).unsqueeze(1).expand(10, 3)
    for first, stop in ((0, 2), (2, 5), (5, 10)):
        state.note_losses(rows[first:stop])
    assert state.num_done == 10
    assert state.running_M.tolist() == [3 + 4 + 5 + 6 + 7 + 8 + 9.0] * 3
    assert state.last_M.tolist() == [9.0] * 3


def test_runs_that_are_kept_keep_all_that_is_theirs() -> None:
    state = state_of(cases.batch_norm_task(), clip_norm=2.0)
    state.note_losses(torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64))
    before = {name: p[[2, 0]] for name, p in state.weights.parameters().items()}
    state.select(torch.tensor([2, 0]))
    assert state.num_runs == 2
    assert state.last_M.tolist() == [3.0, 1.0]
    assert state.settings.momentum_M1.flatten().tolist() == pytest.approx([0.2, 0.0])
    assert all(len(tensor) == 2 for tensor in state.updated)
    assert all(torch.equal(p, before[name]) for name, p in state.weights.parameters().items())


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(2, 3), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


@pytest.mark.parametrize("unused", [(), ("spare.weight",)])
def test_l2_moves_what_the_loss_depends_on(unused: tuple[str, ...]) -> None:
    """Both count in the norm that is reported."""
    state = state_of(dataclasses.replace(cases.blobs_task(), model=Unused), unused=unused)
    before = {name: p.clone() for name, p in state.weights.parameters().items()}
    zeros = [torch.zeros_like(value) for value in state.weights.values]
    ones = torch.ones(3, 1, dtype=torch.float64)
    state.weights.apply(state.weights.values, state.weights.moments, zeros, ones, state.num_clipped_M1, state.settings)
    moved = {name for name, p in state.weights.parameters().items() if not torch.equal(p, before[name])}
    assert moved == {"used.weight", "spare.weight"} - set(unused)
    assert state.penalised == ("used.weight", "spare.weight")


def test_a_saved_state_is_restored_from_a_file() -> None:
    make = functools.partial(state_of, cases.batch_norm_task())
    first, second = make(), make()
    for tensor in first.updated:
        tensor.add_(1) if tensor.is_floating_point() else tensor
    first.note_losses(torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64))
    file = io.BytesIO()
    torch.save(first.saved(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    assert second.has_layout_of(saved)
    second.restore(saved)
    assert second.num_done == 1
    assert second.last_M.tolist() == [1.0, 2.0, 3.0]
    for ours, theirs in zip(second.updated, first.updated, strict=True):
        assert torch.equal(ours, theirs)


def test_another_network_has_another_layout() -> None:
    assert not state_of(cases.blobs_task()).has_layout_of(state_of(cases.regression_task()).saved())
