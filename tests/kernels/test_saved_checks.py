"""Checks that passed are found again by later processes, as long as nothing they depend on has changed."""

from __future__ import annotations

import json
import logging
import multiprocessing
from pathlib import Path

import pytest
import torch

from isotherm.kernels import saved_checks
from isotherm.kernels.saved_checks import SavedChecks, default_folder, source_hash

SETTING = {"gpu": "H200", "torch": "2.11", "source": "abc"}


def checks(folder: Path, **changed: str) -> SavedChecks:
    return SavedChecks(folder=folder, setting={**SETTING, **changed})


def test_a_check_that_passed_is_found_again(tmp_path: Path) -> None:
    assert not checks(tmp_path / "new").has_passed("gradients", 64)
    checks(tmp_path / "new").add("gradients", 64)
    assert checks(tmp_path / "new").has_passed("gradients", 64)
    assert not checks(tmp_path / "new").has_passed("gradients", 32)


@pytest.mark.parametrize("changed", [{"gpu": "A100"}, {"torch": "2.12"}, {"source": "abd"}], ids=str)
def test_another_setting_is_checked_anew(changed: dict[str, str], tmp_path: Path) -> None:
    checks(tmp_path).add("gradients", 64)
    assert not checks(tmp_path, **changed).has_passed("gradients", 64)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"{}", b"true"], ids=str)
def test_a_damaged_file_is_ignored_with_a_warning_and_replaced(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checks(tmp_path).add("gradients", 64)
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        assert not checks(tmp_path).has_passed("gradients", 64)
    assert path.name in caplog.text
    checks(tmp_path).add("gradients", 64)
    assert checks(tmp_path).has_passed("gradients", 64)


def test_a_folder_that_cannot_be_written_to_is_said_to_be_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        checks(tmp_path / "file" / "checks").add("gradients", 64)
    assert "will be repeated" in caplog.text


def _add_many(folder: Path) -> None:
    for number in range(50):
        checks(folder).add("gradients", number)
        assert checks(folder).has_passed("gradients", number)


def test_several_processes_save_at_once(tmp_path: Path) -> None:
    processes = [multiprocessing.get_context("fork").Process(target=_add_many, args=(tmp_path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert sorted(json.loads(path.read_text())["what"][1] for path in tmp_path.iterdir()) == list(range(50))


def test_the_source_decides(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    file = tmp_path / "kernels" / "one.py"
    file.write_text("x = 1")
    before = source_hash(tmp_path, ("kernels",))
    assert source_hash(tmp_path, ("kernels",)) == before
    file.write_text("x = 2")
    assert source_hash(tmp_path, ("kernels",)) != before
    file.rename(file.with_name("two.py"))
    assert source_hash(tmp_path, ("kernels",)) != before


def test_every_gpu_has_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ISOTHERM_CHECKS", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    SavedChecks.on(torch.device("cuda", 0)).add("gradients")
    assert SavedChecks.on(torch.device("cuda", 0)).has_passed("gradients")
    assert not SavedChecks.on(torch.device("cuda", 1)).has_passed("gradients")
    setting = SavedChecks.on(torch.device("cuda", 0)).setting
    assert setting["source"] == source_hash(saved_checks._PACKAGE)
    assert setting["torch"] == torch.__version__


def test_a_cpu_saves_nothing() -> None:
    saved = SavedChecks.on(torch.device("cpu"))
    saved.add("gradients")
    assert not saved.has_passed("gradients")


def test_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ISOTHERM_CHECKS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "isotherm" / "checks"
    monkeypatch.setenv("ISOTHERM_CHECKS", "0")
    assert default_folder() is None
    monkeypatch.setenv("ISOTHERM_CHECKS", str(tmp_path / "mine"))
    assert default_folder() == tmp_path / "mine"
