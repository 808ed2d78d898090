"""The page on diagnose says what the result files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import diagnose_accuracy as script
from pages.results import RESULTS, ROOT


@pytest.fixture
def measured() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RESULTS / "diagnose_quickstart.json").read_text())
    return content


def test_the_page_is_up_to_date(tmp_path: Path) -> None:
    page = ROOT / "docs" / "diagnose.md"
    copy = tmp_path / "diagnose.md"
    copy.write_text(page.read_text())
    script.PAGE.write(copy)
    assert copy.read_text() == page.read_text()


def test_agreement_follows_from_the_factors(measured: dict[str, Any]) -> None:
    for row in measured["rows"]:
        factors = [factor for by_size in row["rate_factors"].values() for factor in by_size.values()]
        assert len(factors) == 12
        assert row["rates_agree"] == all(0.5 <= factor <= 2.0 for factor in factors)
        assert row["boundaries_agree"] == all(0.5 <= factor <= 2.0 for factor in row["boundary_factors"].values())
        assert row["part_of_sweep"] == pytest.approx(row["num_examples"] / measured["sweep_examples"])


def test_the_sweep_s_examples_are_counted(measured: dict[str, Any]) -> None:
    content = json.loads(script.SWEEP.read_text())
    by_hand = 0
    for sweep in content["sweeps"]:
        for grid in sweep["grids"]:
            by_hand += grid["num_runs"] * grid["batch_size"] * grid["num_steps"]
    assert script.examples_of_sweep(content) == by_hand == measured["sweep_examples"]


def test_the_page_tells_what_is_not_measured() -> None:
    assert script.block(None, None) == "Not measured yet."
    rates = {"0.9": {"estimate": 0.07, "low": 0.05, "high": 0.1}}
    of_paper = {
        "task": "autoencoder_mnist",
        "machine": {"gpu": "a GPU", "cpu": "a CPU"},
        "minutes": 5,
        "commit": "abc",
        "batch_size": 64,
        "published": 0.08,
        "rows": [{"rates": rates}, {"rates": {}}],
    }
    assert "is 0.07 [0.05, 0.1]; none; the paper's optimum is 0.08" in script.block(None, of_paper)
