from __future__ import annotations

from typing import Any

import pytest

import optimizer_exponents
from pages.results import load


def row(**changes: Any) -> dict[str, Any]:
    grids = [
        {"batch_size": size, "learning_rate": 0.01, "test_accuracy": 0.5, "edge": "interior"}
        for size in optimizer_exponents.BATCH_SIZES
    ]
    claim = "made: at small batches the optimal learning rate is proportional to the {}"
    verdicts = [
        {"claim": claim.format("batch size"), "state": "does not hold"},
        {"claim": claim.format("square root of the batch size"), "state": "not determined"},
    ]
    found = {"name": "AdamW", "num_runs": 9, "exponent": 0.5, "interval": [0.4, 0.62], "kink": "", "shows_kink": False}
    return {**found, "verdicts": verdicts, "grids": grids, **changes}


def test_the_table_has_the_verdicts_on_both_rules() -> None:
    line = optimizer_exponents.table([row()]).splitlines()[-1]
    assert "| AdamW | 9 | 0.50 [0.40, 0.62] | does not hold | not determined | not determined | 0.01 (50.0 %) |" in line


@pytest.mark.parametrize("name", optimizer_exponents.OPTIMIZERS)
def test_sweeps_differ_in_the_optimiser_alone(name: str) -> None:
    sweep = optimizer_exponents.sweep_of(name)
    assert sweep.methods == (optimizer_exponents.OPTIMIZERS[name],)
    assert tuple(sweep.batch_sizes) == optimizer_exponents.BATCH_SIZES


def test_the_page_is_that_of_the_result_file() -> None:
    content = load("optimizer_exponents")
    assert content is not None
    assert [one["name"] for one in content["rows"]] == list(optimizer_exponents.OPTIMIZERS)
    assert optimizer_exponents.table(content["rows"]) in optimizer_exponents.PAGE.read_text()
