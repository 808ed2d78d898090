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


@pytest.mark.parametrize(
    ("times", "text"), [((450.0, 460.0), "450 (2, 2) |"), ((450.0, 430.4), "450 (2, 2); 430 (3, 1) |")]
)
def test_a_stream_of_tiles_stands_beside_them(
    times: tuple[float, float], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = easy_results(tmp_path, monkeypatch)
    streamed = [
        {"num_stages": stages, "programs_at_once": programs, "microseconds": time}
        for (stages, programs), time in zip(((2, 2), (3, 1)), times, strict=True)
    ]
    row = {
        "batch_size": 64,
        "error_in_roundings": 0.1,
        "floor_microseconds": 800.0,
        "products_and_compiled_update_microseconds": 700.0,
        "kernel": [tried(32, 650.0)],
    }
    rows = [row | {"streamed": streamed}, row | {"batch_size": 128, "streamed": []}]
    content = {"copy_bytes_per_second": 2e12, "num_runs": 35, "device": "a card", "torch": "2", "commit": "abc"}
    (folder / "factored_update_h200.json").write_text(json.dumps({**content, "rows": rows}))
    block = factored_block()
    assert f"| 64 | 400 | 700 | 650 (32 × 64, 4) | – | {text}" in block
    assert "| 128 | 400 | 700 | 650 (32 × 64, 4) | – | – |" in block


def test_without_results_nothing_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_results(tmp_path, monkeypatch)
    assert factored_block() == NOT_MEASURED
