"""The tutorial's code runs as it stands, block after block, and does what the text says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import isotherm as it
from test_docs import ROOT, python_blocks


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in python_blocks((ROOT / "docs" / "tutorial.md").read_text()):
        exec(compile(block, "tutorial.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "batch size" in printed
    assert "not determined" in printed
    assert isinstance(names["analysis"], it.Analysis)
    assert names["results"].counts()["missing"] == 0
    assert {"report.html", "summary.json", "runs.csv"} <= {path.name for path in (tmp_path / "spirals").iterdir()}
