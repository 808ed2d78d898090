"""`isotherm report` and `isotherm status`: what a store holds, and stores that hold nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from helpers_cli import (
    invoke,
    run_tiny,
)

pytestmark = pytest.mark.usefixtures("study_folder")


def test_run_status_report_by_function() -> None:
    code, text = invoke("run", "mycode:sweep", "--workers", "1", "--json", "run.json")
    assert code == 0
    content = json.loads(Path("run.json").read_text())
    assert content["counts"] == {"finished": 18, "diverged": 0, "failed": 0, "missing": 0}
    assert [g["batch_size"] for g in content["sweeps"][0]["grids"]] == [8, 16, 32]
    assert content["verdicts"]
    told = {"claim", "holds", "state", "evidence", "remedy", "command", "p_holds", "p_fails", "p_corrected"}
    assert all(set(v) == {*told, "num_verdicts_corrected"} for v in content["verdicts"])
    assert {v["state"] for v in content["verdicts"]} == {"not determined"}  # two seeds are not enough
    assert {v["command"] for v in content["verdicts"]} == {"isotherm run mycode:sweep --seeds 5"}
    assert "? not determined" in text
    assert "isotherm run mycode:sweep --seeds 5" in text
    assert "Verdicts" in text

    code, text = invoke("status", "tiny.sqlite", "--json", "status.json")
    assert code == 0
    assert json.loads(Path("status.json").read_text())["sweeps"][0]["finished"] == 18

    code, text = invoke("report", "tiny.sqlite", "--output", "out", "--json", "report.json")
    assert code == 0
    names = {p.name for p in Path("out").iterdir()}
    assert {"report.html", "optima.csv", "runs.csv"} <= names
    assert any(n.endswith(".png") for n in names)
    assert any(n.endswith(".pdf") for n in names)
    assert json.loads(Path("report.json").read_text())["counts"]["finished"] == 18


def test_a_store_that_is_no_store() -> None:
    Path("tiny.sqlite").write_text("not a database at all, only text")
    for command in (["run", "mycode:sweep", "--workers", "1"], ["status", "tiny.sqlite"], ["report", "tiny.sqlite"]):
        code, output = invoke(*command)
        assert code == 2
        assert "not a store" in output
    assert Path("tiny.sqlite").read_text() == "not a database at all, only text"


def test_a_damaged_store_is_named() -> None:
    run_tiny()
    content = bytearray(Path("tiny.sqlite").read_bytes())
    content[100:] = os.urandom(len(content) - 100)
    Path("tiny.sqlite").write_bytes(content)
    code, output = invoke("status", "tiny.sqlite")
    assert code == 2
    assert "tiny.sqlite" in output
    assert "damaged" in output


@pytest.mark.parametrize("command", ["status", "report"])
def test_a_missing_store(command: str) -> None:
    code, output = invoke(command, "nowhere.sqlite")
    assert code == 2
    assert "there is no store at nowhere.sqlite" in output


def test_report_into_a_place_that_is_a_file() -> None:
    run_tiny()
    Path("taken").write_text("here already")
    code, output = invoke("report", "tiny.sqlite", "--output", "taken")
    assert code == 2
    assert "taken" in output


def test_a_full_disk_while_reporting(monkeypatch: pytest.MonkeyPatch) -> None:
    run_tiny()

    def full(*_arguments: object, **_keywords: object) -> None:
        raise OSError(28, "No space left on device", "out/report.html")

    monkeypatch.setattr("isotherm.cli.show.study.write_report", full)
    code, output = invoke("report", "tiny.sqlite", "--output", "out")
    assert code == 2
    assert "No space left" in output
