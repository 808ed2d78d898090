"""The sentences of docs/results.md that are written by hand have numbers that the rows have, and change with them."""

from __future__ import annotations

import json
import math
import statistics
from typing import Any

import pytest

from isotherm.core.statistics import t_interval
from isotherm.studies.paper.registry import objects
from pages.calibration.runs import runs_at
from pages.paper import TABLE_6, TABLE_7, PaperTable
from pages.results import ROOT
from pages.text import signed_interval

TEXT = " ".join((ROOT / "docs" / "results.md").read_text().split())


def cells(table: PaperTable) -> dict[tuple[int, float], dict[int, Any]]:
    """Return the results of a table's file by batch size and learning rate, then seed."""
    found: dict[tuple[int, float], dict[int, Any]] = {}
    for run in json.loads(table.file.read_text())["runs"]:
        spec = run["spec"]
        cell = found.setdefault((spec["batch_size"], spec["effective_learning_rate"]), {})
        cell[spec["seed"]] = run["result"]
    return found


def mean(runs: Any, quantity: str) -> float:
    return statistics.fmean(run[quantity] for run in runs)


@pytest.fixture(scope="module")
def lstm() -> dict[tuple[int, float], dict[int, Any]]:
    return cells(TABLE_6)


@pytest.fixture(scope="module")
def autoencoder() -> dict[tuple[int, float], dict[int, Any]]:
    return cells(TABLE_7)


def test_the_paper_s_square_root() -> None:
    assert "ε_eff/√B is 0.35 at all of them but 128, where it is 0.49" in TEXT
    ratios = {row.batch_size: f"{row.rate / math.sqrt(row.batch_size):.2f}" for row in objects()["table6"].published}
    assert ratios == {16: "0.35", 32: "0.35", 64: "0.35", 128: "0.49", 256: "0.35"}


def test_the_two_best_learning_rates_of_table_6_at_b_64(lstm: Any) -> None:
    lower, upper = lstm[64, 2.0], lstm[64, 2.8]
    assert set(lower) == set(upper) == set(range(5))
    change = t_interval([upper[seed]["test_metric"] - lower[seed]["test_metric"] for seed in range(5)])
    words = signed_interval(change.estimate, (change.low, change.high), decimals=2)
    assert f"2.8 minus 2.0 is {words}, paired over five seeds" in TEXT
    ours, theirs = (mean(lstm[64, rate].values(), "test_metric") for rate in (2.8, 2.0))
    assert ours < theirs < mean(lstm[64, 4.0].values(), "test_metric")
    assert "three seeds of the [calibration](calibration.md), trained by earlier code, had 2.0 ahead" in TEXT
    assert mean(runs_at("lstm_b64", 2.0), "test_metric") < mean(runs_at("lstm_b64", 2.8), "test_metric")
    assert "training perplexity there is 5 above the paper's" in TEXT
    assert round(mean(upper.values(), "train_metric") - TABLE_6_PUBLISHED[64].train.mean) == 5


def test_the_best_learning_rate_of_table_6_at_b_128(lstm: Any) -> None:
    assert (
        "At B = 128 the best of three learning rates is 4.0, at the lower end of the grid, and not the paper's" in TEXT
    )
    means = {rate: mean(runs.values(), "test_metric") for (size, rate), runs in lstm.items() if size == 128}
    assert min(means, key=lambda rate: means[rate]) == min(means) == 4.0
    assert {len(runs) for (size, _), runs in lstm.items() if size == 128} == {3}
    assert "two seeds of five are missing at B = 128" in TEXT
    assert f"at 4.0 ε_eff/√B is {4.0 / math.sqrt(128):.2f}, and both perplexities are within 1.2" in TEXT
    published = TABLE_6_PUBLISHED[128]
    assert abs(means[4.0] - published.test.mean) <= 1.2
    assert abs(mean(lstm[128, 4.0].values(), "train_metric") - published.train.mean) <= 1.2
    assert "B = 16, 32 and 256 have not been swept" in TEXT
    assert {size for size, _ in lstm} == {64, 128}


def test_the_clipped_updates(lstm: Any) -> None:
    assert "nearly every update is clipped up to B = 64, and one in thirteen at B = 128" in TEXT
    clipped = {cell: mean(runs.values(), "clipped_fraction") for cell, runs in lstm.items()}
    assert clipped[64, 2.8] > 0.9
    assert round(1 / clipped[128, 5.6]) == 13
    assert "at the best of our learning rates there it is half of them" in TEXT
    assert clipped[128, 4.0] == pytest.approx(0.5, abs=0.05)


def test_runs_without_clipping() -> None:
    rows = json.loads((ROOT / "results" / "lstm_clipping" / "lstm_clipping.json").read_text())["runs"]
    assert "Without clipping no learning rate of ε_eff = 0.5 or more trained at B = 256" in TEXT
    learnt = {
        rate: [
            (run["result"]["test_metric"] or math.inf) < 10_000
            for run in rows
            if run["spec"]["effective_learning_rate"] == rate
        ]
        for rate in {run["spec"]["effective_learning_rate"] for run in rows}
    }
    assert not any(any(found) for rate, found in learnt.items() if rate >= 0.5)
    assert "at 0.25 one run of three blew up" in TEXT
    assert sorted(learnt[0.25]) == [False, True, True]


def test_the_trend_of_table_7(autoencoder: Any) -> None:
    sizes = (64, 256, 1024, 4096)
    test, train = (
        [mean(autoencoder[size, 0.08].values(), name) for size in sizes] for name in ("test_metric", "train_metric")
    )
    assert "both fall from B = 64 to 256" in TEXT
    assert test[1] < test[2] < test[3] < test[0]
    assert "the training error falls further at every step" in TEXT
    assert train[3] < train[2] < train[1] < train[0]
    assert "up to B = 4,096 by a third of what it had fallen" in TEXT
    assert (test[3] - test[1]) / (test[0] - test[1]) == pytest.approx(1 / 3, abs=0.05)
    assert "ε_eff = 0.08 is the best of the three learning rates at all four batch sizes" in TEXT
    for size in sizes:
        means = {rate: mean(autoencoder[size, rate].values(), "test_metric") for rate in (0.04, 0.08, 0.16)}
        assert min(means, key=lambda rate: means[rate]) == 0.08
    assert "at B = 64 both errors are within 2 % of the paper's" in TEXT
    row = next(row for row in objects()["table7"].published if row.batch_size == 64)
    assert [test[0], train[0]] == pytest.approx([row.test.mean, row.train.mean], rel=0.02)


def test_the_collapsed_runs_of_table_7(autoencoder: Any) -> None:
    errors = sorted(run["test_metric"] for run in autoencoder[64, 0.16].values())
    assert "three of seven runs collapsed to test errors between 14.5 and 53" in TEXT
    assert [f"{errors[-3]:.1f}", round(errors[-1])] == ["14.5", 53]
    assert errors[-4] < 4
    assert "The best five of seven hide two of them" in TEXT
    assert "At the other batch sizes none collapsed" in TEXT
    found = [run["test_metric"] for (size, _), runs in autoencoder.items() if size != 64 for run in runs.values()]
    assert len(found) == 63
    assert max(found) < 4


TABLE_6_PUBLISHED = {row.batch_size: row for row in objects()["table6"].published}
