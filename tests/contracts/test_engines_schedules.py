"""The contract of the engines with every schedule: plain PyTorch says what it is, and a fleet gives the reference's."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, LRScheduler, SequentialLR

import cases
from helpers_engines import Trained, assert_same, assert_same_parameters, by_fleet, by_reference
from isotherm.core.records import Outcome, RunSpec
from isotherm.core.schedule import Schedule
from isotherm.engine.checkpoint import Checkpoint
from isotherm.engine.placed_task import PlacedTask, place_task
from isotherm.engine.stack.plan import UPDATES_PER_WINDOW
from isotherm.tasks.losses import cross_entropy
from isotherm.tasks.seeding import DataOrder, initial_model
from isotherm.tasks.task import Task

SCHEDULES = {
    "paper": Schedule(),
    "paper, warm-up": Schedule(gamma=1.5, warmup_steps=30),
    "constant": Schedule.constant(),
    "constant, warm-up": Schedule.constant(warmup_fraction=0.1),
    "linear": Schedule.linear(final_fraction=0.1),
    "linear, warm-up": Schedule.linear(warmup_steps=1),
    "cosine": Schedule.cosine(final_effective_learning_rate=0.01),
    "cosine, warm-up": Schedule.cosine(warmup_fraction=0.25),
    "wsd": Schedule.wsd(warmup_steps=10, decay_fraction=0.3),
    "piecewise": Schedule.piecewise([(0, 1), (0.5, 1), (0.5, 0.1), (1, 0.1)]),
    "a function": Schedule.of(lambda done: 0.2**done, warmup_steps=5),
}
TASKS: dict[str, Callable[[], Task]] = {
    "mlp": cases.blobs_task,
    "dropout": cases.dropout_task,
    "conv": cases.conv_task,
    "batch_norm": cases.batch_norm_task,
}


def spec_of(task: Task, schedule: Schedule, *, rate: float = 0.1, num_steps: int = 200, **changes) -> RunSpec:
    gamma, rest = schedule.of_run(num_steps=num_steps, initial=rate)
    fields = {"gamma": gamma, "schedule": rest, "effective_learning_rate": rate, "num_steps": num_steps, **changes}
    return cases.spec(task, **fields)


@functools.cache
def placed_of(name: str) -> PlacedTask:
    return place_task(TASKS[name](), precision="float64")


@functools.cache
def shared_reference(name: str, spec: RunSpec) -> Trained:
    return by_reference(placed_of(name), spec)


def by_plain_pytorch(task: Task, spec: RunSpec, make: Callable[[torch.optim.Optimizer], LRScheduler]):
    """Return the parameters after a loop as anyone writes it, with an optimiser and a scheduler of PyTorch's."""
    inputs, targets = task.train[0].double(), task.train[1]
    model = initial_model(task.model, seed=spec.seed).double()
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": weights, "weight_decay": spec.l2}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=spec.learning_rate, momentum=spec.momentum)
    scheduler = make(optimizer)
    order = DataOrder(seed=spec.seed, num_train=len(inputs), batch_size=spec.batch_size)
    for batch in order.block(0, spec.num_steps):
        optimizer.zero_grad()
        cross_entropy(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()
        scheduler.step()
    return {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step:UserWarning")
@pytest.mark.parametrize(
    ("schedule", "make"),
    [
        (Schedule.linear(final_fraction=0.1), lambda o: LinearLR(o, 1.0, 0.1, 60)),
        (
            Schedule.cosine(warmup_steps=10),
            lambda o: SequentialLR(o, [LinearLR(o, 0.1, 1.0, 9), CosineAnnealingLR(o, 50)], [10]),
        ),
        (
            Schedule.wsd(decay_fraction=0.25),
            lambda o: SequentialLR(o, [LambdaLR(o, lambda _: 1.0), LinearLR(o, 1.0, 0.0, 15)], [45]),
        ),
        (
            Schedule.of(lambda done: 1.0 if done < 0.7 else 0.1),
            lambda o: LambdaLR(o, lambda i: 1.0 if i / 60 < 0.7 else 0.1),
        ),
    ],
    ids=["linear", "cosine", "wsd", "function"],
)
def test_a_run_is_what_a_plain_loop_with_pytorchs_scheduler_trains(schedule, make) -> None:
    task = cases.blobs_task()
    spec = spec_of(task, schedule, num_steps=60)
    result, ours = shared_reference("mlp", spec)
    assert result.outcome is Outcome.FINISHED
    assert_same_parameters(ours, by_plain_pytorch(task, spec, make), tolerance=1e-10)


@pytest.mark.parametrize("name", TASKS)
def test_a_fleet_of_all_schedules_equals_the_reference(name: str) -> None:
    chosen = list(SCHEDULES.values())[:: {"mlp": 1, "batch_norm": 2}.get(name, 4)]
    rates = [0.1 * (1 + k % 3) for k in range(len(chosen))]
    specs = [
        spec_of(TASKS[name](), schedule, rate=rate, seed=k % 2, num_evaluations=2)
        for k, (schedule, rate) in enumerate(zip(chosen, rates, strict=True))
    ]
    expected = [shared_reference(name, spec) for spec in specs]
    assert_same(by_fleet(placed_of(name), specs), expected)
    assert {result.outcome for result, _ in expected} == {Outcome.FINISHED}
    assert len({result.train_loss for result, _ in expected}) == len(specs)  # every schedule left its mark


@pytest.mark.parametrize("name", SCHEDULES)
def test_numbers_depend_on_neither_neighbours_nor_windows(name: str) -> None:
    specs = [spec_of(cases.blobs_task(), schedule, num_steps=UPDATES_PER_WINDOW + 5) for schedule in SCHEDULES.values()]
    mine = specs[list(SCHEDULES).index(name)]
    alone = by_fleet(placed_of("mlp"), [mine], updates_per_window=7)
    together = by_fleet(placed_of("mlp"), [specs[0], mine, specs[-1]])
    assert_same(alone, together[1:2])


def test_a_constant_rate_is_the_papers_schedule_without_drops() -> None:
    task = cases.blobs_task()
    assert spec_of(task, Schedule.constant()).key == cases.spec(task, gamma=1.0).key


def test_runs_that_leave_do_not_disturb_the_schedules_of_others() -> None:
    task = cases.regression_task()
    placed = place_task(task, precision="float64")
    schedules = list(SCHEDULES.values())
    specs = [
        spec_of(task, schedule, rate=1e3 if k % 2 else 0.05, momentum=0.0, seed=k)
        for k, schedule in enumerate([*schedules[3:], *schedules[:3]])
    ]
    expected = [by_reference(placed, spec) for spec in specs]
    assert_same(by_fleet(placed, specs), expected)
    assert [result.outcome is Outcome.DIVERGED for result, _ in expected] == [bool(k % 2) for k in range(len(specs))]


class Stop(BaseException):
    """As a kill would, it passes through everything."""


def test_a_fleet_goes_on_from_its_checkpoint_with_the_same_bits(tmp_path: Path) -> None:
    specs = [spec_of(cases.blobs_task(), schedule, num_steps=30) for schedule in SCHEDULES.values() if _fits(schedule)]
    whole = by_fleet(placed_of("mlp"), specs, updates_per_window=4)
    done = 0

    def stop(num: int) -> None:
        nonlocal done
        done += num
        if done > 14 * len(specs):
            raise Stop

    def checkpoint() -> Checkpoint:
        return Checkpoint(tmp_path / "fleet", seconds=0.0, identity="fleet")

    with pytest.raises(Stop):
        by_fleet(placed_of("mlp"), specs, updates_per_window=4, on_steps=stop, checkpoint=checkpoint())
    again = by_fleet(placed_of("mlp"), specs, updates_per_window=4, checkpoint=checkpoint())
    assert [result for result, _ in again] == [result for result, _ in whole]
    assert all(math.isfinite(result.train_loss) for result, _ in again)


def _fits(schedule: Schedule) -> bool:
    return (schedule.warmup_steps or 0) < 20
