"""The gain of a shrinking fleet, against its target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers_performance import empty_results
from pages.performance.growth import shrink_block


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_results(tmp_path, monkeypatch)


@pytest.mark.parametrize(("ratio", "word"), [(0.55, "met"), (0.65, "missed")])
def test_a_goal_that_is_missed_is_called_so(folder: Path, ratio: float, word: str) -> None:
    found = {"num_runs": 4, "batch_size": 8, "num_updates": 10, "seconds_whole": [1.0], "goal": 0.6, "ratio": ratio}
    (folder / "growth_cpu.json").write_text(json.dumps({"shrink": {**found, "seconds_half_diverged": [ratio]}}))
    assert f"**{word}**" in shrink_block()
