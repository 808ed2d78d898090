"""Faults of a store: lost files, flipped bits, second drivers, network disks, clocks, names; nothing is lost unsaid."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from helpers_engines import assert_same_result
from helpers_protocol import Recorder, failed, finished, make_plan, make_spec, stored, tiny_sweep
from isotherm.cli.main import app
from isotherm.core.records import RunSpec
from isotherm.errors import StoreError
from isotherm.report.files import file_stem
from isotherm.running import store_file
from isotherm.running.plans import damage_note, put_plan
from isotherm.running.runner import run
from isotherm.running.store import SCHEMA_VERSION, Store, StoredRun
from isotherm.running.store_file import file_system, journal_mode
from isotherm.running.stored import open_results, stored_studies
from isotherm.sweep.plan import StudyPlan, SweepPlan
from isotherm.sweep.sweep import Sweep

NUM_RUNS = 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


def filled(path: Path, num: int = NUM_RUNS) -> dict[str, StoredRun]:
    """Make a store of so many runs and return them by key."""
    runs = [stored(finished(0.5 + seed / 1024, train_loss=1.0 / (seed + 1)), seed=seed) for seed in range(num)]
    with Store.write(path) as store:
        for start in range(0, num, 10):
            store.put(runs[start : start + 10])
    return {run.spec.key: run for run in runs}


# -- a file that is lost under its writer -----------------------------------------------------------------------------


def _delete(path: Path) -> None:
    path.unlink()


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _replace(path: Path) -> None:
    other = path.with_name("other.sqlite")
    filled(other, 3)
    os.replace(other, path)


def _replace_by_text(path: Path) -> None:
    other = path.with_name("other")
    other.write_text("not a store")
    os.replace(other, path)


LOSSES = [_delete, _empty, _replace, _replace_by_text]


@pytest.mark.parametrize("lose", LOSSES)
def test_a_store_that_is_lost_during_a_run_is_saved_beside_it(path: Path, lose: Callable[[Path], None]) -> None:
    runs = [stored(seed=seed) for seed in range(20)]
    with Store.write(path) as store:
        store.put(runs[:10])
        lose(path)
        with pytest.raises(
            StoreError, match=r"was (deleted|emptied|replaced).*saved to .*rescued-1\.sqlite: move that"
        ):
            store.put(runs[10:])
    with Store.read(path.with_name("store.rescued-1.sqlite")) as store:
        found = store.results()
    assert found.keys() >= {run.spec.key for run in runs[:10]}
    again = path.with_name("store.rescued-1.sqlite")
    with Store.write(again) as store:
        store.put(runs)
        assert len(store.results()) == 20


def test_a_lost_store_ends_the_command_with_an_error_and_nothing_is_trained_twice(path: Path) -> None:
    class Loses(Recorder):
        def runs_done(self, runs: Any) -> None:
            super().runs_done(runs)
            path.unlink(missing_ok=True)

    sweep = tiny_sweep(batch_sizes=[8, 16])
    with pytest.raises(StoreError, match="was deleted while it was written"):
        run(sweep, store=path, fleet_size=2, progress=Loses())
    os.replace(path.with_name("store.rescued-1.sqlite"), path)
    with Store.read(path) as store:
        num_saved = len(store.results())
    assert num_saved >= 2
    recorder = Recorder()
    results = run(sweep, store=path, progress=recorder)
    assert results.counts()["missing"] == 0
    assert len(recorder.specs) == len(results.by_key) - num_saved


def test_a_store_that_is_deleted_after_the_last_fleet_is_noticed(path: Path) -> None:
    with Store.write(path) as store:
        store.put([stored(seed=1)])
        path.unlink()
        with pytest.raises(StoreError, match="deleted"):
            store.check_file()
        store.check_file()  # said once


# -- damage -----------------------------------------------------------------------------------------------------------


def test_no_flipped_bit_is_read_as_another_number(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever bit of the file is flipped: what is read was written, or the store says what is wrong."""
    runs = filled(path)
    whole = path.read_bytes()
    generator = random.Random(0)
    refused = left_out = 0
    for _ in range(int(os.environ.get("ISOTHERM_FLIPS", "150"))):
        content = bytearray(whole)
        content[generator.randrange(100, len(content))] ^= 1 << generator.randrange(8)
        path.write_bytes(content)
        for ending in ("-wal", "-shm"):
            path.with_name(path.name + ending).unlink(missing_ok=True)
        try:
            with Store.read(path) as store:
                results = store.results()
                table = store.table()
                for key in results:
                    assert results[key] == runs[key].result
                for seed, value in enumerate(table.cell(make_spec(seed=0), range(NUM_RUNS)).quantity("test_metric")):
                    assert value != value or value == 0.5 + seed / 1024
                left_out += NUM_RUNS - len(results)
        except StoreError:
            refused += 1
    assert refused + left_out > 0


def test_no_flipped_bit_of_the_header_is_read_as_other_results(path: Path) -> None:
    """Its 100 bytes are SQLite's: every one of their bits, since few of them are met at random."""
    runs = filled(path, 10)
    expected = {key: run.result for key, run in runs.items()}
    whole = path.read_bytes()
    read = 0
    for place in range(800):
        content = bytearray(whole)
        content[place // 8] ^= 1 << place % 8
        path.write_bytes(content)
        for ending in ("-wal", "-shm"):
            path.with_name(path.name + ending).unlink(missing_ok=True)
        with contextlib.suppress(StoreError), Store.read(path) as store:
            assert dict(store.results()) == expected, f"bit {place % 8} of byte {place // 8}"
            read += 1
    assert 0 < read < 800  # some bits hold nothing that is needed, and others are noticed


def test_a_damaged_row_is_named_removed_and_trained_again(path: Path) -> None:
    sweep = tiny_sweep()
    before = run(sweep, store=path).by_key
    wanted = dict(before)
    with closing(sqlite3.connect(path)) as connection, connection:
        ((key, text),) = connection.execute("SELECT key, result FROM runs LIMIT 1").fetchall()
        content = json.loads(text)
        content["test_loss"] += 1.0
        connection.execute("UPDATE runs SET result = ? WHERE key = ?", (json.dumps(content), key))
    recorder = Recorder()
    results = run(sweep, store=path, progress=recorder)
    (note,) = recorder.notes
    assert note.startswith("1 row was damaged since it was written (the checksum does not match) and removed")
    assert key[:12] in note
    assert [spec.key for spec in recorder.specs] == [key]
    assert results.by_key.keys() == wanted.keys()
    for name, result in results.by_key.items():  # trained again by itself, so sums may have another order
        assert_same_result(result, wanted[name])


def test_damaged_numbers_are_made_anew_from_the_rows(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    runs = filled(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE numbers SET records = zeroblob(length(records)) WHERE id = 2")
    with Store.read(path) as store:
        assert dict(store.table()) == {key: run.result for key, run in runs.items()}
        assert "packed numbers" in caplog.text
    Store.write(path).close()
    caplog.clear()
    with Store.read(path) as store:
        assert dict(store.table()) == {key: run.result for key, run in runs.items()}
    assert caplog.text == ""


def test_a_damaged_definition_of_a_study_is_not_used(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tiny_sweep(), store=path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE studies SET definition = replace(definition, '\"num_kept\": ', '\"num_kept\": 1')")
    with Store.read(path) as store:
        assert store.studies() == {}
    assert "the definition of the study 'sweep'" in caplog.text


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_a_truncated_journal_loses_whole_batches_at_most(path: Path, part: float) -> None:
    """What a machine that lost power leaves: a journal that ends somewhere."""
    with Store.write(path) as store:
        for seed in range(30):
            store.put([stored(seed=2 * seed), stored(seed=2 * seed + 1)])
        for ending in ("", "-wal"):
            shutil.copy(path.with_name(path.name + ending), path.with_name(f"copy.sqlite{ending}"))
    journal = path.with_name("copy.sqlite-wal")
    with journal.open("r+b") as file:
        file.truncate(int(part * journal.stat().st_size))
    copy = path.with_name("copy.sqlite")
    with contextlib.suppress(StoreError), Store.write(copy) as store:
        seeds = [run.spec.seed for run in store.runs()]
        assert seeds == list(range(len(seeds)))
        assert len(seeds) % 2 == 0
        assert len(store.table()) == sum(store.counts().values()) == len(seeds)


# -- two drivers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["link", "folder", "relative"])
def test_a_second_driver_by_another_name_is_told_who_holds_the_store(
    path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = path.with_name("link.sqlite")
    if way == "link":
        other.symlink_to(path)
    elif way == "folder":
        (path.parent / "elsewhere").symlink_to(path.parent)
        other = path.parent / "elsewhere" / path.name
    else:
        monkeypatch.chdir(path.parent)
        other = Path(path.name)
    with Store.write(path) as store:
        with pytest.raises(StoreError, match=rf"pid {os.getpid()} on \S+ since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d"):
            Store.write(other)
        store.put([stored(seed=1)])


def test_a_store_of_two_names_is_not_written(path: Path) -> None:
    filled(path)
    os.link(path, path.with_name("second.sqlite"))
    for name in ("store.sqlite", "second.sqlite"):
        with pytest.raises(StoreError, match=r"has 2 names \(hard links\).*make a copy and write that: cp "):
            Store.write(path.with_name(name))
    path.with_name("second.sqlite").unlink()
    Store.write(path).close()


# -- disks, clocks, folders -------------------------------------------------------------------------------------------

MOUNTS = """22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:40 / /home/my\\040disk rw,relatime shared:1 - nfs4 server:/home rw
31 22 0:41 / /mnt/ssh rw - fuse.sshfs host: rw
32 30 0:42 / /home/my\\040disk/fast rw - xfs /dev/sdb rw
"""


def test_where_other_machines_see_the_disk_there_is_no_write_ahead_log(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    found = {
        place: file_system(Path(place) / "a.sqlite", mounts)
        for place in ("/tmp", "/home/my disk/deep", "/mnt/ssh", "/home/my disk/fast/x", "/home/my diskette")
    }
    assert list(found.values()) == ["ext4", "nfs4", "fuse.sshfs", "xfs", "ext4"]
    assert file_system(Path("/a"), tmp_path / "nothing") == ""


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "fuse.sshfs", "lustre"])
def test_a_store_on_a_network_disk_is_kept_with_a_rollback_journal(
    path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = filled(path)  # with a write-ahead log, before it was moved there
    assert journal_mode(path) == "WAL"
    monkeypatch.setattr(store_file, "file_system", lambda file: kind)
    with Store.write(path) as store:
        assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        store.put([stored(seed=NUM_RUNS)])
        with Store.read(path) as reader:
            assert len(reader.table()) == len(runs) + 1
        assert not path.with_name(path.name + "-wal").exists()


@pytest.mark.parametrize("jump", [-3_600.0, 3_600.0, 1e8])
def test_a_clock_that_jumps_changes_no_result_and_no_order(
    path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    now = [2e9]

    def clock() -> float:
        now[0] += jump
        return now[0]

    monkeypatch.setattr(time, "time", clock)
    with Store.write(path) as store:
        for name in ("first", "second", "third"):
            store.put_study(name, {"name": name})
            store.put([stored(seed=len(store.studies()))])
        assert list(store.studies()) == ["first", "second", "third"]
        assert len(store.results()) == 3


def test_a_store_named_relatively_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")

    class Moves(Recorder):
        def runs_done(self, runs: Any) -> None:
            os.chdir(tmp_path / "there")

    results = run(tiny_sweep(), store="store.sqlite", fleet_size=2, progress=Moves())
    assert all(result.test_metric is not None for result in results.by_key.values())  # read from the file, from there
    assert list((tmp_path / "there").iterdir()) == []
    assert (tmp_path / "here" / "store.sqlite").is_file()


# -- studies of one name ----------------------------------------------------------------------------------------------


def plan_of(**changes: Any) -> StudyPlan:
    sweep: SweepPlan = make_plan(name="sweep", max_extensions=0, **changes)
    return StudyPlan(name="sweep", question="", sweeps=(sweep,))


def put_runs_of(store: Store, plan: StudyPlan) -> None:
    axes = plan.sweeps[0].grids()[0]
    specs = [
        plan.sweeps[0].run_spec(axes, effective_learning_rate=rate, seed=seed)
        for rate in plan.sweeps[0].base_learning_rates(axes)
        for seed in plan.sweeps[0].seeds
    ]
    store.put([StoredRun(spec=spec, result=finished(0.5), provenance={}) for spec in specs])


def test_another_study_of_the_same_name_is_kept_and_told(path: Path) -> None:
    first, second = plan_of(), plan_of(data_id="other data")
    with Store.write(path) as store:
        assert put_plan(store, first) is None
        put_runs_of(store, first)
        note = put_plan(store, second)
        assert note is not None
        assert "is kept as 'sweep - earlier 1', and status and report show both" in note
        assert list(store.studies()) == ["sweep - earlier 1", "sweep"]
    assert [results.counts()["finished"] for results in stored_studies(path)] == [10, 0]
    with Store.write(path) as store:  # and back: nothing is kept twice
        assert put_plan(store, second) is None
        assert put_plan(store, first) is None
        assert list(store.studies()) == ["sweep"]


def test_a_study_that_grows_replaces_itself(path: Path) -> None:
    with Store.write(path) as store:
        small, large = plan_of(rates=(0.5, 1.0)), plan_of(rates=(0.25, 0.5, 1.0, 2.0), seeds=(0, 1, 2))
        put_plan(store, small)
        put_runs_of(store, small)
        assert put_plan(store, large) is None
        assert list(store.studies()) == ["sweep"]


def test_a_study_of_checkpoints_alone_is_kept(path: Path) -> None:
    first, second = plan_of(), plan_of(data_id="other data")
    spec: RunSpec = first.sweeps[0].run_spec(first.sweeps[0].grids()[0], effective_learning_rate=1.0, seed=0)
    with Store.write(path) as store:
        put_plan(store, first)
        assert put_plan(store, second) is None  # nothing was trained
        put_plan(store, first)
        assert put_plan(store, second, saved={spec.key}) is not None
        assert set(store.studies()) == {"sweep - earlier 1", "sweep"}


# -- names ------------------------------------------------------------------------------------------------------------

NAMES = ["[/x]", "a:b:c :smile:", "<script>alert(1)</script>", "../../up", "a/b", "ε [red]", "x" * 150, "[link=x]y"]


@pytest.mark.parametrize("name", NAMES)
def test_a_sweep_of_any_printable_name_is_run_shown_and_reported(tmp_path: Path, name: str) -> None:
    path = tmp_path / "store.sqlite"
    sweep: Sweep = tiny_sweep(name=name, num_evaluations=1)
    plan = StudyPlan(name="study", question=f"{name}?", sweeps=(sweep.plan(),))
    with Store.write(path) as store:
        put_plan(store, plan)
    shown = CliRunner().invoke(app, ["status", str(path)], env={"COLUMNS": "400"})
    assert shown.exit_code == 0, shown.output
    assert name in shown.output
    assert len(file_stem(name).encode()) <= 180
    assert "/" not in file_stem(name)
    assert open_results(path).sweeps[0].plan.name == name


@pytest.mark.parametrize("name", ["\x1b[31m", "a\x00b", "line\nbreak", "x" * 151, "\N{SNOWMAN}" * 60, " ", ""])
def test_names_that_no_terminal_should_see_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"a sweep's name (is|has)"):
        tiny_sweep(name=name)


def test_a_path_that_looks_like_markup_is_shown_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "[" / "x]"
    shown = CliRunner().invoke(app, ["status", str(folder / "[bold]none[/x].sqlite")], env={"COLUMNS": "400"})
    assert shown.exit_code == 2
    assert "[bold]none[/x].sqlite" in shown.output


def test_escapes_of_a_store_from_elsewhere_do_not_reach_the_terminal(path: Path) -> None:
    plan = plan_of()
    with Store.write(path) as store:
        content = plan.to_json()
        content["sweeps"][0]["name"] = "bell\x07 \x1b]0;title\x1b\\"
        store.put_study("a\x1b[31m", {**content, "name": "a\x1b[31m"})
    shown = CliRunner().invoke(app, ["status", str(path)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert not {"\x1b", "\x07"} & set(shown.output)


# -- schemas ----------------------------------------------------------------------------------------------------------


def test_a_store_without_checksums_gets_them_and_a_newer_one_is_refused(path: Path) -> None:
    runs = filled(path, 10)
    with closing(sqlite3.connect(path)) as connection, connection:  # as schema 3 left it
        for statement in (
            "DROP TABLE numbers",
            "DROP TABLE origins",
            "DROP TABLE tallies",
            "ALTER TABLE runs DROP COLUMN checksum",
            "ALTER TABLE studies DROP COLUMN checksum",
            "PRAGMA user_version = 3",
        ):
            connection.execute(statement)
    expected = {key: run.result for key, run in runs.items()}
    with Store.read(path) as store:
        assert dict(store.table()) == store.results() == expected
    with Store.write(path) as store:
        assert dict(store.table()) == store.results() == expected
        store.put([stored(failed(), seed=99)])
        assert damage_note(store, [("data", "model")]) is None
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute("SELECT COUNT(*) FROM runs WHERE checksum IS NULL").fetchone() == (0,)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(StoreError, match=f"schema {SCHEMA_VERSION + 1}.*update Isotherm"):
        Store.write(path)
