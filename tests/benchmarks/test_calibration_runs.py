"""Runs are read and averaged as by hand."""

from __future__ import annotations

import math

import pytest

from pages.calibration.runs import LSTM_B16, dropout, option, running_objective, runs_at, value


def test_values_agree_with_a_computation_by_hand() -> None:
    runs = runs_at("wrn_b256", 4.0)
    accuracies = [100 * run["test_metric"] for run in runs]
    mean = sum(accuracies) / 3
    deviation = math.sqrt(sum((a - mean) ** 2 for a in accuracies) / 2)
    found = value(runs, "test_metric", scale=100)
    assert found.mean == pytest.approx(mean)
    assert found.sd == pytest.approx(deviation)
    assert running_objective(runs[0]) == runs[0]["train_loss_running"] + runs[0]["l2_penalty"]


def test_options_are_read_from_the_runs() -> None:
    assert [dropout(name) for name in LSTM_B16] == ["0.5", "0.35", "0.2"]
    assert option("wrn_b256_zero", "padding", "reflection") == "zero"
    assert option("wrn_b256", "padding", "reflection") == "reflection"
