import dataclasses
import logging
import random
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

import cases
import isotherm
from cases_paper import UNROLL, language_task
from isotherm.core.records import Outcome, RunResult, RunSpec
from isotherm.engine import memory
from isotherm.engine.placed_task import place_task
from isotherm.engine.reference import run_reference
from isotherm.engine.stack import updates
from isotherm.errors import UserError
from isotherm.running.executors import local
from isotherm.running.executors.checkpoints import CheckpointFolder
from isotherm.running.executors.fleet_times import work_of
from isotherm.running.executors.local import LocalExecutor
from isotherm.running.executors.options import FleetOptions
from isotherm.running.store import StoredRun
from isotherm.tasks.seeding import DataOrder
from isotherm.tasks.task import Task


def executor_for(*tasks: Task, **options) -> LocalExecutor:
    own = {name: options.pop(name) for name in ("device", "num_workers") if name in options}
    return LocalExecutor({task.identify().ids: task for task in tasks}, FleetOptions(**options), **own)


def run_all(executor: LocalExecutor, specs: Iterable[RunSpec]) -> dict[str, StoredRun]:
    return {stored.spec.key: stored for done in executor.run(list(specs)) for stored in done}


def grid(task: Task, **changes) -> list[RunSpec]:
    """Return runs of three batch sizes, two lengths and several seeds."""
    return [
        cases.spec(task, batch_size=batch_size, num_steps=num_steps, seed=seed, **changes)
        for batch_size in (16, 4, 8)
        for num_steps in (6, 3)
        for seed in range(5)
    ]


# -- grouping ---------------------------------------------------------------------------------------------------


def test_every_run_is_in_one_fleet_of_its_like():
    task = cases.blobs_task()
    specs = grid(task) + grid(task, precision="float32") + grid(task, l2_scope="all", num_evaluations=2)
    fleets = executor_for(task).fleets(specs)
    assert sorted(spec.key for group in fleets for spec in group) == sorted(spec.key for spec in specs)
    for group in fleets:
        shared = {(s.batch_size, s.num_steps, s.precision, s.l2_scope, s.num_evaluations, s.model_id) for s in group}
        assert len(shared) == 1
    assert len(fleets) == 18


def test_tasks_do_not_mix():
    tasks = cases.blobs_task(), cases.dropout_task()
    fleets = executor_for(*tasks).fleets([cases.spec(task, seed=s) for s in range(3) for task in tasks])
    assert [{spec.task for spec in group} for group in fleets] == [{"blobs"}, {"dropout"}]


def test_small_work_comes_first():
    task = cases.blobs_task()
    fleets = executor_for(task).fleets(grid(task))
    work = [sum(work_of(spec.batch_size, spec.num_steps) for spec in fleet) for fleet in fleets]
    assert len(set(work)) > 1
    assert work == sorted(work)


def test_grouping_depends_on_nothing_but_the_specs():
    task = cases.blobs_task()
    executor = executor_for(task, fleet_size=2)
    fleets = executor.fleets(grid(task))
    assert executor.fleets(grid(task)) == fleets
    assert executor_for(task, cases.conv_task(), fleet_size=2).fleets(grid(task)) == fleets


def test_runs_keep_their_order_within_a_group():
    task = cases.blobs_task()
    specs = grid(task)
    random.Random(0).shuffle(specs)
    for group in executor_for(task).fleets(specs):
        places = [specs.index(spec) for spec in group]
        assert places == sorted(places)


def test_fleet_size_cuts_the_groups():
    task = cases.blobs_task()
    specs = [cases.spec(task, seed=seed) for seed in range(7)]
    fleets = executor_for(task, fleet_size=3).fleets(specs)
    assert [len(group) for group in fleets] == [1, 3, 3]
    assert [spec for group in (*fleets[1:], fleets[0]) for spec in group] == specs


@pytest.mark.parametrize(
    ("batch_size", "size"), [(8, 28), (64, 28), (128, 28), (256, 16), (1024, 4), (4096, 1), (100_000, 1)]
)
def test_default_fleets_hold_a_bounded_number_of_examples(batch_size, size):
    task = cases.blobs_task()
    assert executor_for(task).default_fleet_size(cases.spec(task, batch_size=batch_size)) == size
    assert size == 1 or size * batch_size <= local.CPU_EXAMPLES_PER_FLEET


def test_default_fleets_fit_into_memory(monkeypatch):
    task = cases.blobs_task()
    executor = executor_for(task)
    each = memory.bytes_per_run(executor.placed(cases.spec(task)), 8)
    monkeypatch.setattr(memory, "usable_memory", lambda _device: 5 * each + 1)
    assert executor.default_fleet_size(cases.spec(task, batch_size=8)) == 5
    shared = executor_for(task, num_workers=2)
    assert shared.default_fleet_size(cases.spec(task, batch_size=8)) == 2
    monkeypatch.setattr(memory, "usable_memory", lambda _device: 0)
    assert executor_for(task).default_fleet_size(cases.spec(task, batch_size=8)) == 1  # it is tried


def test_what_is_done_does_not_change_the_fleets_that_are_left():
    task = cases.blobs_task()
    specs = [cases.spec(task, seed=seed, batch_size=8) for seed in range(75)]
    executor = executor_for(task, num_workers=2)
    fleets = executor.fleets(specs)
    assert sorted(len(fleet) for fleet in fleets) == [19, 28, 28]
    for done in fleets:
        left = [spec for spec in specs if spec not in done]
        assert executor.fleets(left) == [fleet for fleet in fleets if fleet is not done]


def test_default_fleets_count_the_tokens_of_a_window():
    task = language_task()
    assert executor_for(task).default_fleet_size(cases.spec(task, batch_size=64)) == 4096 // (64 * UNROLL)


@pytest.mark.parametrize("fleet_size", [0, -1])
def test_a_fleet_size_below_one_is_refused(fleet_size):
    with pytest.raises(UserError, match=f"fleet_size={fleet_size} is not a positive whole number; leave it out"):
        executor_for(cases.blobs_task(), fleet_size=fleet_size)


def test_an_unknown_device_is_refused_before_anything_runs():
    with pytest.raises(UserError, match="device 'nonsense'"):
        executor_for(cases.blobs_task(), device="nonsense")


def test_nothing_to_run_gives_nothing():
    assert list(executor_for(cases.blobs_task()).run([])) == []


# -- results ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fleet_size", [None, 1, 2])
def test_results_are_the_references_whatever_the_fleet_size(fleet_size):
    task = cases.blobs_task()
    specs = grid(task)[3:6]
    stored = run_all(executor_for(task, fleet_size=fleet_size), specs)
    placed = place_task(task, precision="float64")
    for spec in specs:
        expected = run_reference(placed, spec).train_loss
        assert stored[spec.key].result.train_loss == pytest.approx(expected, rel=1e-9)


def test_precisions_are_kept_apart():
    task = cases.blobs_task()
    single, double = (cases.spec(task, num_steps=20, precision=p) for p in ("float32", "float64"))
    stored = run_all(executor_for(task), [single, double])
    one, other = (stored[spec.key].result.train_loss for spec in (single, double))
    assert one == pytest.approx(other, rel=1e-4)
    assert one != other


def test_fleets_are_yielded_as_they_finish():
    task = cases.blobs_task()
    counted: list[tuple[int, int]] = []
    executor = executor_for(task, fleet_size=2, on_steps=lambda *done: counted.append(done))
    running = executor.run([cases.spec(task, num_steps=4, seed=seed) for seed in range(4)])
    assert len(next(running)) == 2
    assert counted == [(10, 8)]
    assert len(next(running)) == 2
    assert counted == [(10, 8), (10, 8)]


def test_provenance_says_how_a_run_came_about():
    task = cases.blobs_task()
    specs = [cases.spec(task, num_steps=3, seed=seed) for seed in range(3)]
    [done] = executor_for(task).run(specs)
    for stored in done:
        assert stored.provenance["isotherm"] == isotherm.__version__
        assert stored.provenance["torch"] == torch.__version__
        assert stored.provenance["device"].startswith("cpu: ")
        assert stored.provenance["fleet_size"] == 3
        assert stored.provenance["seconds_per_run"] > 0


def test_divergence_is_a_result():
    task = cases.regression_task()
    specs = [cases.spec(task, effective_learning_rate=rate, momentum=0.0, num_steps=100) for rate in (0.1, 1e3)]
    stored = run_all(executor_for(task), specs)
    outcomes = [stored[spec.key].result.outcome for spec in specs]
    assert outcomes == [Outcome.FINISHED, Outcome.DIVERGED]


# -- failures ---------------------------------------------------------------------------------------------------

POISON = 5


class Allergic(nn.Module):
    """Raises when it is trained on one particular example."""

    error: type[Exception] = RuntimeError

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and bool((x == POISON).any()):
            raise self.error("example 5 does not agree with me")
        return self.layer(x / 10.0)


def allergic_task(error: type[Exception]) -> Task:
    numbers = torch.arange(40, dtype=torch.float64).unsqueeze(1)
    labels = torch.arange(40) % 3
    model = type("AllergicNow", (Allergic,), {"error": error})
    return Task(name="allergic", model=lambda: model(), train=(numbers, labels), test=(numbers, labels))


@pytest.mark.parametrize("error", [RuntimeError, ValueError, ZeroDivisionError, KeyError, AssertionError])
def test_a_module_that_raises_midway_fails_alone(error):
    task = allergic_task(error)
    # Four of forty examples a batch, five updates: about half of the seeds meet example 5.
    specs = [cases.spec(task, seed=seed, batch_size=4, num_steps=5) for seed in range(8)]
    meets = [
        bool((DataOrder(seed=spec.seed, num_train=40, batch_size=4).block(0, 5) == POISON).any()) for spec in specs
    ]
    assert 0 < sum(meets) < 8
    stored = run_all(executor_for(task), specs)
    placed = place_task(task, precision="float64")
    for spec, poisoned in zip(specs, meets, strict=True):
        result = stored[spec.key].result
        if poisoned:
            assert result.outcome is Outcome.FAILED
            assert error.__name__ in result.error
            assert "example 5 does not agree with me" in result.error
            assert result.train_loss is None
        else:
            assert result == run_reference(placed, spec)


def test_a_failure_spoils_no_other_fleet():
    sick, healthy = allergic_task(RuntimeError), cases.blobs_task()
    specs = [cases.spec(sick, batch_size=40, num_steps=2), cases.spec(healthy, batch_size=40, num_steps=3)]
    stored = run_all(executor_for(sick, healthy), specs)
    outcomes = [stored[spec.key].result.outcome for spec in specs]
    assert outcomes == [Outcome.FAILED, Outcome.FINISHED]


def test_the_users_errors_are_not_swallowed(monkeypatch):
    def refuse(*_, **__):
        raise UserError("no such thing")

    monkeypatch.setattr(local, "run_fleet", refuse)
    task = cases.blobs_task()
    with pytest.raises(UserError, match="no such thing"):
        run_all(executor_for(task), [cases.spec(task)])


# -- memory -----------------------------------------------------------------------------------------------------

OUT_OF_MEMORY = {
    "cpu": RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: 64 GB"),
    "python": MemoryError(),
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
}


@pytest.fixture
def memory_for(monkeypatch):
    """Return a function that limits the size of fleets and returns a list of the sizes tried; nothing is trained."""
    tried: list[int] = []

    def limit(size: int, error: Exception) -> list[int]:
        def run_fleet(placed, specs, **_):
            tried.append(len(specs))
            if len(specs) > size:
                raise error
            return [RunResult(outcome=Outcome.FINISHED, train_loss=float(spec.seed)) for spec in specs]

        monkeypatch.setattr(local, "run_fleet", run_fleet)
        return tried

    return limit


@pytest.mark.parametrize("kind", OUT_OF_MEMORY)
def test_out_of_memory_halves_the_fleet_and_loses_no_run(memory_for, caplog, kind):
    task = cases.blobs_task()
    specs = [cases.spec(task, seed=seed) for seed in range(7)]
    tried = memory_for(2, OUT_OF_MEMORY[kind])
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        [done] = executor_for(task).run(specs)
    assert [stored.spec for stored in done] == specs
    assert [stored.result.train_loss for stored in done] == [float(seed) for seed in range(7)]
    assert tried[0] == 7
    assert sum(size for size in tried if size <= 2) == 7
    assert "out of memory with 7 runs" in caplog.text


def test_runs_that_do_not_fit_alone_have_failed(memory_for):
    memory_for(0, OUT_OF_MEMORY["cpu"])
    task = cases.blobs_task()
    executor = executor_for(task)
    stored = run_all(executor, [cases.spec(task, batch_size=32, seed=seed) for seed in range(3)])
    results = [run.result for run in stored.values()]
    assert [result.outcome for result in results] == [Outcome.FAILED] * 3
    words = ["one run of task 'blobs'", "batch size 32", "does not fit", "cpu", "smaller batch"]
    assert [word for word in words if word not in str(results[0].error)] == []
    assert executor.is_out_of_memory


def test_out_of_memory_of_a_real_fleet_halves_it(monkeypatch, caplog):
    """The first forward pass of a fleet that is too large fails while the fleet is being tried out."""
    plain = updates.trace

    def trace(function, *arguments, **options):
        if len(arguments[0]) > 2:
            raise OUT_OF_MEMORY["cpu"]
        return plain(function, *arguments, **options)

    monkeypatch.setattr(updates, "trace", trace)
    task = cases.blobs_task()
    specs = [cases.spec(task, num_steps=4, seed=seed) for seed in range(4)]
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        stored = run_all(executor_for(task), specs)
    assert len(stored) == 4
    assert "out of memory with 4 runs; continuing with 2" in caplog.text
    assert "one run at a time" not in caplog.text


def test_a_failed_fleet_is_tried_one_at_a_time(monkeypatch, caplog):
    def fail(*_, **__):
        raise RuntimeError("a kernel is missing")

    monkeypatch.setattr(local, "run_fleet", fail)
    task = cases.blobs_task()
    specs = [cases.spec(task, num_steps=4, seed=seed) for seed in range(3)]
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        stored = run_all(executor_for(task), specs)
    placed = place_task(task, precision="float64")
    assert [stored[spec.key].result for spec in specs] == [run_reference(placed, spec) for spec in specs]
    assert "trying them one at a time: a kernel is missing" in caplog.text


@pytest.mark.parametrize("where", ["run_fleet", "run_reference"])
def test_a_fault_of_the_gpu_ends_the_process_and_not_the_runs(where, monkeypatch, tmp_path):
    """No call to the GPU works after it: every run would be stored as failed, and its checkpoint removed."""

    def fail(*_, **__):
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nSearch for it")

    def other(*_, **__):
        raise RuntimeError("a kernel is missing")

    monkeypatch.setattr(local, "run_fleet", other)
    monkeypatch.setattr(local, where, fail)
    task = cases.blobs_task()
    specs = [cases.spec(task, num_steps=4, seed=seed) for seed in range(3)]
    folder = CheckpointFolder(path=tmp_path / "checkpoints", seconds=1.0)
    checkpoint = folder.checkpoint(specs, device=torch.device("cpu"))
    checkpoint.save({"stacks": []})
    with pytest.raises(
        UserError, match=r"any more: CUDA error: an illegal memory access was encountered; run it again"
    ):
        run_all(executor_for(task, checkpoints=folder), specs)
    assert checkpoint.path.exists()


def test_specs_are_stored_as_given():
    task = cases.blobs_task()
    spec = dataclasses.replace(cases.spec(task, num_steps=2), task="another name")
    [[stored]] = executor_for(task).run([spec])
    assert stored.spec is spec
