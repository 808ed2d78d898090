"""Short runs of a small task: the split that judges them, that nothing is trained twice, and what is counted."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import cases
from isotherm.core.budget import Budget
from isotherm.core.machine import can_fork
from isotherm.core.records import Outcome
from isotherm.core.run_schedule import RunSchedule
from isotherm.core.schedule import Schedule
from isotherm.diagnose.intended import Intended
from isotherm.diagnose.short_runs import MOST_HELD_OUT, TEST_EXAMPLES, Clock, ShortGridSpec, ShortRuns, held_out_tasks
from isotherm.engine.fleet import run_fleet
from isotherm.engine.placed_task import place_task
from isotherm.errors import UserError
from isotherm.tasks.seeding import initial_model
from isotherm.tasks.task import Task

GRID_SPEC = ShortGridSpec(batch_size=8, momentum=0.9, num_steps=6, rates=(0.1, 0.4), num_seeds=2)


def make_task(num_train: int = 80, num_test: int = 30) -> Task:
    return cases.classification(
        "blobs", cases.build_mlp, train=cases.blobs(num_train, seed=0), test=cases.blobs(num_test, seed=1)
    )


def short_runs(task: Task | None = None, *, first_seed: int = 0, workers: int = 1) -> ShortRuns:
    short, judged_by = held_out_tasks(make_task() if task is None else task)
    return ShortRuns(short, judged_by=judged_by, first_seed=first_seed, device="cpu", workers=workers)


# -- what a run is judged by -----------------------------------------------------------------------------------------


def test_a_tenth_of_the_training_set_is_held_out() -> None:
    (task,), judged_by = held_out_tasks(make_task(num_train=10_000))
    assert judged_by == "validation"
    assert task.validation is not None
    assert (task.num_train, len(task.validation[0]), len(task.test[0])) == (9000, 1000, TEST_EXAMPLES)


def test_of_a_small_training_set_every_quarter_is_held_out_in_turn() -> None:
    tasks, judged_by = held_out_tasks(make_task())
    assert judged_by == "validation"
    assert len(tasks) == 4
    parts = []
    for task in tasks:
        assert task.validation is not None
        assert (task.num_train, len(task.validation[0]), len(task.test[0])) == (60, 20, TEST_EXAMPLES)
        parts.append({tuple(point) for point in task.validation[0].tolist()})
        assert not parts[-1] & {tuple(point) for point in task.train[0].tolist()}
    assert len(set.union(*parts)) == 4 * 20


def test_seeds_take_turns_with_the_held_out_parts() -> None:
    with short_runs() as runs:
        assert [runs.spec(GRID_SPEC, rate=0.1, seed=seed).data_id for seed in range(5)] == [
            "fold 0",
            "fold 1",
            "fold 2",
            "fold 3",
            "fold 0",
        ]


def test_runs_have_the_schedule_of_their_batch_size_at_their_own_length() -> None:
    task = make_task()
    tasks, judged_by = held_out_tasks(task)
    schedule = Schedule.cosine(warmup_steps=20, final_effective_learning_rate=0.01)
    at = Intended(task=task, budget=Budget.steps(200), schedule=schedule).schedule_at
    runs = ShortRuns(tasks, judged_by=judged_by, first_seed=0, device="cpu", workers=1, schedule_at=at)
    for num_steps in (50, 200):
        spec = runs.spec(replace(GRID_SPEC, num_steps=num_steps), rate=0.1, seed=0)
        assert spec.schedule == RunSchedule(shape="cosine", warmup_steps=num_steps // 10, final_fraction=0.1)
    assert short_runs().spec(GRID_SPEC, rate=0.1, seed=0).schedule is None


def test_scores_are_the_metric_and_the_worst_for_a_run_that_diverged() -> None:
    grid_spec = replace(GRID_SPEC, rates=(0.1, 1e30))
    with short_runs() as runs:
        runs.train([grid_spec])
        scores = runs.scores(grid_spec)
        assert np.array_equal(scores[0], runs.values(grid_spec, "validation_metric")[0])
        assert np.isneginf(scores[1]).all()


def test_validation_data_that_there_are_are_kept() -> None:
    own = cases.blobs(21, seed=2)
    (task,), judged_by = held_out_tasks(dataclasses.replace(make_task(), validation=own))
    assert judged_by == "validation"
    assert task.validation is not None
    assert torch.equal(task.validation[0], own[0])
    assert task.num_train == 80


def test_many_held_out_examples_are_cut_to_some_of_them() -> None:
    own = cases.blobs(MOST_HELD_OUT + 500, seed=2)
    (task,), _ = held_out_tasks(dataclasses.replace(make_task(), validation=own))
    (again,), _ = held_out_tasks(dataclasses.replace(make_task(), validation=own))
    assert task.validation is not None
    assert again.validation is not None
    assert len(task.validation[0]) == len(task.validation[1]) == MOST_HELD_OUT
    assert torch.equal(task.validation[0], again.validation[0])
    assert not torch.equal(task.validation[0], own[0][:MOST_HELD_OUT])
    rows = {(*point, label) for point, label in zip(own[0].tolist(), own[1].tolist(), strict=True) for point in [point]}
    assert (*task.validation[0][7].tolist(), int(task.validation[1][7])) in rows


def test_a_set_from_which_nothing_can_be_held_out_is_judged_by_its_test_set() -> None:
    (task,), judged_by = held_out_tasks(make_task(num_train=4))
    assert judged_by == "test"
    assert (task.num_train, len(task.test[0])) == (4, 30)


# -- training --------------------------------------------------------------------------------------------------------


def test_runs_are_trained_once() -> None:
    with short_runs() as runs:
        runs.train([GRID_SPEC])
        losses = runs.losses(GRID_SPEC)
        assert (runs.num_runs, runs.num_examples) == (4, 4 * 6 * 8)
        runs.train([GRID_SPEC, GRID_SPEC])
        assert (runs.num_runs, runs.num_examples) == (4, 4 * 6 * 8)
        more = replace(GRID_SPEC, num_seeds=3)
        runs.train([more, replace(GRID_SPEC, batch_size=4, num_seeds=1)])
        assert (runs.num_runs, runs.num_examples) == (8, 6 * 6 * 8 + 2 * 6 * 4)
        assert np.array_equal(runs.losses(more)[:, :2], losses)


def test_losses_are_by_rate_and_seed_on_the_data_asked_for() -> None:
    with short_runs(first_seed=40) as runs:
        assert runs.train([GRID_SPEC]) > 0
        table, on_train = runs.losses(GRID_SPEC), runs.losses(GRID_SPEC, on="train")
        assert table.shape == (2, 2)
        placed = place_task(runs.tasks[1], precision="float32", device="cpu")
        spec = runs.spec(GRID_SPEC, rate=0.4, seed=1)
        assert spec.seed == 41
        assert spec.learning_rate == pytest.approx(0.04)
        (result,) = run_fleet(placed, [spec])
    assert table[1, 1] == pytest.approx(result.quantity("validation_loss"), rel=1e-5)
    assert on_train[1, 1] == pytest.approx(result.quantity("train_loss"), rel=1e-5)
    assert len({*table.ravel().tolist(), *on_train.ravel().tolist()}) == 8


def test_a_run_that_diverges_has_an_infinite_loss_and_counts_what_it_trained() -> None:
    def build() -> nn.Module:
        return nn.Linear(3, 1)

    data = tuple(part.float() for part in cases.line(80, seed=0))
    task = Task(name="line", model=build, train=data, test=data, loss="mean_squared_error")
    grid_spec = replace(GRID_SPEC, rates=(0.1, 1e9), num_steps=40)
    with short_runs(task) as runs:
        runs.train([grid_spec])
        table = runs.losses(grid_spec)
        assert np.isfinite(table[0]).all()
        assert np.isposinf(table[1]).all()
        assert 2 * 40 * 8 < runs.num_examples < 3 * 40 * 8
        assert runs.parameters_after(grid_spec, rate=1e9) == {}


def test_what_was_not_trained_is_not_told() -> None:
    with short_runs() as runs, pytest.raises(KeyError):
        runs.losses(GRID_SPEC)


def test_a_run_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with short_runs() as runs:
        executor = runs._executor
        assert executor is not None
        original = executor.run

        def failing(specs: list[object]) -> object:
            for fleet in original(specs):  # type: ignore[arg-type]
                yield [
                    replace(s, result=replace(s.result, outcome=Outcome.FAILED, error="out of paper")) for s in fleet
                ]

        monkeypatch.setattr(executor, "run", failing)
        with pytest.raises(UserError, match="task 'blobs': a short run failed: out of paper"):
            runs.train([GRID_SPEC])


@pytest.mark.skipif(not can_fork(), reason="processes cannot be forked here")
def test_two_workers_find_what_one_finds() -> None:
    tables = []
    for workers in (1, 2):
        with short_runs(workers=workers) as runs:
            runs.train([GRID_SPEC, replace(GRID_SPEC, batch_size=4)])
            assert runs.num_workers == workers
            tables.append(np.stack([runs.losses(GRID_SPEC), runs.losses(replace(GRID_SPEC, batch_size=4))]))
            assert runs.num_examples == 4 * 6 * (8 + 4)
    assert tables[1] == pytest.approx(tables[0], rel=1e-5)


def test_parameters_after_a_run_are_those_that_were_judged() -> None:
    with short_runs() as runs:
        runs.train([GRID_SPEC])
        before = runs.num_examples
        state = runs.parameters_after(GRID_SPEC, rate=0.4)
        assert runs.num_examples == before + 6 * 8
        module = initial_model(runs.task.model, seed=0)
        assert state.keys() == module.state_dict().keys()
        assert not any(torch.equal(state[name], value) for name, value in module.state_dict().items())
        module.load_state_dict(state)
        assert runs.task.validation is not None
        x, y = runs.task.validation
        assert isinstance(x, torch.Tensor)
        with torch.no_grad():
            loss = float(runs.task.loss_function(module.eval()(x), y))
        assert loss == pytest.approx(runs.losses(GRID_SPEC)[1, 0], rel=1e-4)


def test_parameters_after_a_run_come_with_buffers() -> None:
    task = dataclasses.replace(cases.batch_norm_task(), train=cases.blobs(80, seed=0))
    with short_runs(task) as runs:
        state = runs.parameters_after(GRID_SPEC, rate=0.1)
    assert state.keys() == initial_model(task.model, seed=0).state_dict().keys()


# -- time ------------------------------------------------------------------------------------------------------------


def test_a_clock_counts_from_its_start() -> None:
    times = iter([100.0, 103.0, 104.0])
    clock = Clock(seconds=10.0, now=lambda: next(times))
    assert clock.spent == 3.0
    assert clock.left == 6.0
