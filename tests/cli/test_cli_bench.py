"""`isotherm bench` from the command line: one tiny real run, and what every kind of bad input gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from isotherm.bench.contenders import OURS, PEERS, PLAIN
from isotherm.bench.start import STARTS
from isotherm.bench.workloads import WORKLOADS
from isotherm.cli.main import app
from isotherm.cli.show.bench import _ratio_text

runner = CliRunner()
ROW_KEYS = {
    *("workload", "device", "batch_size", "num_runs", "ours", "unit", "peers", "ratio", "floor", "fraction_of_floor"),
    *("lowest", "highest", "repeats", "remark", "reasons", "target", "bytes_per_unit", "flop_per_unit"),
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def invoke(*arguments: str) -> tuple[int, str]:
    result = runner.invoke(app, ["bench", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def refused(*arguments: str) -> str:
    code, text = invoke(*arguments)
    assert code == 2
    return " ".join(text.split())


@pytest.mark.slow
def test_a_tiny_real_run() -> None:
    chosen = ("--workload", "mlp_mnist1d:8", "--contender", "plain-loop")
    code, text = invoke(*chosen, "--repeats", "1", "--seconds", "0.05", "--json", "bench.json")
    assert code == 0
    assert "1 of 1: mlp_mnist1d:8" in text
    assert "Written to bench.json" in text
    assert max(map(len, text.splitlines())) <= 80
    content = json.loads(Path("bench.json").read_text())
    assert set(content) == {"rows", "machine", "commit", "ceilings"}
    assert set(content["machine"]) == {"cpu", "cores", "torch", "gpu"}
    (row,) = content["rows"]
    assert set(row) >= ROW_KEYS
    assert row["reasons"].get(OURS) is None
    assert (row["workload"], row["device"], row["batch_size"], row["num_runs"]) == ("mlp_mnist1d", "cpu", 8, 55)
    assert (row["unit"], row["repeats"], row["flop_per_unit"]) == ("run-steps/s", 1, 656_000)
    assert 0 < row["lowest"] <= row["ours"] <= row["highest"]
    assert row["ratio"] == pytest.approx(row["ours"] / row["peers"][PLAIN])
    assert row["fraction_of_floor"] == pytest.approx(row["ours"] / row["floor"])
    assert set(row["peers"]) == set(PEERS)
    assert {peer: row["reasons"][peer] for peer in PEERS if peer != PLAIN} == dict.fromkeys(
        (peer for peer in PEERS if peer != PLAIN), "not asked for"
    )


def test_ratios_near_one_show_on_which_side_they_are() -> None:
    assert [_ratio_text(ratio) for ratio in (0.996, 1.04, 25.31, None)] == ["0.99x", "1.04x", "25.3x", "–"]


def test_the_list_of_works_and_peers() -> None:
    code, text = invoke("--list", "--json", "list.json")
    assert code == 0
    content = json.loads(Path("list.json").read_text())
    assert [workload["label"] for workload in content["workloads"]] == [workload.label for workload in WORKLOADS]
    assert list(content["peers"]) == list(PEERS)
    assert [start["label"] for start in content["starts"]] == [start.label for start in STARTS]
    for name in (*PEERS, "mlp_mnist1d:8", "25x plain", "mlp_mnist1d:start", "15 s, then 5 s"):
        assert name in text


def test_starts_are_timed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isotherm.bench.start._trial", lambda workload: [4.25, 0.5, 3.0])
    code, text = invoke("--work", "mlp_mnist1d:start", "--repeats", "2", "--json", "starts.json")
    assert code == 0
    content = json.loads(Path("starts.json").read_text())
    assert content["rows"] == []
    assert [entry["seconds"] for entry in content["starts"][0]["starts"]] == [4.25, 0.5, 3.0]
    assert "0.5 [0.5, 0.5]" in text
    assert "10 runs, 2 trials" in text


def test_names_that_are_not_known() -> None:
    assert "unknown workload 'mlp_mnist1' on cpu; did you mean 'mlp_mnist1d'" in refused("--workload", "mlp_mnist1")
    assert "unknown contender 'plain lop'; did you mean 'plain loop'" in refused("--contender", "plain lop")
    assert "'lstm_ptb' is not timed on cpu; use --device cuda" in refused("--workload", "lstm_ptb")
    assert "'tpu' cannot be timed" in refused("--device", "tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu() -> None:
    assert "PyTorch sees no GPU here" in refused("--device", "cuda")


def test_numbers_that_make_no_window() -> None:
    assert "--repeats must be at least 1, not 0" in refused("--repeats", "0")
    assert "--seconds must be a positive number of seconds, not 0" in refused("--seconds", "0")


def test_a_json_path_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("measured before the path was checked")

    monkeypatch.setattr("isotherm.bench.measure.measure", never)
    assert "its folder does not exist" in refused("--json", "nowhere/bench.json")
    assert "it is a folder" in refused("--json", ".")
    if Path("/proc/self").exists():
        assert "cannot be written to" in refused("--json", "/proc/bench.json")


def test_a_row_that_failed_and_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {
        **dict.fromkeys(ROW_KEYS),
        **{"workload": "mlp_mnist1d", "label": "mlp_mnist1d:8", "num_runs": 55, "unit": "run-steps/s"},
        **{"peers": dict.fromkeys(PEERS), "reasons": {OURS: "one run [at a time]"}},
    }

    def interrupted(workloads: Any, settings: Any, *, planned: Any, on_workload: Any, on_row: Any) -> Any:
        on_workload(workloads[0])
        on_row({"rows": [row]})
        raise KeyboardInterrupt

    monkeypatch.setattr("isotherm.bench.measure.measure", interrupted)
    code, text = invoke("--json", "bench.json")
    assert code == 130
    assert "mlp_mnist1d:8 could not be timed: one run [at a time]" in " ".join(text.split())
    assert "bench.json has the rows above" in text
    assert len(json.loads(Path("bench.json").read_text())["rows"]) == 1
