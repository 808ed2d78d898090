"""`--part` and `isotherm merge`: two shells that know nothing of each other run one study."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers_cli import invoke, rows


@pytest.mark.usefixtures("study_folder")
def test_parts_are_run_merged_and_complete() -> None:
    for number in (1, 2):
        code, text = invoke(
            "run", "mycode:sweep", "--workers", "1", "--part", f"{number}/2", "--store", f"{number}.sqlite",
            "--json", f"{number}.json",
        )  # fmt: skip
        assert code == 0, text
        assert f"Part {number}/2 is done with base grids" in " ".join(text.split())
    contents = [json.loads(Path(f"{number}.json").read_text()) for number in (1, 2)]
    assert [content["runs_left"] for content in contents] == [0, 0]
    assert len(rows("1.sqlite")) + len(rows("2.sqlite")) == 18
    assert len(rows("1.sqlite")) == contents[1]["runs_of_other_parts"]
    code, text = invoke("merge", "1.sqlite", "2.sqlite", "--into", "all.sqlite", "--json", "merged.json")
    assert code == 0, text
    assert "Study tiny: complete." in text
    assert json.loads(Path("merged.json").read_text())["missing"] == {"tiny": 0}
    code, text = invoke("run", "mycode:sweep", "--workers", "1", "--store", "all.sqlite")
    assert (code, len(rows("all.sqlite"))) == (0, 18)
    code, text = invoke("run", "mycode:sweep", "--part", "1/2", "--store", "1.sqlite", "--known", "all.sqlite")
    assert "nothing of the study is missing" in " ".join(text.split())


@pytest.mark.usefixtures("study_folder")
@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (["--part", "half"], "not of the form i/n"),
        (["--executor", "spark"], "spark"),
        (["--ray-address", "auto"], "choose it with --executor ray"),
        (["--executor", "slurm", "--slurm", "gpu"], "give a parameter and its value"),
        (["--executor", "local", "--run-timeout", "5"], "--executor pool"),
        (["--executor", "local", "--workers", "2"], "trains in one process"),
        (["--known", "none.sqlite"], "there is no store at none.sqlite"),
    ],
)
def test_what_executors_cannot_do_is_refused(option: list[str], sentence: str) -> None:
    code, text = invoke("run", "mycode:sweep", *option)
    assert code == 2, text
    assert sentence in " ".join(text.split())
