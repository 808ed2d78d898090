"""Files are written whole."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from isotherm.errors import UserError
from isotherm.report.files import write_atomically, write_json


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


def test_json_files_are_strict(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.json", {"limit": math.inf})
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {"limit": None}
