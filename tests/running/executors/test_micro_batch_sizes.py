"""How many examples are computed at once: as asked, as memory holds, or as many as are left after it ran out."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import cases
import cases_paper
from isotherm.core.budget import Budget
from isotherm.core.records import Outcome, RunResult, RunSpec
from isotherm.engine import memory
from isotherm.engine.fleet import run_fleet
from isotherm.engine.placed_task import place_task
from isotherm.errors import UserError
from isotherm.running.cost import estimate
from isotherm.running.executors import local, micro_batch_sizes
from isotherm.running.executors.local import LocalExecutor
from isotherm.running.executors.options import FleetOptions
from isotherm.running.runner import run
from isotherm.running.store import Store
from isotherm.sweep.study import Study
from isotherm.sweep.sweep import Sweep
from isotherm.tasks.task import Task

OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


def executor_for(task: Task, **options: Any) -> LocalExecutor:
    return LocalExecutor({task.identify().ids: task}, FleetOptions(**options))


def limit_memory(monkeypatch: pytest.MonkeyPatch, *, examples: int, task: Task, batch_size: int) -> None:
    """Let a run with so many examples at once just fit."""
    placed = place_task(task, precision="float64")
    room = memory.bytes_per_run(placed, batch_size, micro_batch_size=examples)
    monkeypatch.setattr(micro_batch_sizes, "memory_of_one_run", lambda _device: room)


def limit_fleets(monkeypatch: pytest.MonkeyPatch, *, examples: int) -> list[int | None]:
    """Let memory run out where more examples are computed at once; return the sizes that were tried."""
    tried: list[int | None] = []

    def limited(placed: Any, specs: Any, *, micro_batch_size: int | None = None, **options: Any) -> list[RunResult]:
        tried.append(micro_batch_size)
        if (micro_batch_size or specs[0].batch_size) > examples:
            raise OUT_OF_MEMORY
        return run_fleet(placed, specs, micro_batch_size=micro_batch_size, **options)

    monkeypatch.setattr(local, "run_fleet", limited)
    return tried


def trained(executor: LocalExecutor, specs: list[RunSpec]) -> list[Any]:
    return [stored for done in executor.run(specs) for stored in done]


def test_a_batch_that_fits_is_whole(caplog: pytest.LogCaptureFixture) -> None:
    task = cases.blobs_task()
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        [stored] = trained(executor_for(task), [cases.spec(task, batch_size=12, num_steps=2)])
    assert "micro_batch_size" not in stored.provenance
    assert caplog.text == ""


def test_a_batch_estimated_not_to_fit_is_cut_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = cases.dropout_task()
    specs = [cases.spec(task, batch_size=48, num_steps=5, seed=seed) for seed in range(2)]
    limit_memory(monkeypatch, examples=12, task=task, batch_size=48)
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        found = trained(executor_for(task), specs)
    [line] = caplog.messages
    assert "task 'dropout', batch size 48: an update is computed in 4 micro-batches of 12 examples" in line
    assert [stored.provenance["micro_batch_size"] for stored in found] == [12, 12]
    expected = run_fleet(place_task(task, precision="float64"), specs)
    assert [s.result.train_loss for s in found] == pytest.approx([r.train_loss for r in expected], rel=1e-9)


def test_a_batch_estimated_not_to_fit_is_tried_where_it_cannot_be_cut(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = cases.batch_norm_task()
    limit_memory(monkeypatch, examples=12, task=task, batch_size=48)
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        [stored] = trained(executor_for(task), [cases.spec(task, batch_size=48, num_steps=2)])
    assert stored.result.outcome is Outcome.FINISHED
    [line] = caplog.messages
    assert "may not fit into memory, and is tried all the same" in line
    assert "BatchNorm1d normalises over all examples of a batch" in line


def test_a_run_that_does_not_fit_is_tried_in_ever_smaller_parts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = cases.blobs_task()
    specs = [cases.spec(task, batch_size=24, num_steps=3, seed=seed) for seed in range(3)]
    tried = limit_fleets(monkeypatch, examples=6)
    executor = executor_for(task, fleet_size=1)
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        found = trained(executor, specs)
    assert tried == [24, 12, 6, 6, 6]  # what one run showed, the others need not
    assert {stored.provenance["micro_batch_size"] for stored in found} == {6}
    assert "4 micro-batches of 6 examples" in caplog.text


def test_a_fleet_is_halved_before_a_batch_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    task = cases.blobs_task()
    tried: list[tuple[int, int | None]] = []

    def full(_placed: Any, specs: Any, *, micro_batch_size: int | None = None, **_: Any) -> list[RunResult]:
        tried.append((len(specs), micro_batch_size))
        if len(specs) > 1 or micro_batch_size == 8:
            raise OUT_OF_MEMORY
        return [RunResult(outcome=Outcome.FINISHED) for _ in specs]

    monkeypatch.setattr(local, "run_fleet", full)
    trained(executor_for(task), [cases.spec(task, batch_size=8, seed=seed) for seed in range(2)])
    assert tried == [(2, 8), (1, 8), (1, 4), (1, 4)]


def test_a_run_that_does_not_fit_and_cannot_be_cut_has_failed_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    task = cases.batch_norm_task()
    limit_fleets(monkeypatch, examples=6)
    [stored] = trained(executor_for(task), [cases.spec(task, batch_size=24)])
    assert stored.result.outcome is Outcome.FAILED
    for words in ("one run of task 'batch_norm' at batch size 24 does not fit", "cpu", "BatchNorm1d normalises over"):
        assert words in str(stored.result.error)


def test_a_run_of_which_one_example_does_not_fit_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    task = cases.blobs_task()
    tried = limit_fleets(monkeypatch, examples=0)
    [stored] = trained(executor_for(task), [cases.spec(task, batch_size=4)])
    assert "does not fit into the memory of cpu; use a smaller batch or a device" in str(stored.result.error)
    assert tried == [4, 2, 1]


def sweep(task: Task, **changes: Any) -> Sweep:
    fields: dict[str, Any] = {
        "name": "parts",
        "task": task,
        "batch_sizes": (8, 16),
        "effective_learning_rates": (0.1, 0.2),
        "budget": Budget.steps(4),
        "num_seeds": 1,
        "num_kept": 1,
        "max_extensions": 0,
    }
    return Sweep(**{**fields, **changes})


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sweep_can_be_asked_for_in_parts_and_its_keys_are_the_same(workers: int) -> None:
    rows = []
    for size in (None, 5):
        with Store.in_memory() as store:
            run(sweep(cases.dropout_task()), store=store, workers=workers, micro_batch_size=size)
            rows.append((store.results(), store.provenance()))
    (whole, _), (parts, provenance) = rows
    assert parts.keys() == whole.keys()
    assert {run.get("micro_batch_size") for run in provenance.values()} == {4}  # the largest within 5 that divides
    for key, result in parts.items():
        assert result.train_loss == pytest.approx(whole[key].train_loss, rel=1e-5)


def test_parts_that_were_asked_for_and_are_not_possible_are_refused() -> None:
    with pytest.raises(UserError, match=r"task 'batch_norm', batch size 8: the batch cannot be cut .*BatchNorm1d"):
        run(sweep(cases.batch_norm_task()), micro_batch_size=4)


def test_ghost_batches_stay_whole() -> None:
    task = cases_paper.ghost_task()
    spec = cases_paper.spec_of(task, batch_size=16, num_steps=1)
    executor = LocalExecutor({(spec.data_id, spec.model_id): task}, FleetOptions(micro_batch_size=1))
    assert executor.micro_batch_size(spec) == cases_paper.GHOST


def test_a_plan_counts_the_memory_of_the_parts() -> None:
    task = cases.classification("many", cases.build_mlp, train=cases.blobs(2400, seed=0))
    study = Study.of(sweep(task, batch_sizes=(2048,)))
    whole, parts = (estimate(study, {}, micro_batch_size=size).memory_bytes for size in (None, 64))
    assert parts < 0.2 * whole
