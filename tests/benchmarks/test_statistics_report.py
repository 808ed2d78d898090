from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import statistics_report
from statistics_report import DOCUMENT, PAGE, RESULT, json_lines, run


def test_the_document_shows_what_was_simulated_last() -> None:
    text = DOCUMENT.read_text()
    assert PAGE.names_in(text) == list(PAGE.blocks)
    assert PAGE.filled(text) == text


def test_the_result_file_says_how_to_repeat_every_line() -> None:
    content = json.loads(RESULT.read_text())
    assert content["command"].startswith("python benchmarks/statistics_report.py --simulate")
    assert all({"kind", "num", "seed", "seconds"} <= set(job) for job in content["jobs"])
    assert json_lines(content) == RESULT.read_text()


def test_only_what_is_missing_is_simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(job: dict[str, Any]) -> dict[str, Any]:
        asked.append(job["seed"])
        if len(asked) == 4:
            raise KeyboardInterrupt
        return {**job, "seconds": 0.1}

    monkeypatch.setattr(statistics_report, "done", counted)
    path = tmp_path / "statistics.json"
    with pytest.raises(KeyboardInterrupt):
        run(1, path=path)
    first = list(asked)
    run(1, path=path)
    assert asked[4] == first[3]
    assert len(json.loads(path.read_text())["jobs"]) == len(asked) - 1
