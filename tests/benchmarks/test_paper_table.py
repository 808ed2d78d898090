"""Runs of a table of the paper: what is trained, and what is exported."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import paper_table
from helpers_tasks import small_built_in
from isotherm.core.records import Outcome, RunResult, RunSpec
from isotherm.running.store import Store, StoredRun
from pages.paper import TABLE_6, TABLE_7, PaperTable

COMMON: dict[str, Any] = {"task": "t", "data_id": "d", "model_id": "m", "momentum": 0.9, "l2": 0.0}
COMMON |= {"gamma": 2.0, "l2_scope": "all", "precision": "mixed", "num_evaluations": 10}


def stored(size: int, rate: float, seed: int, *, error: float = 1.0, num_steps: int = TABLE_7.num_steps) -> StoredRun:
    return StoredRun(
        spec=RunSpec(batch_size=size, effective_learning_rate=rate, seed=seed, num_steps=num_steps, **COMMON),
        result=RunResult(outcome=Outcome.FINISHED, test_metric=error),
        provenance={"device": "cpu"},
    )


def cell(row: paper_table.Row) -> tuple[int, float, int]:
    return row["spec"]["batch_size"], row["spec"]["effective_learning_rate"], row["spec"]["seed"]


@pytest.mark.parametrize("table", [TABLE_6, TABLE_7], ids=lambda table: table.name)
def test_the_papers_learning_rate_has_a_neighbour_on_each_side(table: PaperTable) -> None:
    assert list(table.rates) == list(table.published)
    for size, rates in table.rates.items():
        assert min(rates) < table.published[size].rate < max(rates)
        assert table.published[size].rate in rates


def test_runs_are_in_the_order_of_the_table() -> None:
    cells = [(256, 0.04, 0), (64, 0.08, 1), (64, 0.08, 0), (64, 0.04, 0)]
    rows = paper_table.merged([], paper_table.rows_of([stored(*c) for c in cells], commit="abc"))
    assert [cell(row) for row in rows] == sorted(cells)


def test_earlier_rows_stay_with_their_own_commit() -> None:
    earlier = paper_table.rows_of([stored(64, 0.04, 0), stored(1024, 0.04, 0)], commit="abc")
    rows = paper_table.merged(earlier, paper_table.rows_of([stored(256, 0.04, 0)], commit="def"))
    assert [(row["spec"]["batch_size"], row["commit"]) for row in rows] == [(64, "abc"), (256, "def"), (1024, "abc")]


def test_a_run_trained_again_replaces_its_row() -> None:
    earlier = paper_table.rows_of([stored(64, 0.04, 0)], commit="abc")
    (row,) = paper_table.merged(earlier, paper_table.rows_of([stored(64, 0.04, 0, error=2.0)], commit="def"))
    assert (row["commit"], row["result"]["test_metric"]) == ("def", 2.0)


def test_runs_that_failed_are_not_exported() -> None:
    failed = dataclasses.replace(stored(64, 0.04, 0), result=RunResult(outcome=Outcome.FAILED, error="no memory"))
    (row,) = paper_table.rows_of([failed, stored(64, 0.04, 1)], commit="abc")
    assert cell(row) == (64, 0.04, 1)


@pytest.mark.parametrize("odd", [stored(64, 0.04, 0, num_steps=10), stored(128, 0.04, 0), stored(64, 0.05, 0)])
def test_a_run_that_is_not_of_the_table_is_refused(odd: StoredRun) -> None:
    with pytest.raises(ValueError, match="is not of table7"):
        paper_table.exported(TABLE_7, paper_table.rows_of([odd], commit="abc"))


def test_export_adds_a_store_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pages.paper.ROOT", tmp_path)
    monkeypatch.setattr(paper_table, "ROOT", tmp_path)
    for size, commit in ((256, "abc"), (64, "def")):
        with Store.write(tmp_path / f"{size}.sqlite") as store:
            store.put([stored(size, 0.04, seed) for seed in range(2)])
        monkeypatch.setattr(sys, "argv", ["table7.py", "export", str(tmp_path / f"{size}.sqlite"), "--commit", commit])
        paper_table.main(TABLE_7)
    content = json.loads((tmp_path / "results" / "table7" / "table7.json").read_text())
    assert content["num_runs"] == 4
    assert content["command"] == "python benchmarks/table7.py run STORE 64 256 --data FOLDER"
    assert [row["commit"] for row in content["runs"]] == ["def", "def", "abc", "abc"]
    assert "2 runs exported, 4 in results/table7/table7.json" in capsys.readouterr().out


def test_a_study_has_the_rates_of_each_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    task = small_built_in("autoencoder_mnist")
    monkeypatch.setattr(paper_table.it, "get_task", lambda name, *, data: task)
    table = dataclasses.replace(TABLE_7, rates={6: (0.1, 0.2), 4: (0.3,)})
    plans = paper_table.study_of(table, [6, 4], data=None).plan().sweeps
    assert [list(plan.batch_sizes) for plan in plans] == [[6], [4]]
    specs = [
        plan.run_spec(grid, effective_learning_rate=rate, seed=seed)
        for plan, size in zip(plans, (6, 4), strict=True)
        for grid in plan.grids()
        for rate in table.rates[size]
        for seed in plan.seeds
    ]
    assert len(specs) == 21
    assert {spec.num_steps for spec in specs} == {156_250}
    assert {spec.precision for spec in specs} == {"mixed"}


def test_run_trains_what_the_store_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = small_built_in("autoencoder_mnist")
    monkeypatch.setattr(paper_table.it, "get_task", lambda name, *, data: task)
    table = dataclasses.replace(TABLE_7, rates={6: (0.01, 0.02), 4: (0.03,)}, num_seeds=2, num_kept=2)
    path = tmp_path / "store.sqlite"
    for size in ("4", "6"):
        rest = [str(path), size, "--data", "folder", "--device", "cpu", "--steps", "10"]
        monkeypatch.setattr(sys, "argv", ["table7.py", "run", *rest])
        paper_table.main(table)
    with Store.read(path) as store:
        rows = paper_table.rows_of(store.runs(), commit="abc")
    expected = [
        (size, rate, seed) for size, rates in ((4, (0.03,)), (6, (0.01, 0.02))) for rate in rates for seed in (0, 1)
    ]
    assert [cell(row) for row in rows] == expected


def test_what_the_result_file_has_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = small_built_in("autoencoder_mnist")
    monkeypatch.setattr(paper_table.it, "get_task", lambda name, *, data: task)
    monkeypatch.setattr("pages.paper.ROOT", tmp_path)
    monkeypatch.setattr(paper_table, "ROOT", tmp_path)
    table = dataclasses.replace(TABLE_7, rates={4: (0.02, 0.03)}, num_seeds=2, num_kept=2, num_steps=10)
    for name, commit, rest in (("a", "abc", ["--rates", "0.03", "--seeds", "1"]), ("b", "def", [])):
        path = str(tmp_path / f"{name}.sqlite")
        monkeypatch.setattr(sys, "argv", ["table7.py", "run", path, "4", "--data", "d", "--device", "cpu", *rest])
        paper_table.main(table)
        monkeypatch.setattr(sys, "argv", ["table7.py", "export", path, "--commit", commit])
        paper_table.main(table)
    content = json.loads((tmp_path / "results" / "table7" / "table7.json").read_text())
    assert "earlier version" not in capsys.readouterr().out
    trained_by = {cell(row): row["commit"] for row in content["runs"]}
    assert trained_by == {(4, 0.02, 0): "def", (4, 0.02, 1): "def", (4, 0.03, 0): "abc", (4, 0.03, 1): "def"}
