"""What was tried, before and after."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers_performance import easy_results
from pages.performance.steps import STEPS, steps_block


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return easy_results(tmp_path, monkeypatch)


def test_a_step_is_shown_with_its_gain_or_loss(results: Path) -> None:
    lines = [line for line in steps_block().splitlines() if "| abc" in line]
    assert "16,000 [14,400, 17,600] | 18,000 [16,200, 19,800] | +12 % | abc, abc" in lines[0]
    assert len(lines) == 4  # no row before the rounded copies at B = 4,096 in these files
    assert "19,000 [17,100, 20,900] | 20,000 [19,000, 21,000] | +5 % | abc, f52dc57" in lines[1]  # of the benchmark
    assert "120,000 [108,000, 132,000] | 150,000 [135,000, 165,000] | +25 % |" in lines[2]
    assert "18,000 [16,200, 19,800] | 10,000 [9,000, 11,000] | −44 % |" in lines[3]


def test_every_step_has_its_rows() -> None:
    assert all(step.before() is not None and step.after() is not None for step in STEPS)
    lines = [line for line in steps_block().splitlines() if line.startswith(("| autoencoder", "| lstm", "| wrn"))]
    assert len(lines) == len(STEPS)
