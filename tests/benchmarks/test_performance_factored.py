"""Gradients and updates of the autoencoder alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers_performance import easy_results, empty_results
from pages.performance.factored import factored_block
from pages.results import NOT_MEASURED


def tried(rows: int, microseconds: float) -> dict[str, object]:
    return {"tile": {"rows": rows, "columns": 64, "inner": 64, "num_warps": 4}, "microseconds": microseconds}


def test_times_stand_beside_the_floor_of_the_faster_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = easy_results(tmp_path, monkeypatch)
    rows = [
        {
            "batch_size": size,
            "error_in_roundings": error,
            "floor_microseconds": 800.0,
            "products_and_compiled_update_microseconds": 700.0,
            "kernel": kernel,
        }
        for size, error, kernel in (
            (64, 0.25, [tried(32, 650.0), tried(16, 500.4), tried(8, 600.0)]),
            (1024, 0.5, [tried(32, 900.0)]),
        )
    ]
    content = {"copy_bytes_per_second": 2e12, "num_runs": 35, "device": "a card", "torch": "2", "commit": "abc"}
    (folder / "factored_update_h200.json").write_text(json.dumps({**content, "rows": rows}))
    block = factored_block()
    # 800 µs at 2 TB/s are 400 at the 4 of the benchmark.
    assert "| 64 | 400 | 700 | 650 (32 × 64, 4) | 500 (16 × 64, 4) |" in block
    assert "| 1,024 | 400 | 700 | 900 (32 × 64, 4) | – |" in block
    assert "at most 0.50 of a rounding" in " ".join(block.split())


def test_without_results_nothing_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_results(tmp_path, monkeypatch)
    assert factored_block() == NOT_MEASURED
