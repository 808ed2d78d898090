"""`isotherm plan`: the cost of a study, without a store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers_cli import (
    invoke,
    run_tiny,
)

pytestmark = pytest.mark.usefixtures("study_folder")


def test_plan_counts_runs_estimates_time_and_writes_nothing() -> None:
    code, text = invoke("plan", "mycode:sweep", "--json", "plan.json")
    assert code == 0
    assert "18 runs to do" in text
    content = json.loads(Path("plan.json").read_text())
    assert content["num_runs"] == 18
    assert content["num_examples"] == 6 * 10 * (8 + 16 + 32)
    assert content["flop"] == pytest.approx(content["num_examples"] * 4 * 3 * 2)  # no gradient of the inputs
    assert content["seconds"] > 0
    assert not list(Path().glob("*.sqlite*"))


def test_plan_counts_what_is_stored() -> None:
    run_tiny()
    code, text = invoke("plan", "mycode:sweep")
    assert code == 0
    assert "0 runs to do, 18 stored" in text
