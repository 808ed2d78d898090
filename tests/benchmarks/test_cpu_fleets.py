"""The table of fleets of several kinds of networks: what is measured, and what the page shows of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cpu_fleets
from helpers_performance import empty_results
from pages.performance.cpu_fleets import cpu_fleets_block

ROWS = [
    {"network": "small", "batch_size": 8, "ratios": {"1": 1.5, "8": 7.344}},
    {"network": "large", "batch_size": 64, "ratios": {"1": 0.77}},
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_results(tmp_path, monkeypatch)


def test_a_measured_file_becomes_a_table_with_its_machine(folder: Path) -> None:
    content = cpu_fleets.content_of(ROWS, load=(0.25, 7.0))
    (folder / "cpu_fleets.json").write_text(json.dumps(content))
    lines = cpu_fleets_block().splitlines()
    assert lines[0] == "| network | B | 1 run | 8 runs |"
    assert lines[2:4] == ["| small | 8 | 1.50 | 7.34 |", "| large | 64 | 0.77 | – |"]
    words = f"commit {content['commit']}; 6 windows of each, at a load average of 0.2 to 7.0."
    assert words in " ".join(lines[5:])


def test_a_network_is_measured_at_every_size_of_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_fleets, "SIZES", (1, 2))
    monkeypatch.setattr(cpu_fleets, "speeds", lambda contenders: {size: 2.0 + size for size in contenders})
    row = cpu_fleets.measured("MLP 40-100-100-10")
    assert row == {"network": "MLP 40-100-100-10", "batch_size": 8, "ratios": {"1": 1.5, "2": 2.0}}


def test_every_network_is_measured_and_written_with_the_load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_fleets, "FILE", folder / "cpu_fleets.json")
    monkeypatch.setattr(cpu_fleets, "measured", lambda name: {"network": name, "batch_size": 8, "ratios": {"1": 2.0}})
    loads = iter([3.0, *[1.0] * len(cpu_fleets.NETWORKS)])
    monkeypatch.setattr(cpu_fleets.os, "getloadavg", lambda: (next(loads), 0.0, 0.0))
    monkeypatch.setattr(cpu_fleets.torch, "set_num_threads", lambda num: None)
    cpu_fleets.main([])
    content = json.loads((folder / "cpu_fleets.json").read_text())
    assert [row["network"] for row in content["rows"]] == list(cpu_fleets.NETWORKS)
    assert content["load"] == [1.0, 3.0]
