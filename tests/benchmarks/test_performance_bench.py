"""Rows of `isotherm bench` with peers, targets and floors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers_performance import empty_results
from isotherm.bench.workloads import WORKLOADS
from pages.performance.bench import bench_block

ROW = {
    "workload": "mlp",
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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_results(tmp_path, monkeypatch)


def test_a_row_is_written_with_its_peers_goal_and_floor(folder: Path) -> None:
    machine = {"cpu": "a chip", "cores": 2, "torch": "2.x", "gpu": None}
    first = {**ROW, "reasons": {"jax vmap": "not installed"}}
    other = {**ROW, "ours": None, "ratio": None, "target": None, "reasons": {"jax vmap": "too late"}}
    (folder / "bench_cpu.json").write_text(json.dumps({"rows": [first, other], "machine": machine, "commit": "abc"}))
    table = bench_block("bench_cpu").splitlines()
    assert table[0].split(" | ")[5:7] == ["plain loop", "ratio"]
    assert "**54,300** [50,000, 60,000] | 2,000 | 27.2 | 25x plain | yes | 100,000 | 54 %" in table[2]
    assert "| – | 2,000 | – | – | – |" in table[3]
    remark = " ".join(table[5:])
    assert "a chip, 2 cores, torch 2.x, commit abc" in remark
    assert "Not timed: jax vmap (not installed)." in remark
    assert "1 of the 1 targets in the table were met at commit abc." in remark


def test_workloads_without_a_row_are_called_not_measured(folder: Path) -> None:
    own = [one.label for one in WORKLOADS if one.device == "cpu"]
    rows = [{**ROW, "label": label} for label in own]
    machine = {"cpu": "a chip", "cores": 2, "torch": "2.x", "gpu": None}
    for num, words in ((len(own), ""), (len(own) - 2, f"Not measured: {own[-2]}, {own[-1]}.")):
        content = {"rows": rows[:num], "machine": machine, "commit": "abc"}
        (folder / "bench_cpu.json").write_text(json.dumps(content))
        text = " ".join(bench_block("bench_cpu").split())
        assert words in text
        assert ("Not measured" in text) == bool(words)


def test_rows_of_different_commits_tell_theirs_and_what_was_before(folder: Path) -> None:
    machine = {"cpu": "a chip", "cores": 2, "torch": "2.x", "gpu": "a card"}
    first, second = ({**ROW, "label": label, "commit": "def"} for label in ("mlp:8", "mlp:32"))
    before = {"commit": "abc", "ours": 1_000.0}
    earlier = [{**second, **before, "note": "slow"}, {**first, **before, "note": "on a Monday"}]
    content = {"rows": [first, second], "machine": machine, "earlier": earlier}
    (folder / "bench_h200.json").write_text(json.dumps(content))
    table = bench_block("bench_h200").splitlines()
    assert table[0].endswith("| of the floor | commit |")
    assert table[2].endswith("| 54 % | def |")
    assert table[-4] == "| workload | Isotherm | peers | then | commit |"
    assert table[-2] == "| mlp:8 | 1,000 | plain loop 2,000 | on a Monday | abc |"  # in the order of the table above
    assert table[-1] == "| mlp:32 | 1,000 | plain loop 2,000 | slow | abc |"


def test_an_extrapolation_is_called_so(folder: Path) -> None:
    machine = {"cpu": "a chip", "cores": 2, "torch": "2.x", "gpu": None}
    row = {**ROW, "workload": "quickstart", "remark": "extrapolated: from windows"}
    (folder / "bench_cpu.json").write_text(json.dumps({"rows": [row], "machine": machine, "commit": "abc"}))
    assert "quickstart: extrapolated: from windows." in bench_block("bench_cpu")


def test_rows_of_one_workload_tell_their_precision(folder: Path) -> None:
    machine = {"cpu": "a chip", "cores": 2, "torch": "2.x", "gpu": "a card"}
    rows = [{**ROW, "workload": "cnn", "label": label} for label in ("cnn:64", "cnn:64:tf32")]
    (folder / "bench_h200.json").write_text(json.dumps({"rows": rows, "machine": machine, "commit": "abc"}))
    assert [line.split(" | ")[0] for line in bench_block("bench_h200").splitlines()[2:4]] == ["| cnn", "| cnn, tf32"]


def test_a_peer_that_some_rows_have_says_why_others_have_not(folder: Path) -> None:
    machine = {"cpu": "a chip", "cores": 2, "torch": "2.x", "gpu": None}
    both = {**ROW, "peers": {"plain loop": 2_000.0, "jax vmap": 5.0}}
    rows = [both, {**ROW, "reasons": {"jax vmap": "too late"}}]
    (folder / "bench_cpu.json").write_text(json.dumps({"rows": rows, "machine": machine, "commit": "abc"}))
    found = bench_block("bench_cpu")
    assert "Dashes: too late." in found
    assert "Not timed" not in found
