"""Seconds to the first update, in a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers_performance import empty_results
from pages.performance.start import start_block
from pages.results import NOT_MEASURED, load


def test_trials_are_told_with_their_median_and_their_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_results(tmp_path, monkeypatch)
    assert start_block() == NOT_MEASURED
    row = {
        "what": "ahead",
        "commit": "abc",
        "label": "net:start",
        "num_runs": 6,
        "built_before": "nothing",
        "target": 15,
    }
    rows = [
        {**row, "batch_size": 256, "seconds": [16.0, 15.0]},
        {**row, "batch_size": 1024, "seconds": [3.0]},
    ]
    machine = {"gpu": "a card", "cpu": "a chip", "cores": 2, "torch": "2.x", "triton": "3.x"}
    content = {"machine": machine, "command": "bench", "note": "again", "rows": rows}
    (tmp_path / "start_h200.json").write_text(json.dumps(content))
    first, second = start_block().splitlines()[2:4]
    assert "net, 6 runs, B = 256" in first
    assert "**15.5** (16.0, 15.0) | 15 s, not reached" in first
    assert "**3.0** | 15 s, reached" in second


def test_what_was_measured_has_seconds_for_every_row() -> None:
    content = load("start_h200")
    assert content is not None
    assert all(min(row["seconds"]) > 0 for row in content["rows"])
