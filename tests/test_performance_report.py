"""The page on speed says what the result files say."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def report():
    path = ROOT / "benchmarks" / "performance_report.py"
    spec = importlib.util.spec_from_file_location("performance_report", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_document_is_up_to_date(report):
    text = report.DOCUMENT.read_text()
    assert report.filled(text) == text


def test_every_block_of_the_document_is_known(report):
    assert {m[1] for m in report._BLOCK.finditer(report.DOCUMENT.read_text())} == set(report.BLOCKS)


ROW = {
    "work": "mlp",
    "device": "cpu",
    "batch_size": 8,
    "num_runs": 55,
    "ours": 54_321.0,
    "lowest": 50_000.0,
    "highest": 60_000.0,
    "unit": "run-steps/s",
    "peers": {"plain loop": 2_000.0, "jax vmap": None},
    "ratio": 27.16,
    "floor": 100_000.0,
    "fraction_of_floor": 0.543,
    "target": {"of": "ratio", "value": 25.0, "text": "25x plain", "reached": True},
}


def test_a_row_is_written_with_its_peers_goal_and_floor(report, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    machine = {"cpu": "a chip", "cores": 2, "torch": "2.x", "gpu": None}
    content = {"rows": [ROW, {**ROW, "ours": None, "ratio": None, "target": None}], "machine": machine, "commit": "abc"}
    (tmp_path / "bench_cpu.json").write_text(json.dumps(content))
    table = report.bench_block("bench_cpu").splitlines()
    assert table[0].split(" | ")[5:7] == ["plain loop", "jax vmap"]
    assert "**54,300** [50,000, 60,000] | 2,000 | – | 27.2 | 25x plain | yes | 100,000 | 54 %" in table[2]
    assert "| – | 2,000 | – | – | – | – |" in table[3]
    assert "a chip, 2 cores, torch 2.x, commit abc" in table[-1]


def test_what_was_not_measured_is_said(report, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    assert all(block() == "Not measured yet." for block in report.BLOCKS.values())


@pytest.mark.parametrize(("ratio", "word"), [(0.55, "met"), (0.65, "missed")])
def test_a_goal_that_is_missed_is_called_so(report, tmp_path, monkeypatch, ratio, word):
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    found = {"num_runs": 4, "batch_size": 8, "num_updates": 10, "seconds_whole": [1.0], "goal": 0.6, "ratio": ratio}
    (tmp_path / "growth_cpu.json").write_text(json.dumps({"shrink": {**found, "seconds_half_diverged": [ratio]}}))
    assert f"**{word}**" in report.shrink_block()
