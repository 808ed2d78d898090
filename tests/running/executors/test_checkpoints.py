"""Which fleets go on from which checkpoints, and when a checkpoint goes; the training itself is made up."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import cases
from helpers_protocol import Recorder, tiny_sweep
from isotherm.cli.main import app
from isotherm.core.budget import Budget
from isotherm.core.records import Outcome, RunResult, RunSpec
from isotherm.engine.checkpoint import Checkpoint
from isotherm.engine.deadline import Deadline
from isotherm.engine.fleet_checks import FleetChecks
from isotherm.errors import StoreError, UserError
from isotherm.running.executors import checkpoints as module
from isotherm.running.executors import local
from isotherm.running.executors.checkpoints import SUFFIX, CheckpointFolder
from isotherm.running.executors.fleet_times import work_of
from isotherm.running.executors.local import LocalExecutor
from isotherm.running.executors.options import FleetOptions
from isotherm.running.runner import run, run_study
from isotherm.running.store import Store, StoredRun
from isotherm.sweep.study import Study
from isotherm.tasks.task import Task

CPU = torch.device("cpu")
NUM_STEPS = 10


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@pytest.fixture
def folder(store: Path) -> CheckpointFolder:
    return CheckpointFolder.beside(store, seconds=1e-9)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return a function that returns what was warned of since it was called last."""
    caplog.set_level(logging.WARNING, logger="isotherm")

    def take() -> list[str]:
        texts = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return texts

    return take


@pytest.fixture(scope="module")
def task() -> Task:
    return cases.blobs_task()


def specs_of(task: Task, num: int = 7, **changes: Any) -> list[RunSpec]:
    return [cases.spec(task, seed=seed, **changes) for seed in range(num)]


def executor_for(task: Task, **options: Any) -> LocalExecutor:
    device = options.pop("device", "cpu")
    return LocalExecutor({task.identify().ids: task}, FleetOptions(**options), device=device)


def keep(folder: CheckpointFolder, specs: Sequence[RunSpec], *, device: torch.device = CPU) -> Path:
    """Write a checkpoint of this fleet and return its file."""
    checkpoint = folder.checkpoint(specs, device=device)
    checkpoint.save({"done": 1})
    return checkpoint.path


def seeds_of(fleets: Sequence[Sequence[RunSpec]]) -> list[list[int]]:
    return [[spec.seed for spec in fleet] for fleet in fleets]


def files(folder: CheckpointFolder) -> list[str]:
    return sorted(os.listdir(folder.path)) if folder.path.exists() else []


# -- the same fleets again -----------------------------------------------------------------------------------------


def test_without_checkpoints_the_fleets_are_as_ever(folder: CheckpointFolder, task: Task) -> None:
    specs = specs_of(task)
    plain = executor_for(task, fleet_size=3).fleets(specs)
    assert executor_for(task, fleet_size=3, checkpoints=folder).fleets(specs) == plain
    assert not folder.path.exists()


def test_the_unfinished_fleet_is_formed_again_though_part_of_the_group_is_done(
    folder: CheckpointFolder, task: Task
) -> None:
    executor = executor_for(task, fleet_size=3, checkpoints=folder)
    specs = specs_of(task, 9)
    keep(folder, specs[3:6])
    assert seeds_of(executor_for(task, fleet_size=3).fleets(specs[1:])) == [[7, 8], [1, 2, 3], [4, 5, 6]]
    assert seeds_of(executor.fleets(specs[1:])) == [[7, 8], [3, 4, 5], [1, 2, 6]]


def test_two_killed_workers_leave_two_fleets(folder: CheckpointFolder, task: Task) -> None:
    executor = executor_for(task, fleet_size=3, checkpoints=folder)
    specs = specs_of(task, 9)
    keep(folder, specs[6:9])
    keep(folder, specs[0:3])
    fleets = seeds_of(executor.fleets(specs))
    assert sorted(fleets) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_a_fleet_keeps_the_order_of_its_checkpoint(folder: CheckpointFolder, task: Task) -> None:
    specs = specs_of(task, 4)
    keep(folder, [specs[2], specs[0], specs[3]])
    fleets = seeds_of(executor_for(task, checkpoints=folder).fleets(specs))
    assert sorted(fleets) == [[1], [2, 0, 3]]


def test_the_order_is_part_of_a_checkpoint(folder: CheckpointFolder, task: Task) -> None:
    specs = specs_of(task, 2)
    names = {folder.checkpoint(order, device=CPU).path for order in (specs, specs[::-1], specs[:1])}
    assert len(names) == 3


def test_fleets_stay_sorted_by_work(folder: CheckpointFolder, task: Task) -> None:
    specs = [*specs_of(task, 5, num_steps=30), *specs_of(task, 5, num_steps=10)]
    keep(folder, specs[:5])
    fleets = executor_for(task, checkpoints=folder).fleets(specs)
    assert [fleet[0].num_steps for fleet in fleets] == [10, 30]


def test_a_fleet_with_a_run_that_is_not_wanted_is_not_formed(
    folder: CheckpointFolder, task: Task, warnings: Callable[[], list[str]]
) -> None:
    specs = specs_of(task, 4)
    path = keep(folder, specs)
    assert seeds_of(executor_for(task, checkpoints=folder).fleets(specs[:3])) == [[0, 1, 2]]
    assert path.exists()  # another study may want it
    assert warnings() == []


def test_no_run_is_in_two_fleets(folder: CheckpointFolder, task: Task) -> None:
    specs = specs_of(task, 4)
    for overlapping in (specs[:3], specs[1:3], specs[2:]):
        keep(folder, overlapping)
    fleets = seeds_of(executor_for(task, checkpoints=folder).fleets(specs))
    assert sorted(seed for fleet in fleets for seed in fleet) == [0, 1, 2, 3]


def test_who_asks_for_smaller_fleets_gets_them(
    folder: CheckpointFolder, task: Task, warnings: Callable[[], list[str]]
) -> None:
    specs = specs_of(task, 4)
    path = keep(folder, specs)
    assert seeds_of(executor_for(task, fleet_size=2, checkpoints=folder).fleets(specs)) == [[0, 1], [2, 3]]
    [text] = warnings()
    assert f"the checkpoint {path} is not used, and its fleet starts over" in text
    assert "a fleet of 4 runs, and fleets of 2 are asked for" in text


@pytest.mark.parametrize(("name", "value"), [("torch", "1.0.0"), ("isotherm", "0.0.1"), ("device", "cuda")])
def test_other_versions_and_devices_start_over_and_say_so(
    folder: CheckpointFolder,
    task: Task,
    monkeypatch: pytest.MonkeyPatch,
    warnings: Callable[[], list[str]],
    name: str,
    value: str,
) -> None:
    specs = specs_of(task, 3)
    with monkeypatch.context() as patch:
        if name != "device":
            patch.setattr({"torch": "torch", "isotherm": module.__name__}[name] + ".__version__", value)
        path = keep(folder, specs, device=torch.device(value) if name == "device" else CPU)
    assert path != folder.checkpoint(specs, device=CPU).path
    assert seeds_of(executor_for(task, checkpoints=folder).fleets(specs)) == [[0, 1, 2]]
    [text] = warnings()
    assert str(path) in text
    assert "it was made on" in text
    assert value in text
    folder.forget({specs[1].key})
    assert files(folder) == []


# -- cleaning ------------------------------------------------------------------------------------------------------


def test_cleaning_keeps_what_is_wanted_and_what_is_not_ours(
    folder: CheckpointFolder, task: Task, warnings: Callable[[], list[str]]
) -> None:
    specs = specs_of(task, 6)
    wanted, _partly, _not = keep(folder, specs[:2]), keep(folder, specs[1:3]), keep(folder, specs[4:])
    wanted.with_name(f"{wanted.name}.{os.getpid()}.tmp").write_bytes(b"half a sav")
    for foreign in ("notes.txt", "more.tmp"):
        (folder.path / foreign).write_text("mine")
    folder.clean({spec.key for spec in specs[:2]})
    assert files(folder) == sorted([wanted.name, "notes.txt", "more.tmp"])
    assert warnings() == []


def test_cleaning_reports_damage(folder: CheckpointFolder, task: Task, warnings: Callable[[], list[str]]) -> None:
    specs = specs_of(task, 3)
    path = keep(folder, specs)
    key = specs[1].key.encode()
    path.write_bytes(path.read_bytes().replace(key, key[::-1]))
    folder.clean({spec.key for spec in specs})
    [text] = warnings()
    assert f"the checkpoint {path} is not used" in text
    assert "its header is damaged" in text
    assert files(folder) == []


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\x00", b"isotherm checkpoint\n{}\n"])
def test_cleaning_reports_files_that_are_no_checkpoints(
    folder: CheckpointFolder, warnings: Callable[[], list[str]], content: bytes
) -> None:
    folder.path.mkdir()
    path = folder.path / f"name{SUFFIX}"
    path.write_bytes(content)
    folder.clean(set())
    [text] = warnings()
    assert str(path) in text
    assert files(folder) == []


def test_a_copy_under_another_name_is_not_used(
    folder: CheckpointFolder, task: Task, warnings: Callable[[], list[str]]
) -> None:
    specs = specs_of(task, 4)
    path = keep(folder, specs[:2])
    other = folder.checkpoint(specs[2:], device=CPU).path
    other.write_bytes(path.read_bytes())
    assert sorted(seeds_of(folder.unfinished(specs, device=CPU))) == [[0, 1]]
    [text] = warnings()
    assert f"{other}" in text
    assert "the file was renamed" in text


@pytest.mark.parametrize("runs", [None, "abc", [1, 2], {"a": 1}])
def test_headers_with_odd_runs(folder: CheckpointFolder, warnings: Callable[[], list[str]], runs: Any) -> None:
    about = {**module._about([], CPU), "runs": runs}
    identity = module._identity(about)
    Checkpoint(folder.path / f"{identity}{SUFFIX}", identity=identity, about=about).save({})
    assert folder.unfinished([], device=CPU) == []
    assert len(warnings()) == 1


def test_forgetting_takes_every_checkpoint_of_a_stored_run(folder: CheckpointFolder, task: Task) -> None:
    specs = specs_of(task, 6)
    _whole, _half, other = keep(folder, specs[:4]), keep(folder, specs[:2]), keep(folder, specs[4:])
    folder.forget({specs[0].key})
    assert files(folder) == [other.name]
    folder.remove_if_empty()
    assert folder.path.exists()
    folder.forget({specs[4].key, specs[5].key})
    folder.remove_if_empty()
    assert not folder.path.exists()


# -- made-up training ----------------------------------------------------------------------------------------------


class Trainer:
    """A fleet that counts: one update after another, each saved if it is time, and results that tell the seed."""

    def __init__(self) -> None:
        self.stop_at: int | None = None  # raise after so many updates of a fleet
        self.error: BaseException = KeyboardInterrupt()
        self.too_large: int | None = None
        self.starts: list[tuple[int, int]] = []  # size of the fleet, updates done before
        self.checkpoints: list[Checkpoint | None] = []

    def run_fleet(
        self,
        placed: Any,
        specs: Sequence[RunSpec],
        *,
        on_steps: Callable[[int], None],
        on_evaluation: Callable[..., None],
        checks: FleetChecks,
        deadline: Deadline,
        checkpoint: Checkpoint | None = None,
        micro_batch_size: int,
    ) -> list[RunResult]:
        self.checkpoints.append(checkpoint)
        state = None if checkpoint is None else checkpoint.load("cpu")
        done = 0 if state is None else state["done"]
        self.starts.append((len(specs), done))
        for update in range(done + 1, specs[0].num_steps + 1):
            on_steps(len(specs))
            if checkpoint is not None and checkpoint.is_due():
                checkpoint.save({"done": update})
            if self.too_large is not None and len(specs) >= self.too_large and update >= 3:
                raise MemoryError
            if update == self.stop_at:
                raise self.error
        return [RunResult(outcome=Outcome.FINISHED, test_loss=1.0 + spec.seed) for spec in specs]


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Trainer]:
    made = Trainer()
    monkeypatch.setattr(local, "run_fleet", made.run_fleet)
    return made


OFTEN: dict[str, Any] = {"checkpoint_seconds": 1e-9}


def test_a_stopped_fleet_goes_on_where_it_was(store: Path, folder: CheckpointFolder, trainer: Trainer) -> None:
    trainer.stop_at = 7
    with pytest.raises(KeyboardInterrupt):
        run(tiny_sweep(), store=store, **OFTEN)
    assert len(files(folder)) == 1
    trainer.stop_at = None
    recorder = Recorder()
    results = run(tiny_sweep(), store=store, progress=recorder, **OFTEN)
    assert trainer.starts == [(6, 0), (6, 7)]
    assert results.counts()["finished"] == 6
    assert not folder.path.exists()
    assert run(tiny_sweep(), store=store, **OFTEN).by_key == results.by_key
    assert len(trainer.starts) == 2


def test_short_fleets_write_nothing(
    store: Path, folder: CheckpointFolder, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: Any) -> None:
        raise AssertionError("saved")

    monkeypatch.setattr(Checkpoint, "save", refuse)
    run(tiny_sweep(), store=store)
    assert trainer.checkpoints[0] is not None
    assert not folder.path.exists()


@pytest.mark.parametrize("kind", ["none", "in memory"])
def test_what_is_not_on_disk_has_no_checkpoints(trainer: Trainer, kind: str) -> None:
    with Store.in_memory() as opened:
        run(tiny_sweep(), store=None if kind == "none" else opened, **OFTEN)
    assert trainer.checkpoints == [None]


def test_an_open_store_has_its_folder_beside_it(store: Path, folder: CheckpointFolder, trainer: Trainer) -> None:
    with Store.write(store) as opened:
        run(tiny_sweep(), store=opened, **OFTEN)
    [checkpoint] = trainer.checkpoints
    assert checkpoint is not None
    assert checkpoint.path.parent == folder.path == store.with_name("store.sqlite.checkpoints")


def test_a_relative_path_is_the_same_folder(
    store: Path, folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(store.parent)
    assert CheckpointFolder.beside(store.name, seconds=1e-9) == folder


def test_a_checkpoint_goes_only_once_its_runs_are_stored(
    store: Path, folder: CheckpointFolder, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    plain = Store.put

    def put(self: Store, runs: Sequence[StoredRun]) -> None:
        seen.append(len(files(folder)))
        plain(self, runs)
        seen.append(len(files(folder)))

    monkeypatch.setattr(Store, "put", put)
    run(tiny_sweep(), store=store, fleet_size=3, **OFTEN)
    assert seen == [1, 1, 1, 1]
    assert files(folder) == []


def test_results_that_cannot_be_stored_are_soon_had_again(
    store: Path, folder: CheckpointFolder, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(self: Store, runs: Sequence[StoredRun]) -> None:
        raise StoreError("full")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put", put)
        with pytest.raises(StoreError, match="full"):
            run(tiny_sweep(), store=store, **OFTEN)
    run(tiny_sweep(), store=store, **OFTEN)
    assert trainer.starts == [(6, 0), (6, NUM_STEPS)]


def test_a_kill_between_storing_and_removing_leaves_nothing_behind(
    store: Path, folder: CheckpointFolder, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(self: CheckpointFolder, stored: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFolder, "forget", forget)
        with pytest.raises(KeyboardInterrupt):
            run(tiny_sweep(), store=store, **OFTEN)
    assert len(files(folder)) == 1
    run(tiny_sweep(), store=store, **OFTEN)
    assert trainer.starts == [(6, 0)]
    assert not folder.path.exists()


def test_another_study_in_the_store_keeps_its_checkpoint(
    store: Path, folder: CheckpointFolder, trainer: Trainer
) -> None:
    trainer.stop_at = 4
    with pytest.raises(KeyboardInterrupt):
        run(tiny_sweep(name="one"), store=store, **OFTEN)
    trainer.stop_at = None
    run(tiny_sweep(name="two", batch_sizes=[16]), store=store, **OFTEN)
    assert len(files(folder)) == 1
    run(tiny_sweep(name="one"), store=store, **OFTEN)
    assert trainer.starts == [(6, 0), (6, 0), (6, 4)]
    assert files(folder) == []


def test_a_study_that_was_changed_is_kept_with_its_checkpoint(
    store: Path, folder: CheckpointFolder, trainer: Trainer
) -> None:
    trainer.stop_at = 4
    with pytest.raises(KeyboardInterrupt):
        run(tiny_sweep(), store=store, **OFTEN)
    trainer.stop_at = None
    run(tiny_sweep(budget=Budget.steps(12)), store=store, **OFTEN)
    assert trainer.starts == [(6, 0), (6, 0)]
    assert folder.path.exists()  # of the earlier study, which the store holds under another name


def test_more_seeds_leave_the_fleet_as_it_was(store: Path, folder: CheckpointFolder, trainer: Trainer) -> None:
    trainer.stop_at = 4
    with pytest.raises(KeyboardInterrupt):
        run(tiny_sweep(), store=store, **OFTEN)
    trainer.stop_at = None
    results = run(tiny_sweep(num_seeds=3), store=store, **OFTEN)
    assert sorted(trainer.starts[1:]) == [(3, 0), (6, 4)]
    assert results.counts()["finished"] == 9


def test_a_damaged_checkpoint_is_reported_and_the_fleet_starts_over(
    store: Path, folder: CheckpointFolder, trainer: Trainer, warnings: Callable[[], list[str]]
) -> None:
    trainer.stop_at = 4
    with pytest.raises(KeyboardInterrupt):
        run(tiny_sweep(), store=store, **OFTEN)
    [name] = files(folder)
    content = bytearray((folder.path / name).read_bytes())
    content[-200] ^= 1
    (folder.path / name).write_bytes(content)
    trainer.stop_at = None
    run(tiny_sweep(), store=store, **OFTEN)
    [text] = warnings()
    assert name in text
    assert "its content is damaged" in text
    assert trainer.starts == [(6, 0), (6, 0)]
    assert not folder.path.exists()


def test_a_study_of_several_tasks_and_lengths_goes_on(store: Path, folder: CheckpointFolder, trainer: Trainer) -> None:
    study = Study(name="two", sweeps=(tiny_sweep(name="a"), tiny_sweep(name="b", budget=Budget.steps(20))))
    trainer.stop_at = 15  # the short fleet is done by then
    with pytest.raises(KeyboardInterrupt):
        run_study(study, store=store, **OFTEN)
    trainer.stop_at = None
    run_study(study, store=store, **OFTEN)
    assert trainer.starts == [(6, 0), (6, 0), (6, 15)]


@pytest.mark.parametrize("begins", [False, True])
def test_a_state_that_the_fleet_cannot_take_starts_it_over(
    store: Path,
    folder: CheckpointFolder,
    trainer: Trainer,
    monkeypatch: pytest.MonkeyPatch,
    warnings: Callable[[], list[str]],
    begins: bool,
) -> None:
    trainer.stop_at = 4
    with pytest.raises(KeyboardInterrupt):
        run(tiny_sweep(), store=store, **OFTEN)
    trainer.stop_at = None
    plain = trainer.run_fleet

    def run_fleet(*arguments: Any, on_steps: Callable[[int], None], checkpoint: Checkpoint, **options: Any) -> Any:
        if checkpoint.load("cpu") is not None:
            if begins:
                on_steps(6)
            raise KeyError("velocities")
        return plain(*arguments, on_steps=on_steps, checkpoint=checkpoint, **options)

    monkeypatch.setattr(local, "run_fleet", run_fleet)
    results = run(tiny_sweep(), store=store, **OFTEN)
    assert results.counts()["finished"] == 6
    [text] = warnings()
    assert ("its fleet starts over: 'velocities'" in text) != begins
    assert ("trying them one at a time" in text) == begins  # it failed in training, and would again
    assert trainer.starts == [(6, 0)] + [(6, 0)] * (not begins)
    assert not folder.path.exists()


# -- memory, time --------------------------------------------------------------------------------------------------


def test_halves_have_checkpoints_of_their_own(store: Path, folder: CheckpointFolder, trainer: Trainer) -> None:
    trainer.too_large, trainer.stop_at = 4, 8
    with pytest.raises(KeyboardInterrupt):
        run(tiny_sweep(), store=store, **OFTEN)
    assert trainer.starts == [(6, 0), (3, 0)]
    assert len(files(folder)) == 1  # of the first half; that of the whole is gone
    trainer.stop_at = None
    run(tiny_sweep(), store=store, **OFTEN)
    assert sorted(trainer.starts[2:]) == [(3, 0), (3, 8)]
    assert not folder.path.exists()


def test_one_run_that_does_not_fit_keeps_its_checkpoint(
    store: Path, folder: CheckpointFolder, trainer: Trainer
) -> None:
    trainer.too_large = 1
    results = run(tiny_sweep(), store=store, fleet_size=1, **OFTEN)
    assert results.counts()["failed"] == 6
    assert all("does not fit" in str(result.error) for result in results.by_key.values())
    assert len(files(folder)) == 6  # memory may be free again tomorrow


def test_the_time_of_a_run_counts_all_processes(store: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer.stop_at = 4
    with pytest.raises(KeyboardInterrupt):
        run(tiny_sweep(), store=store, **OFTEN)
    plain = Checkpoint.load

    def load(self: Checkpoint, map_location: Any) -> Any:
        state = plain(self, map_location)
        assert self.seconds_before > 0
        self.seconds_before = 600.0
        return state

    monkeypatch.setattr(Checkpoint, "load", load)
    trainer.stop_at = None
    run(tiny_sweep(), store=store, **OFTEN)
    with Store.read(store) as opened:
        assert all(100.0 < stored.provenance["seconds_per_run"] < 101.0 for stored in opened.runs())


# -- workers -------------------------------------------------------------------------------------------------------


def test_workers_write_checkpoints_and_this_process_removes_them(
    store: Path, folder: CheckpointFolder, trainer: Trainer
) -> None:
    """Two fleets in flight are stopped, and both go on."""
    sweep = tiny_sweep(batch_sizes=[4, 8])
    trainer.stop_at, trainer.error = 6, UserError("stopped")
    with pytest.raises(UserError, match="stopped"):
        run(sweep, store=store, workers=2, **OFTEN)
    # The other worker may not have begun when the first was stopped, or been stopped while it wrote.
    first = [name for name in files(folder) if not name.endswith(".tmp")]
    assert 1 <= len(first) <= 2
    trainer.stop_at = None
    recorder = Recorder()
    results = run(sweep, store=store, workers=2, progress=recorder, **OFTEN)
    assert results.counts()["finished"] == 12
    assert not folder.path.exists()
    everything = sum(work_of(spec.batch_size, spec.num_steps) for spec in recorder.specs)
    assert recorder.work < everything


# -- the option ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
@pytest.mark.parametrize("kind", ["disk", "none"])
def test_times_that_make_no_sense_are_refused(store: Path, seconds: float, kind: str) -> None:
    with pytest.raises(UserError, match=r"checkpoint_seconds=.* is not a positive number of seconds; use e\.g\. 60"):
        run(tiny_sweep(), store=store if kind == "disk" else None, checkpoint_seconds=seconds)
    assert not store.exists()


def test_the_option_of_the_command_line(trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("isotherm.studies.load.load_study", lambda *_a, **_k: Study.of(tiny_sweep()))
    command = ["run", "study.toml", "--workers", "1", "--checkpoint-seconds"]
    refused = CliRunner().invoke(app, [*command, "0"])
    assert refused.exit_code == 2
    done = CliRunner().invoke(app, [*command, "0.25"])
    assert done.exit_code == 0, done.output
    [checkpoint] = trainer.checkpoints
    assert checkpoint is not None
    assert checkpoint._seconds == 0.25


def test_the_option_reaches_a_cell(trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("isotherm.tasks.load.load_task", lambda *_a, **_k: dataclasses.replace(cases.blobs_task()))
    command = ["run", "--task", "blobs", "--batch-size", "8", "--effective-learning-rate", "0.1", "--steps", "10"]
    result = CliRunner().invoke(app, [*command, "--checkpoint-seconds", "inf"])
    assert result.exit_code == 0, result.output
    [checkpoint] = trainer.checkpoints
    assert checkpoint is not None
    assert checkpoint._seconds == float("inf")
