"""Files are written whole."""

from __future__ import annotations

import json
import math
import os
import socket
from pathlib import Path

import pytest

from isotherm.errors import UserError
from isotherm.report.files import require_writable, write_atomically, write_json


def test_folders_are_created_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = write_atomically(tmp_path / "a" / "b.txt", b"one")
    assert write_atomically(path, b"two").read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_file_that_cannot_be_written_is_named_and_the_old_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_atomically(tmp_path / "a.txt", b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(UserError, match=r"a\.txt cannot be written: No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_the_file_it_names_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "there" / "a.txt", tmp_path / "link.txt"
    link.symlink_to(target)
    for content in (b"one", b"two"):  # the first time the link names nothing yet
        assert write_atomically(link, content) == link
        assert link.is_symlink()
        assert target.read_bytes() == content
    assert list(target.parent.iterdir()) == [target]


def test_a_link_to_itself_is_an_error_in_words(tmp_path: Path) -> None:
    link = tmp_path / "link.txt"
    link.symlink_to(link)
    with pytest.raises(UserError, match=r"link\.txt cannot be written: Too many levels of symbolic links"):
        write_atomically(link, b"new")


def test_a_character_device_is_written_to_and_stays() -> None:
    master, slave = os.openpty()  # a terminal of our own: nothing of the machine is at risk
    try:
        device = Path(os.ttyname(slave))
        assert write_atomically(device, [b"one ", b"two"]) == device
        assert os.read(master, 100) == b"one two"
        assert device.is_char_device()
    finally:
        os.close(master)
        os.close(slave)


def test_what_is_no_file_is_refused_and_stays(tmp_path: Path) -> None:
    pipe, folder, link, end = (tmp_path / name for name in ("pipe", "folder", "link", "socket"))
    os.mkfifo(pipe)
    folder.mkdir()
    link.symlink_to(pipe)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(end))
        for path, kind in ((folder, "a folder"), (end, "a socket")):
            with pytest.raises(UserError, match=rf"{path.name} is {kind}, not a file; name a new file"):
                write_atomically(path, b"new")
        for path in (pipe, link):
            remedy = rf"{path.name} is a pipe, not a file; name /dev/stdout instead, and add > {path} to the command"
            with pytest.raises(UserError, match=remedy):
                write_atomically(path, b"new")
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == sorted([pipe, folder, link, end])


@pytest.mark.parametrize("folder", ["/dev/fd", "/proc/self/fd"])
def test_what_is_open_already_is_written_to(tmp_path: Path, folder: str) -> None:
    reading, writing = os.pipe()
    path = Path(folder) / str(writing)
    try:
        assert require_writable(path)
        assert write_atomically(path, [b"one ", b"two"]) == path
        assert os.read(reading, 100) == b"one two"
        with pytest.raises(UserError, match=rf"{folder}/{reading} cannot be written: it is open for reading"):
            write_atomically(Path(folder) / str(reading), b"new")
    finally:
        os.close(reading)
    try:
        with pytest.raises(UserError, match="cannot be written: its reader has ended; look at what the reader says"):
            write_atomically(path, b"new")
    finally:
        os.close(writing)
    with pytest.raises(UserError, match=rf"{folder}/{writing} cannot be written: nothing is open there; name a file"):
        write_atomically(path, b"new")
    whole = tmp_path / "whole"
    whole.write_bytes(b"what was there, ")
    with whole.open("ab") as open_file:
        write_atomically(Path(folder) / str(open_file.fileno()), b"and more")
    assert whole.read_bytes() == b"what was there, and more"


def test_json_files_are_strict(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.json", {"limit": math.inf})
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {"limit": None}
