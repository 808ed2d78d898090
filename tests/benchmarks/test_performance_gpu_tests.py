"""Tests that were run on a GPU, in a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers_performance import empty_results, lines_of
from pages.performance.gpu_tests import gpu_tests_block
from pages.results import NOT_MEASURED, ROOT, load


def test_failures_are_told_with_their_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_results(tmp_path, monkeypatch)
    assert gpu_tests_block() == NOT_MEASURED
    row = {"files": ["tests/a/test_b.py"], "passed": 3, "failed": 0, "commit": "abc", "note": ""}
    rows = [
        {**row, "what": "sums"},
        {**row, "what": "units", "failed": 2, "note": "too slow"},
        {**row, "what": "fleets", "note": "alone"},
    ]
    content = {"rows": rows, "machine": {"gpu": "a card", "torch": "2.x", "triton": "3.x"}}
    (tmp_path / "gpu_tests_h200.json").write_text(json.dumps(content))
    block = gpu_tests_block()
    lines = lines_of(block)
    assert lines["sums"] == ("sums", "`test_b.py`", "3", "0", "abc")
    assert lines["units"][3] == "**2**: too slow"
    assert block.splitlines()[-1] == "a card, torch 2.x, Triton 3.x. fleets at abc: alone."


def test_the_files_are_there() -> None:
    content = load("gpu_tests_h200")
    assert content is not None
    for row in content["rows"]:
        assert all((ROOT / name).exists() for name in row["files"])
