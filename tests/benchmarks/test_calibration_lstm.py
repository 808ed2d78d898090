"""Interpolation between the dropouts that were run."""

from __future__ import annotations

from pages.calibration.lstm import crossings, lstm_block
from pages.calibration.runs import runs_at


def test_crossings_of_straight_lines() -> None:
    assert crossings([0.0, 1.0, 2.0], [0.0, 4.0, 0.0], 1.0) == [0.25, 1.75]
    assert crossings([0.0, 1.0, 2.0], [0.0, 4.0, 0.0], 5.0) == []
    assert crossings([0.0, 1.0, 2.0], [1.0, 2.0, 3.0], 2.0) == [1.0]


def test_dropout_is_interpolated_as_by_hand() -> None:
    low, high = (runs_at(name, 1.4) for name in ("lstm_b16_little_dropout", "lstm_b16_less_dropout"))
    (test_low, train_low), (test_high, train_high) = (
        [sum(run[quantity] for run in runs) / 3 for quantity in ("test_metric", "train_metric")] for runs in (low, high)
    )
    part = (35.85 - train_low) / (train_high - train_low)
    there = test_low + part * (test_high - test_low)
    text = " ".join(lstm_block().split())
    assert f"dropout of {0.2 + 0.15 * part:.2f}, where the test perplexity is {there:.2f}" in text
