"""Cells trained again, compared by means, pairs and spread."""

from __future__ import annotations

import dataclasses
import json

import pytest

from pages.performance import numerics
from pages.performance.numerics import Cell, cells, numerics_block
from pages.results import CALIBRATION


def cell(before: tuple[float, ...], now: tuple[float, ...]) -> Cell:
    return Cell(name="a", short="a", quantity="q", paper="1", before=before, now=now, decimals=2)


def test_a_cell_is_compared_by_means_pairs_and_spread() -> None:
    found = cell((1.0, 2.0, 3.0), (2.0, 3.1, 3.9))
    assert found.difference.estimate == pytest.approx(1.0)
    assert found.difference.contains(0.0)
    assert found.paired.low == pytest.approx(1 - 4.302653 * 0.1 / 3**0.5, abs=1e-5)
    assert not cell((1.0, 2.0, 3.0), (2.9, 2.9, 2.9)).is_outside
    assert cell((1.0, 2.0, 3.0), (0.9, 0.9, 0.9)).is_outside
    # Of n = 3 the two-sided F test has p = 2 / (1 + F).
    wide = cell((1.0, 2.0, 3.0), (0.0, 3.0, 6.0))
    assert wide.spread_ratio == pytest.approx(3.0)
    assert wide.spread_p == pytest.approx(2 / (1 + 9))
    assert cell((0.0, 3.0, 6.0), (1.0, 2.0, 3.0)).spread_p == pytest.approx(2 / (1 + 9))


def test_cells_hold_the_values_of_the_files_by_seed() -> None:
    by_name = {c.short: c for c in cells()}
    runs = json.loads((CALIBRATION / "rerun" / "autoencoder_mixed.json").read_text())["runs"]
    assert by_name["the autoencoder's test error"].now == tuple(run["result"]["test_metric"] for run in runs)
    assert all(run["spec"]["precision"] == "mixed" for run in runs)
    for folder, name in ((CALIBRATION, "before"), (CALIBRATION / "rerun", "now")):
        runs = json.loads((folder / "lstm_b64.json").read_text())["runs"]
        finals = [r["result"] for r in runs if r["spec"]["effective_learning_rate"] == 2.8]
        assert len(finals) == 3
        for key in ("test", "training"):
            found = getattr(by_name[f"the LSTM's {key} perplexity"], name)
            assert found == tuple(result[f"{key.removesuffix('ing')}_metric"] for result in finals)
    assert by_name["the loss of WRN-16-4"].paper == "0.232 ± 0.001"
    assert by_name["the accuracy of WRN-16-4"].now == pytest.approx((93.85, 93.81, 93.90), abs=1e-4)


def test_cells_stay_within_the_goals_of_the_calibration() -> None:
    means = {c.short: (sum(c.now) / len(c.now), float(c.paper.split("±")[0])) for c in cells()}
    for name in ("the autoencoder's test error", "the autoencoder's training error"):
        assert abs(means[name][0] / means[name][1] - 1) <= 0.02
    assert abs(means["the loss of WRN-16-4"][0] / means["the loss of WRN-16-4"][1] - 1) <= 0.1
    assert means["the accuracy of WRN-16-4"][0] >= means["the accuracy of WRN-16-4"][1] - 0.2
    assert abs(means["the LSTM's test perplexity"][0] - means["the LSTM's test perplexity"][1]) <= 1.0


def test_the_numerics_say_what_is_outside_and_what_is_significant(monkeypatch: pytest.MonkeyPatch) -> None:
    same, off = cell((1.0, 2.0, 3.0), (1.1, 2.0, 2.9)), cell((1.0, 2.0, 3.0), (8.0, 9.0, 10.1))
    found = [dataclasses.replace(same, short="same"), dataclasses.replace(off, short="off")]
    monkeypatch.setattr(numerics, "cells", lambda: found)
    text = " ".join(numerics_block().split())
    assert "(one sd): off. Welch's interval excludes zero for: off; paired by seed for: off." in text
    assert "excludes zero in 10 %" in text
    assert "more than threefold for: none." in text
    assert "| 2.00 ± 1.00 (3) | 9.03 ± 1.05 (3) | +7.03 [" in text
