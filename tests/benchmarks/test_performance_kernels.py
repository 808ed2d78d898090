"""Kernels summed over a network's layers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers_performance import easy_results, kernel_row, lines_of
from pages.performance.kernels import kernels_block, moved_bytes


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return easy_results(tmp_path, monkeypatch)


def test_kernels_are_summed_over_the_layers_of_a_network(results: Path) -> None:
    rows = [kernel_row(64, 1, 1.0), kernel_row(64, 2, 2.0, error=2e-3), kernel_row(1024, 3, 1.0, wrong=["y"])]
    content = {"rows": rows, "copy_bytes_per_second": 2e12, "device": "a card", "torch": "2.x", "commit": "abc"}
    (results / "kernels_h200.json").write_text(json.dumps(content))
    assert moved_bytes(content, 64) == pytest.approx(4.5e-3 * 2e12)
    block = kernels_block()
    lines = lines_of(block)
    # 4.5 ms of floor in 15 ms; 9 GB in that time are 0.6 TB/s, 15 % of the other copy's 4.
    assert lines["64"] == ("64", "3", "5.00", "1.50", "10.00", "3.00", "30 %", "0.6", "15 %")
    assert lines["1,024"][1:3] == ("3", "3.00")
    text = " ".join(block.split())
    assert "4.0e-03 in values rounded" in text
    assert "1.0e-07 in means" in text
    assert "1 of 3 cases exceed their tolerance" in text
    assert "moves 2.00 TB/s, that of `isotherm bench` 4.00" in text
