"""Checkpoints as files: whole or not there, checked before use, and never code."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from isotherm.engine import checkpoint as module
from isotherm.engine import checkpoint_file
from isotherm.engine.checkpoint import Checkpoint
from isotherm.engine.checkpoint_file import FORMAT, State, UnusableError, read_header

STATE: State = {
    "weights": torch.arange(6, dtype=torch.float64).reshape(2, 3) / 7,
    "buffers": {"running_mean": torch.ones(2, 4), "count": torch.tensor(3)},
    "dead": [[0, 17], [3, 5]],
    "curves": [[], [{"step": 5, "test_loss": 0.1, "test_metric": float("nan")}]],
    "done": 64,
    "note": None,
    "text": "ε",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite.checkpoints" / "fleet.checkpoint"


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return a function that returns what was warned of since it was called last."""
    caplog.set_level(logging.WARNING, logger="isotherm")

    def take() -> list[str]:
        texts = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return texts

    return take


def made(path: Path, *, identity: str = "us", **options: Any) -> Checkpoint:
    return Checkpoint(path, identity=identity, **options)


def assert_same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert_same(ours[name], theirs[name])
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            assert_same(mine, other)
    elif isinstance(ours, torch.Tensor):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
    else:
        assert ours == theirs or (ours != ours and theirs != theirs)


# -- there and back ------------------------------------------------------------------------------------------------


def test_what_was_saved_is_loaded(path: Path, warnings: Callable[[], list[str]]) -> None:
    made(path).save(STATE)
    state = made(path).load("cpu")
    assert state is not None
    assert_same(state, STATE)
    assert warnings() == []


def test_the_last_save_counts_and_nothing_else_is_left(path: Path) -> None:
    checkpoint = made(path)
    checkpoint.save(STATE)
    checkpoint.save({"done": 128})
    assert made(path).load("cpu") == {"done": 128}
    assert os.listdir(path.parent) == [path.name]


def test_tensors_go_to_the_device_that_is_asked_for(path: Path) -> None:
    made(path).save({"weights": torch.ones(3)})
    state = made(path).load(torch.device("meta"))
    assert state is not None
    assert state["weights"].device.type == "meta"


def test_a_large_state_comes_back_whole(path: Path) -> None:
    weights = torch.randn(3, 400_000, generator=torch.Generator().manual_seed(0))
    made(path).save({"weights": weights})
    assert path.stat().st_size > 4 * checkpoint_file.CHUNK
    state = made(path).load("cpu")
    assert state is not None
    assert torch.equal(state["weights"], weights)


def test_nothing_there_is_nothing_to_report(path: Path, warnings: Callable[[], list[str]]) -> None:
    assert made(path).load("cpu") is None
    made(path).remove()
    assert warnings() == []
    assert not path.parent.exists()  # the folder is made by the first save


def test_removed_is_gone(path: Path) -> None:
    checkpoint = made(path)
    checkpoint.save(STATE)
    checkpoint.remove()
    assert checkpoint.load("cpu") is None
    assert os.listdir(path.parent) == []


def test_the_header_tells_what_it_is_of(path: Path) -> None:
    made(path, about={"runs": ["a", "b"], "device": "cpu"}).save(STATE)
    header = read_header(path)
    assert header.identity == "us"
    assert header.about == {"runs": ["a", "b"], "device": "cpu"}


# -- the clock -----------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock to set by hand."""
    hand = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: hand.now))
    return hand


def test_it_is_due_so_long_after_the_start_and_after_every_save(path: Path, clock: SimpleNamespace) -> None:
    checkpoint = made(path, seconds=30.0)
    for _ in range(3):
        assert not checkpoint.is_due()
        clock.now += 29.9
        assert not checkpoint.is_due()
        clock.now += 0.1
        assert checkpoint.is_due()
        clock.now += 50.0
        assert checkpoint.is_due()
        checkpoint.save(STATE)


def test_the_default_is_a_minute(path: Path, clock: SimpleNamespace) -> None:
    checkpoint = made(path)
    clock.now += 59.0
    assert not checkpoint.is_due()
    clock.now += 1.0
    assert checkpoint.is_due()


def test_infinite_is_never(path: Path, clock: SimpleNamespace) -> None:
    checkpoint = made(path, seconds=float("inf"))
    clock.now += 1e9
    assert not checkpoint.is_due()


def test_time_in_training_adds_up_over_processes(path: Path, clock: SimpleNamespace) -> None:
    for expected in (0.0, 40.0, 80.0):
        checkpoint = made(path)
        checkpoint.load("cpu")
        assert checkpoint.seconds_before == expected
        clock.now += 40.0
        checkpoint.save(STATE)
        clock.now += 7.0  # lost by a kill


# -- a disk that fails ---------------------------------------------------------------------------------------------


def fail(*_arguments: Any, **_keywords: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("name", ["os.replace", "os.fsync", "pathlib.Path.mkdir", "pathlib.Path.open"])
def test_a_save_that_fails_leaves_the_old_state_and_warns_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, warnings: Callable[[], list[str]], name: str
) -> None:
    checkpoint = made(path)
    checkpoint.save({"done": 64})
    with monkeypatch.context() as patch:
        patch.setattr(name, fail)
        checkpoint.save({"done": 128})
        checkpoint.save({"done": 192})
    [text] = warnings()
    assert f"the checkpoint {path} cannot be written: No space left on device; training continues" in text
    assert os.listdir(path.parent) == [path.name]
    assert made(path).load("cpu") == {"done": 64}
    checkpoint.save({"done": 256})
    assert made(path).load("cpu") == {"done": 256}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("size", [10, 1_000_000])
def test_a_full_disk_midway_leaves_the_old_state(path: Path, warnings: Callable[[], list[str]], size: int) -> None:
    checkpoint = made(path)
    checkpoint.save({"done": 64})
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.symlink_to("/dev/full")
    checkpoint.save({"done": 128, "weights": torch.zeros(size)})
    [text] = warnings()
    assert "No space left on device" in text
    assert os.listdir(path.parent) == [path.name]
    assert made(path).load("cpu") == {"done": 64}


def test_a_failing_disk_is_not_tried_at_every_block(
    path: Path, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = made(path, seconds=30.0)
    clock.now += 30.0
    monkeypatch.setattr(os, "replace", fail)
    checkpoint.save(STATE)
    assert not checkpoint.is_due()


def test_a_folder_that_cannot_be_made_is_no_end(tmp_path: Path, warnings: Callable[[], list[str]]) -> None:
    (tmp_path / "file").touch()
    made(tmp_path / "file" / "fleet.checkpoint").save(STATE)
    assert len(warnings()) == 1


def test_defects_are_not_taken_for_a_failing_disk(path: Path) -> None:
    with pytest.raises(Exception, match="pickle"):
        made(path).save({"state": lambda: None})
    assert os.listdir(path.parent) == []


# -- damage --------------------------------------------------------------------------------------------------------


def check_refused(path: Path, warnings: Callable[[], list[str]], reason: str) -> None:
    """Fail unless the file is reported, not used, and removed."""
    assert made(path).load("cpu") is None
    [text] = warnings()
    assert str(path) in text
    assert "its fleet starts over" in text
    assert re.search(reason, text), text
    assert not path.exists()


def test_a_flip_of_any_byte_is_noticed(path: Path, warnings: Callable[[], list[str]]) -> None:
    made(path).save({"done": 64, "weights": torch.ones(3)})
    whole = path.read_bytes()
    reasons = set()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        assert made(path).load("cpu") is None, place
        [text] = warnings()
        reasons.add(text.partition("starts over: ")[2])
    assert len(reasons) == 3  # its beginning, its content, its end


def test_a_cut_anywhere_is_noticed(path: Path, warnings: Callable[[], list[str]]) -> None:
    made(path).save({"done": 64})
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        check_refused(path, warnings, "it is cut off")


def test_a_flipped_byte_of_the_state_is_told_from_a_cut(path: Path, warnings: Callable[[], list[str]]) -> None:
    made(path).save(STATE)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    check_refused(path, warnings, "its content is damaged: the sha256")


@pytest.mark.parametrize("content", [b"SQLite format 3\x00", b"PK\x03\x04", b"x" * 5000])
def test_another_kind_of_file_is_told(path: Path, warnings: Callable[[], list[str]], content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    check_refused(path, warnings, "it is not a checkpoint of Isotherm")
    path.write_bytes(content)
    with pytest.raises(UnusableError, match="not a checkpoint"):
        read_header(path)


def test_a_file_of_pytorch_is_not_loaded(path: Path, warnings: Callable[[], list[str]]) -> None:
    path.parent.mkdir()
    torch.save(STATE, path)
    check_refused(path, warnings, "it is not a checkpoint of Isotherm")


def test_the_checkpoint_of_another_fleet_is_told(path: Path, warnings: Callable[[], list[str]]) -> None:
    made(path, identity="them").save(STATE)
    check_refused(path, warnings, "it is of another fleet")


def test_another_format_is_told(path: Path, monkeypatch: pytest.MonkeyPatch, warnings: Callable[[], list[str]]) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_file, "FORMAT", FORMAT + 1)
        made(path).save(STATE)
    with pytest.raises(UnusableError, match=f"format {FORMAT + 1}"):
        read_header(path)
    check_refused(path, warnings, f"it has format {FORMAT + 1}, this Isotherm reads {FORMAT}")


def test_a_file_that_cannot_be_read_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch, warnings: Callable[[], list[str]]
) -> None:
    made(path).save(STATE)

    def refuse(*_arguments: Any, **_keywords: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    check_refused(path, warnings, "it cannot be read: Permission denied")


def test_a_folder_in_its_place_is_told(path: Path, warnings: Callable[[], list[str]]) -> None:
    path.mkdir(parents=True)
    checkpoint = made(path)
    assert checkpoint.load("cpu") is None
    assert "it cannot be read: Is a directory" in warnings()[0]
    checkpoint.save(STATE)
    assert "cannot be written: Is a directory" in warnings()[0]


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"{}",
        b'"text"',
        json.dumps({"format": FORMAT}).encode(),
        json.dumps({"format": FORMAT, "identity": 3, "about": {}, "seconds": 0}).encode(),
        json.dumps({"format": FORMAT, "identity": "us", "about": [], "seconds": 0}).encode(),
        json.dumps({"format": FORMAT, "identity": "us", "about": {}, "seconds": float("nan")}).encode(),
        b"\xff\xfe",
    ],
)
def test_headers_that_make_no_sense(path: Path, line: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(checkpoint_file.MAGIC + line + b"\n")
    with pytest.raises(UnusableError, match="its header is damaged"):
        read_header(path)


# -- what is read is data, never code ------------------------------------------------------------------------------


class Evil:
    """Would make a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


def test_code_in_a_checkpoint_is_refused(path: Path, tmp_path: Path, warnings: Callable[[], list[str]]) -> None:
    made(path).save({"done": 64, "weights": Evil(tmp_path / "was_here")})  # whole, and with the right identity
    check_refused(path, warnings, "its state cannot be decoded")
    assert not (tmp_path / "was_here").exists()


def test_a_state_that_is_none_is_refused(path: Path, warnings: Callable[[], list[str]]) -> None:
    made(path).save([1, 2])  # type: ignore[arg-type]
    check_refused(path, warnings, "its state is a list, not a dict")


def test_memory_that_runs_out_is_no_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(path).save(STATE)

    def run_out(*_arguments: Any, **_keywords: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "load", run_out)
    with pytest.raises(torch.OutOfMemoryError):
        made(path).load("cpu")
    assert path.exists()
