"""`isotherm watch`: what it refuses, what it writes, and how it starts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from helpers_cli import invoke
from helpers_watch import make_store


def test_export_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_store(Path("a.sqlite"), num=10)
    make_store(Path("b.sqlite"), num=10)
    code, output = invoke("watch", "a.sqlite", "--compare", "b.sqlite", "--export", "page.html")
    assert code == 0, output
    assert "Written to page.html" in output
    assert Path("page.html").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.sqlite"], "there is no store at none.sqlite"),
        (["a.sqlite", "--study", "smal"], "did you mean 'small'"),
        (["a.sqlite", "--compare", "none.sqlite"], "there is no store at none.sqlite"),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make_store(Path("a.sqlite"), num=10)
    code, output = invoke("watch", *arguments)
    assert code == 2
    assert words in output.replace("\n", "")


def test_without_the_extra_it_names_the_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_store(Path("a.sqlite"), num=3)
    monkeypatch.setattr("isotherm.cli.watch.importlib.util.find_spec", lambda name: None)
    code, output = invoke("watch", "a.sqlite")
    assert code == 2
    assert 'pip install "isotherm[watch]"' in output


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvicorn", reason='the live page needs pip install "isotherm[watch]"')
    from isotherm.report.watch.serving import _listening

    monkeypatch.chdir(tmp_path)
    make_store(Path("a.sqlite"), num=3)
    with _listening("127.0.0.1", 0) as taken:
        code, output = invoke("watch", "a.sqlite", "--port", str(taken.getsockname()[1]))
    assert code == 2
    assert "cannot be served on 127.0.0.1" in output


def test_it_serves_the_page_until_it_is_interrupted(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason='the live page needs pip install "isotherm[watch]"')
    make_store(tmp_path / "a.sqlite", num=3)
    command = [sys.executable, "-m", "isotherm", "watch", str(tmp_path / "a.sqlite"), "--port", "0"]
    environment = {**os.environ, "COLUMNS": "500"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        (address,) = re.findall(r"at (http://127\.0\.0\.1:\d+/)", line)
        with urllib.request.urlopen(address, timeout=20) as answer:
            assert b"Isotherm" in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) in (0, 130, -2)
