"""`isotherm plan`: the cost of a study and what it can see, without a store."""

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


def test_plan_counts_confirming_runs_and_says_what_refinement_adds() -> None:
    code, text = invoke("plan", "mycode:sweep", "--resolution", "adaptive", "--json", "plan.json")
    assert code == 0
    content = json.loads(Path("plan.json").read_text())
    assert (content["num_runs"], content["num_confirming"]) == (18 + 3 * 2, 6)
    assert content["num_refining"] == 3 * 2 * 3 * 2  # three grids of ratio 4: three halvings of both sides, two seeds
    assert "6 runs of them confirm the choice. Refining the grids will add about 36." in " ".join(text.split())


def test_plan_counts_what_is_stored() -> None:
    run_tiny()
    code, text = invoke("plan", "mycode:sweep")
    assert code == 0
    assert "0 runs to do, 18 stored" in text


def test_plan_says_what_can_be_seen_and_invents_no_noise() -> None:
    code, text = invoke("plan", "mycode:sweep", "--json", "plan.json")
    assert code == 0
    assert "What it can see, with a power of 80%" in text
    assert "No stored run of this task tells the noise" in " ".join(text.split())
    assert "32 test examples add an error of up to 8.8 points" in " ".join(text.split())
    (entry,) = json.loads(Path("plan.json").read_text())["power"]
    assert entry["noise"] is None
    assert entry["unit"] == "standard deviations between seeds"
    assert entry["smallest_difference"] > 0


def test_plan_says_how_many_seeds_a_difference_needs() -> None:
    code, text = invoke("plan", "mycode:sweep", "--noise", "1", "--difference", "0.5", "--json", "plan.json")
    assert code == 0
    (entry,) = json.loads(Path("plan.json").read_text())["power"]
    assert entry["seeds_needed"] == 131  # two comparisons, four verdicts; errors widened by 1.2
    assert f"A difference of 0.5 points needs {entry['seeds_needed']} seeds" in " ".join(text.split())
    code, text = invoke("plan", "mycode:sweep", "--noise", "-1")
    assert code == 2
    assert "noise must be a positive number" in text


def test_plan_takes_the_noise_from_the_store() -> None:
    run_tiny()
    code, text = invoke("plan", "mycode:sweep", "--json", "plan.json")
    assert code == 0
    (entry,) = json.loads(Path("plan.json").read_text())["power"]
    assert entry["noise"]["num_runs"] > 0
    assert f"from {entry['noise']['num_runs']} stored runs of this task" in " ".join(text.split())


def test_plan_says_what_it_cannot_count_yet() -> None:
    later = "until = { first = 2, at_most = 8 }\nestimate_at = { epochs = 1 }\nschedule = 'cosine'"
    Path("later.toml").write_text(Path("study.toml").read_text().replace("steps = 10", later))
    code, shown = invoke("plan", "later.toml")
    assert code == 0, shown
    assert "grids are estimated at 1 epoch first; the rest is not counted yet" in " ".join(shown.split())
    assert "budgets double while it improves, to 8 epochs at most; those are not counted" in " ".join(shown.split())
    assert "learning rates follow the schedule: cosine decay to 0" in " ".join(shown.split())
