"""The store as a file: locks, damage, other people's files, missing space and permissions."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from helpers_protocol import failed, stored
from isotherm.errors import StoreError
from isotherm.running.store import APPLICATION_ID, SCHEMA_VERSION, Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


def filled(path: Path, num: int = 3) -> Path:
    """Make a closed store of so many runs."""
    with Store.write(path) as store:
        store.put([stored(seed=seed) for seed in range(num)])
    return path


def seeds_in(path: Path) -> list[int]:
    with Store.read(path) as store:
        return [run.spec.seed for run in store.runs()]


# -- opening and closing ---------------------------------------------------------------------------


def test_store_is_made_with_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "store.sqlite"
    filled(path)
    assert seeds_in(path) == [0, 1, 2]


def test_store_keeps_its_runs_when_opened_again(path: Path) -> None:
    filled(path)
    with Store.write(str(path)) as store:
        store.put([stored(seed=7)])
        assert len(store.results()) == 4
    assert seeds_in(path) == [0, 1, 2, 7]


def test_closed_store_is_one_file_and_a_lock(path: Path) -> None:
    filled(path)
    assert sorted(p.name for p in path.parent.iterdir()) == ["store.sqlite", "store.sqlite.lock"]


def test_reader_may_not_write(path: Path) -> None:
    filled(path)
    with Store.read(path) as store, pytest.raises(StoreError, match=r"store\.sqlite.*cannot be written"):
        store.put([stored(seed=9)])
    assert seeds_in(path) == [0, 1, 2]


def test_reading_what_is_not_there_makes_nothing(path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no store at .*store\.sqlite; check the path, or create one with"):
        Store.read(path)
    assert list(path.parent.iterdir()) == []


def test_store_is_marked_as_one(path: Path) -> None:
    with closing(sqlite3.connect(filled(path))) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


# -- one writer, many readers ----------------------------------------------------------------------


def test_second_writer_is_refused_and_told_who_writes(path: Path) -> None:
    with Store.write(path) as store:
        for _ in range(3):  # a refused writer disturbs neither the lock nor who holds it
            with pytest.raises(
                StoreError,
                match=rf"being written by another process \(pid {os.getpid()} on \S+ since [\d-]+ [\d:]+\); "
                "wait for it, or use another",
            ):
                Store.write(path)
        store.put([stored(seed=4)])
    assert seeds_in(path) == [4]
    with Store.write(path) as store:
        store.put([stored(seed=5)])
    assert seeds_in(path) == [4, 5]


def test_lock_is_released_by_close_and_by_an_error_while_opening(path: Path) -> None:
    path.write_bytes(b"not a store at all")
    for _ in range(2):  # a lock left behind would change the second message
        with pytest.raises(StoreError, match="not a store"):
            Store.write(path)
    path.unlink()
    store = Store.write(path)
    store.close()
    Store.write(path).close()


def test_readers_see_whole_batches_while_a_writer_writes(path: Path) -> None:
    with Store.write(path) as writer, Store.read(path) as reader:
        assert reader.results() == {}
        for batch in range(5):
            writer.put([stored(seed=10 * batch + k) for k in range(4)])
            assert len(reader.results()) == 4 * (batch + 1)
            assert len(seeds_in(path)) == 4 * (batch + 1)  # and one that opens now
        writer._connection.execute("BEGIN IMMEDIATE")
        writer._connection.execute("DELETE FROM runs")
        assert len(reader.results()) == 20  # not yet committed
        writer._connection.execute("ROLLBACK")


WRITER = """
import sys, time
from helpers_protocol import stored
from isotherm.running.store import Store
store = Store.write(sys.argv[1])
store.put([stored(seed=0), stored(seed=1)])
print("stored", flush=True)
store._connection.execute("BEGIN IMMEDIATE")
store._connection.execute("DELETE FROM runs")
print("deleting", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_killed_writer_leaves_its_rows_and_no_lock(path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert [process.stdout.readline().strip() for _ in range(2)] == ["stored", "deleting"]
            with pytest.raises(StoreError, match=rf"\(pid {process.pid} on "):
                Store.write(path)
            assert seeds_in(path) == [0, 1]  # readers do not wait
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    assert seeds_in(path) == [0, 1]  # what was not committed never happened
    with Store.write(path) as store:
        store.put([stored(seed=2)])
    assert seeds_in(path) == [0, 1, 2]


# -- damaged files and other people's files --------------------------------------------------------


@pytest.mark.parametrize("content", [b"x", b"SQLite format 3", b"hello\n" * 1000, bytes(8192)], ids=len)
@pytest.mark.parametrize("opener", [Store.read, Store.write])
def test_file_that_is_no_database_is_refused_and_left_alone(path: Path, content: bytes, opener: type[Store]) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"store\.sqlite is not a store: .* Restore it from a copy, or choose another"):
        opener(path)  # type: ignore[call-arg]
    assert path.read_bytes() == content


def test_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    filled(path)
    assert seeds_in(path) == [0, 1, 2]


def _use(path: Path, *, write: bool) -> int:
    """Open, read everything, put a run if it is for writing; return how many runs there were."""
    with Store.write(path) if write else Store.read(path) as store:
        num = len(list(store.runs()))
        assert len(store.results()) == sum(store.counts().values()) == num
        store.studies()
        if write:
            store.put([stored(seed=1000)])
        return num


@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
@pytest.mark.parametrize("part", [0.001, 0.01, 0.1, 0.5, 0.9])
def test_truncated_store_is_reported_as_damaged(path: Path, part: float, write: bool) -> None:
    content = filled(path, 200).read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(StoreError, match=r"store\.sqlite.*(damaged|not a database|malformed).*(copy|path)"):
        _use(path, write=write)


@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
@pytest.mark.parametrize("page", [0, 1, 2, 5])
def test_page_of_garbage_is_reported_as_damage(path: Path, page: int, write: bool) -> None:
    content = bytearray(filled(path, 200).read_bytes())
    start = max(100, 4096 * page)  # beyond the file's header
    content[start : 4096 * (page + 1)] = b"\xa5" * (4096 * (page + 1) - start)
    path.write_bytes(content)
    with contextlib.suppress(StoreError):
        assert _use(path, write=write) == 200  # the page held nothing that is needed


def test_row_whose_text_is_damaged_is_named_and_not_used(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(sqlite3.connect(filled(path))) as connection:
        connection.execute("UPDATE runs SET result = substr(result, 1, 40) WHERE seed = 1")
        connection.commit()
    assert seeds_in(path) == [0, 2]
    assert "is damaged (its checksum does not match) and is not used" in caplog.text
    assert stored(seed=1).spec.key[:12] in caplog.text


def _foreign(path: Path) -> bytes:
    """Make an SQLite file of another application."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
        connection.execute("INSERT INTO bookmarks VALUES ('https://example.org')")
        connection.commit()
    return path.read_bytes()


def test_database_of_another_application_is_not_read(path: Path) -> None:
    content = _foreign(path)
    with pytest.raises(
        StoreError, match=r"store\.sqlite is an SQLite file, but not a store of Isotherm; choose another"
    ):
        Store.read(path)
    assert path.read_bytes() == content


def test_database_of_another_application_is_not_changed_by_a_writer(path: Path) -> None:
    content = _foreign(path)
    with pytest.raises(
        StoreError, match=r"store\.sqlite is an SQLite file, but not a store of Isotherm; choose another"
    ):
        Store.write(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("opener", [Store.read, Store.write])
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_newer_schema_is_refused_and_left_byte_for_byte(path: Path, opener: type[Store], journal: str) -> None:
    with closing(sqlite3.connect(filled(path))) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 41}")
        assert connection.execute(f"PRAGMA journal_mode = {journal}").fetchone() == (journal,)
    content = path.read_bytes()
    newer = (
        rf"schema {SCHEMA_VERSION + 41}, this Isotherm knows schemas up to {SCHEMA_VERSION}; update Isotherm, or use"
    )
    with pytest.raises(StoreError, match=newer):
        opener(path)  # type: ignore[call-arg]
    assert path.read_bytes() == content


# -- places where nothing can be written -----------------------------------------------------------


def test_folder_instead_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"is a folder; name a file, e\.g\. .*results\.sqlite"):
        Store.write(tmp_path)
    with pytest.raises(StoreError, match="there is no store at"):
        Store.read(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("mine")
    for name in ("file.txt/store.sqlite", "file.txt/deeper/store.sqlite"):
        with pytest.raises(StoreError, match=r"file\.txt.* cannot be created: .*; choose another folder"):
            Store.write(tmp_path / name)
        with pytest.raises(StoreError, match="there is no store at"):
            Store.read(tmp_path / name)
    assert (tmp_path / "file.txt").read_text() == "mine"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system in which nobody can make files")
def test_folder_in_which_nothing_can_be_made_is_refused() -> None:
    with pytest.raises(
        StoreError, match=r"/proc/store\.sqlite cannot be written: .*; choose a folder you may write to"
    ):
        Store.write("/proc/store.sqlite")
    with pytest.raises(StoreError, match=r"the folder /proc/new cannot be created: .*; choose another folder"):
        Store.write("/proc/new/store.sqlite")


def test_store_without_write_permission_is_refused_for_writing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = filled(path).read_bytes()
    _deny_writing(monkeypatch, path)
    with pytest.raises(StoreError, match=r"store\.sqlite is read-only; change its permissions or choose another file"):
        Store.write(path)
    assert path.read_bytes() == content


def _deny_writing(monkeypatch: pytest.MonkeyPatch, denied: Path) -> None:
    """Make `os.access` say what it would say without permission: tests may run as root, whom none binds."""
    allowed = os.access
    monkeypatch.setattr(
        os, "access", lambda p, mode: False if Path(p) == denied and mode & os.W_OK else allowed(p, mode)
    )


def test_store_is_read_in_a_folder_without_write_permission(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path)
    copy = path.parent / "archive" / "copy.sqlite"
    copy.parent.mkdir()
    shutil.copy(path, copy)
    _deny_writing(monkeypatch, copy.parent)
    assert seeds_in(copy) == [0, 1, 2]
    assert [p.name for p in copy.parent.iterdir()] == ["copy.sqlite"]  # nothing was made beside it


def test_reading_without_write_permission_never_hides_what_a_killed_writer_stored(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = path.parent / "archive"
    archive.mkdir()
    filled(path)
    with Store.write(path) as store:
        store.put([stored(seed=3)])
        for name in ("store.sqlite", "store.sqlite-wal"):  # as a killed writer leaves them: the last run is in the WAL
            shutil.copy(path.with_name(name), archive / name)
    _deny_writing(monkeypatch, archive)
    try:
        seeds = seeds_in(archive / "store.sqlite")
    except StoreError:
        return  # said so: that will do
    assert seeds == [0, 1, 2, 3]


# -- no space --------------------------------------------------------------------------------------


def test_full_disk_loses_nothing_that_was_stored(path: Path) -> None:
    filled(path, 5)
    with Store.write(path) as store:
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(StoreError, match=r"store\.sqlite.*no space is left; .* intact: free some space and run"):
            store.put([stored(seed=100 + k) for k in range(200)])
        assert len(store.results()) == 5
        store.put([stored(failed(), seed=5)])  # a smaller one still fits
    with Store.write(path) as store:
        store.put([stored(seed=100 + k) for k in range(200)])
        assert len(store.results()) == 206
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@contextmanager
def no_file_may_grow() -> Iterator[None]:
    """Let every write to a file fail, as on a full disk; Python turns the signal into an OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_write_that_the_system_refuses_is_a_store_error(path: Path) -> None:
    filled(path)
    with Store.write(path) as store:
        with no_file_may_grow(), pytest.raises(StoreError, match=r"store\.sqlite"):
            store.put([stored(seed=9)])
        assert len(store.results()) == 3
        store.put([stored(seed=9)])
    assert seeds_in(path) == [0, 1, 2, 9]


def test_no_space_even_for_the_lock_is_a_store_error(path: Path) -> None:
    content = filled(path).read_bytes()
    refusal = "none"  # opening without it would do as well
    with no_file_may_grow():
        try:
            Store.write(path).close()
        except Exception as error:  # no more than its text leaves this block, so that whatever it holds is let go
            refusal = f"{type(error).__name__}: {error}"
    assert refusal == "none" or (refusal.startswith("StoreError: ") and "store.sqlite" in refusal)
    assert path.read_bytes() == content
    Store.write(path).close()  # the lock is free again
