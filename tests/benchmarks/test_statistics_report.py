from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import statistics_report
from statistics_report import DOCUMENT, PAGE, RESULT, json_lines, pool, repeat
from statistics_runs import method_of


def test_the_document_shows_what_was_simulated_last() -> None:
    text = DOCUMENT.read_text()
    assert PAGE.names_in(text) == list(PAGE.blocks)
    assert PAGE.filled(text) == text


def test_the_result_file_says_how_to_repeat_every_line() -> None:
    content = json.loads(RESULT.read_text())
    assert content["command"].startswith("python benchmarks/statistics_report.py --simulate")
    assert all({"kind", "num", "seed", "seconds"} <= set(job) for job in content["jobs"])
    assert json_lines(content) == RESULT.read_text()


def test_lines_become_the_result_file(tmp_path: Path) -> None:
    job = {"kind": "coverage", "family": "x", "num": 1, "seed": 7, "seconds": 1.0}
    lines, path = tmp_path / "lines.jsonl", tmp_path / "statistics.json"
    lines.write_text(json.dumps({**job, "method": method_of("coverage"), "cpu": "a CPU"}) + "\n")
    pool([lines], path=path)
    content = json.loads(path.read_text())
    assert content["jobs"] == [job]
    assert content["cpus"] == ["a CPU"]
    more = tmp_path / "more.jsonl"
    more.write_text(json.dumps({**job, "seed": 8, "method": method_of("coverage"), "cpu": "another"}) + "\n")
    pool([more, path, lines], path=path)
    content = json.loads(path.read_text())
    assert [found["seed"] for found in content["jobs"]] == [7, 8]
    assert content["cpus"] == ["a CPU", "another"]


def test_results_that_come_out_the_same_are_those_of_the_method_of_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "statistics.json"
    jobs = [{"kind": kind, "num": 1, "seed": 7, "held": [1.0], "seconds": 1.0} for kind in ("coverage", "verdicts")]
    path.write_text(json_lines({"method": {"coverage": "old", "verdicts": "old"}, "jobs": jobs}))

    def done(job: dict[str, Any], held: float) -> dict[str, Any]:
        assert "held" not in job
        return {**job, "held": [held], "seconds": 2.0}

    monkeypatch.setattr(statistics_report, "done", lambda job: done(job, 0.0))
    with pytest.raises(SystemExit, match="coverage, seed 7: comes out differently now"):
        repeat(3, path=path)
    assert json.loads(path.read_text())["method"]["coverage"] == "old"
    monkeypatch.setattr(statistics_report, "done", lambda job: done(job, 1.0))
    repeat(3, path=path)
    content = json.loads(path.read_text())
    assert content["method"] == {kind: method_of(kind) for kind in ("coverage", "verdicts")}
    assert content["repeated"]["num_of_each_kind"] == 3
    assert content["jobs"] == jobs
