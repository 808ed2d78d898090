"""`--minutes`: a command that ends in time says what is left, and the same command goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers_cli import invoke, rows
from helpers_deadline import ends_after


@pytest.mark.usefixtures("study_folder")
def test_out_of_time_is_an_exit_code_and_the_same_command_goes_on() -> None:
    with pytest.MonkeyPatch.context() as limited:
        ends_after(limited, 11)  # one of two fleets: its start and ten windows
        code, text = invoke("run", "study.toml", "--workers", "1", "--minutes", "1", "--json", "left.json")
    assert code == 4, text
    assert "Time is up. Left of base grids: 6 runs" in " ".join(text.split())
    assert "The same command goes on from here" in " ".join(text.split())
    content = json.loads(Path("left.json").read_text())
    assert (content["complete"], content["left"]["runs"], content["left"]["runs_begun"]) == (False, 6, 0)
    assert len(rows("file.sqlite")) == 6
    code, _ = invoke("run", "study.toml", "--workers", "1", "--minutes", "10")
    assert code == 0
    assert len(rows("file.sqlite")) == 12


@pytest.mark.usefixtures("study_folder")
def test_minutes_too_short_are_an_error() -> None:
    with pytest.MonkeyPatch.context() as limited:
        ends_after(limited, 0)
        code, text = invoke("run", "study.toml", "--workers", "1", "--minutes", "1")
    assert code == 2
    assert "too short for one cell" in " ".join(text.split())
    for minutes in ("1e-9", "0", "-1"):
        code, text = invoke("run", "study.toml", "--workers", "1", "--minutes", minutes)
        assert code == 2, text


@pytest.mark.usefixtures("task_folder")
def test_a_cell_out_of_time_goes_on() -> None:
    words = ["--task", "taskcode:blobs", "--batch-size", "8", "--effective-learning-rate", "0.5", "--steps", "200"]
    words += ["--seeds", "2", "--evaluations", "0", "--minutes", "1"]
    with pytest.MonkeyPatch.context() as limited:
        ends_after(limited, 2)
        code, text = invoke("run", *words)
    assert code == 4, text
    assert "Left of base grids: 2 runs, 2 of which go on from a checkpoint, and what they call for" in " ".join(
        text.split()
    )
    code, _ = invoke("run", *words)
    assert code == 0
