"""Large matmuls of several kinds of numbers: measured, and in a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ceilings import NUMBERS, measured
from helpers_performance import empty_results
from pages.performance.ceilings import ceilings_block
from pages.results import NOT_MEASURED


@pytest.mark.parametrize("numbers", NUMBERS)
def test_a_product_is_timed_for_a_moment_and_for_long(numbers: str) -> None:
    row = measured(64, numbers, device="cpu", seconds=0.01)
    assert (row["size"], row["numbers"]) == (64, numbers)
    assert 0 < row["sustained_flop_per_second"] < 1e14
    assert 0 < row["shortest_flop_per_second"] < 1e14


def test_both_speeds_stand_by_numbers_and_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_results(tmp_path, monkeypatch)
    assert ceilings_block() == NOT_MEASURED
    rows = [
        {
            "size": size,
            "numbers": numbers,
            "shortest_flop_per_second": 1e12 * size * factor,
            "sustained_flop_per_second": 1e12 * size,
        }
        for size in (200, 100)
        for numbers, factor in (("ones", 2), ("normal", 1.5))
    ]
    content = {"rows": rows, "seconds": 2.0, "machine": {"gpu": "a card", "torch": "2.x"}, "commit": "abc"}
    (tmp_path / "ceilings_h200.json").write_text(json.dumps(content))
    table = ceilings_block().splitlines()
    assert table[0] == "| numbers | 100 | 200 |"
    assert table[2:4] == ["| ones | 200 / 100 | 400 / 200 |", "| normal | 150 / 100 | 300 / 200 |"]
    assert "over 2 s; one measurement each, a card, torch 2.x, commit abc" in " ".join(" ".join(table[4:]).split())
