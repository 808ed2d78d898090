"""Convolutions of many runs next to cuDNN."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers_performance import empty_results, lines_of
from pages.performance.convolutions import convolutions_block
from pages.results import NOT_MEASURED


def row(
    way: str, *, time: float, num_layers: int = 1, error: float = 1e-3, is_wrong: bool = False
) -> dict[str, object]:
    return {
        "case": "16 to 64",
        "way": way,
        "num_layers": num_layers,
        "num_runs": 12,
        "batch_size": 64,
        "flop": 1e12,
        "error": error,
        "is_wrong": is_wrong,
        "ms": time,
        "library_by_run_ms": 5.0,
        "library_as_one_ms": 2.0,
    }


def test_the_best_tile_stands_beside_both_ways_of_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = empty_results(tmp_path, monkeypatch)
    rows = [row("forward", time=4.0), row("input gradient", time=3.0), row("weight gradient", time=1.0, is_wrong=True)]
    tuning = [{"case": "16 to 64", "way": "forward", "tried": [{"ms": 1.0}, {"ms": 9.0}]}]
    content = {"rows": rows, "tuning": tuning, "device": "a card", "torch": "2.x", "commit": "abc"}
    (folder / "convolutions_h200.json").write_text(json.dumps(content))
    block = convolutions_block()
    times = ("1000", "5000", "2000", "3000", "5000", "2000", "1000", "5000", "2000")
    assert lines_of(block)["1"] == ("1", "16 to 64", *times)
    text = " ".join(block.split())
    # 3 TFLOP in 5, 15 and 6 ms.
    assert "ours 5.0 ms, 600 TFLOP/s; by run 15.0 ms, 200 TFLOP/s; as one 6.0 ms, 500 TFLOP/s" in text
    assert "1 of 3 exceed their tolerance" in text


def test_without_results_nothing_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_results(tmp_path, monkeypatch)
    assert convolutions_block() == NOT_MEASURED
