"""One module as functions of the tensors of all runs."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

import cases
from cases_paper import image_task, language_task, spec_of
from isotherm.engine.dropout import run_keys
from isotherm.engine.placed_task import place_task
from isotherm.engine.stack.model import NotVectorisable, StackedModel, unused_parameters
from isotherm.engine.stack.plan import StackPlan
from isotherm.errors import UserError
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.tasks.task import Task

NOW = torch.zeros((), dtype=torch.int64)


def model_of(task: Task, num_runs: int) -> tuple[StackPlan, StackedModel, list[nn.Module]]:
    """Return a stacked model and the modules of its runs."""
    specs = [spec_of(task, batch_size=4, seed=seed) for seed in range(num_runs)]
    plan = StackPlan.of(place_task(task, precision="float64"), specs, convolves=False)
    modules = [plan.placed.model(seed=seed, batch_size=4) for seed in range(num_runs)]
    return plan, StackedModel(plan, modules[0]), modules


def stacked(tensors: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([t[name].detach() for t in tensors]) for name in tensors[0]}


@pytest.mark.parametrize("num_runs", [1, 3])
def test_scores_are_those_of_every_run_alone(num_runs: int) -> None:
    plan, model, modules = model_of(cases.batch_norm_task(), num_runs)
    states = [
        stacked([dict(m.named_parameters()) for m in modules]),
        {},
        stacked([dict(m.named_buffers()) for m in modules]),
    ]
    x, y = plan.placed.evaluation_batch("test", 0, 7)
    losses, metrics = model.scores()(*states, x, y)
    for run, module in enumerate(modules):
        with torch.no_grad():
            loss, metric = plan.placed.evaluation_scores(module.eval(), x, y)
        assert float(losses[run]) == pytest.approx(float(loss), rel=1e-12)
        assert float(metrics[run]) == float(metric)


class Ghosts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(3, 4, 3), GhostBatchNorm2d(4, ghost_size=4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(self.conv(x)).mean(dim=(2, 3)))


def test_buffers_after_a_forward_pass_are_those_of_every_run_alone() -> None:
    plan, model, modules = model_of(image_task(Ghosts), 2)
    assert model.ghost_layers == {"norm": 4}
    states = [
        stacked([dict(m.named_parameters()) for m in modules]),
        {},
        stacked([dict(m.named_buffers()) for m in modules]),
    ]
    keys = torch.stack([run_keys(seed) for seed in range(2)])
    x, y = plan.placed.training_batch(torch.arange(8))
    shared = model.buffers_after(shared_batch=True)(*states, x, y, keys, NOW)
    own = model.buffers_after(shared_batch=False)(*states, torch.stack([x, x]), torch.stack([y, y]), keys, NOW)
    for run, module in enumerate(modules):
        plan.placed.training_output(module.train(), x, y, keys[run], NOW)
        for name, buffer in module.named_buffers():
            torch.testing.assert_close(shared[name][run], buffer)
            torch.testing.assert_close(own[name][run], buffer)


def test_ghosts_whose_statistics_are_not_reestimated_are_left_out() -> None:
    task = dataclasses.replace(image_task(Ghosts), norm_statistics="running")
    assert model_of(task, 2)[1].ghost_layers == {}


def test_a_sequence_is_scored_with_the_state_of_every_run() -> None:
    plan, model, modules = model_of(language_task(), 2)
    states = [
        stacked([dict(m.named_parameters()) for m in modules]),
        {},
        stacked([dict(m.named_buffers()) for m in modules]),
    ]
    x, y = (values.unsqueeze(0) for values in plan.placed.evaluation_batch("test", 0, 9))
    first = model.initial_stream_state(2)
    losses, _, after = model.stream_scores()(*states, x, y, first)
    for run, module in enumerate(modules):
        with torch.no_grad():
            loss, _, state = plan.placed.stream_scores(module.eval().module, x, y, first[run])
        assert float(losses[run]) == pytest.approx(float(loss), rel=1e-12)
        torch.testing.assert_close(after[run], state)


class Spare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(2, 3), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def test_parameters_without_a_gradient_are_found() -> None:
    placed = place_task(dataclasses.replace(cases.blobs_task(), model=Spare), precision="float64")
    batch = placed.training_batch(torch.arange(4))
    found = unused_parameters(placed, placed.model(seed=0, batch_size=4), batch=lambda: batch, keys=run_keys(0))
    assert found == {"spare.weight", "spare.bias"}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("first line\nsecond line"), NotVectorisable),
        (UserError("the user's"), UserError),
        (torch.OutOfMemoryError("CUDA out of memory"), torch.OutOfMemoryError),
    ],
    ids=["module", "user", "memory"],
)
def test_errors_of_the_first_call(error: Exception, expected: type[Exception]) -> None:
    placed = place_task(cases.blobs_task(), precision="float64")

    def batch() -> tuple[Tensor, Tensor]:
        raise error

    with pytest.raises(expected) as caught:
        unused_parameters(placed, placed.model(seed=0, batch_size=4), batch=batch, keys=run_keys(0))
    if expected is NotVectorisable:
        assert str(caught.value) == "ValueError: first line"
