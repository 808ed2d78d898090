from __future__ import annotations

import json
from pathlib import Path

from statistics_report import DOCUMENT, PAGE, RESULT, json_lines, pool
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
