"""A cell as tables, sentences and JSON, in any terminal."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console

from helpers_cli import small_cell
from isotherm.cli.cell import CellResults, run_cell
from isotherm.cli.show.cell import cell_summary, cell_tables, run_sentences
from isotherm.core.json import json_text
from isotherm.core.records import Outcome, RunResult


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> CellResults:
    return run_cell(small_cell(), tmp_path_factory.mktemp("cell") / "small.sqlite")


def shown(results: CellResults, width: int) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=width)
    for table in cell_tables(results, width=width):
        console.print(table)
    return stream.getvalue().splitlines()


def with_result(results: CellResults, place: int, **fields: object) -> CellResults:
    runs = list(results.runs)
    runs[place] = dataclasses.replace(runs[place], result=RunResult(**fields))  # type: ignore[arg-type]
    return dataclasses.replace(results, runs=tuple(runs))


@pytest.mark.parametrize(("width", "num_tables"), [(60, 2), (80, 2), (120, 1)])
def test_tables_fit_the_terminal_and_cut_nothing(results: CellResults, width: int, num_tables: int) -> None:
    lines = shown(results, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "…" not in text
    assert sum("seed" in line for line in lines) == num_tables
    assert sum(" mean " in line for line in lines) == num_tables
    for words in ("test loss", "penalty", "loss + L2", "clipped %", "averages"):
        assert words in text


def test_a_diverged_run_is_left_out_of_the_mean_and_named(results: CellResults) -> None:
    changed = with_result(results, 1, outcome=Outcome.DIVERGED, divergence_step=1)
    text = "\n".join(shown(changed, 120))
    assert "mean and sd of the 2 of 3 runs that finished" in text
    assert "–" in text
    assert run_sentences(changed) == [
        "seed 1 diverged: its loss was not finite after 1 update; try a smaller learning rate"
    ]
    at_end = with_result(results, 1, outcome=Outcome.DIVERGED, divergence_step=results.runs[1].spec.num_steps)
    assert run_sentences(at_end) == [
        "seed 1 diverged: its final loss is not finite, or far above that of the untrained network; "
        "try a smaller learning rate"
    ]
    content = cell_summary(changed, store=Path("small.sqlite"), seconds=1.0)
    assert content["counts"] == {"finished": 2, "diverged": 1, "failed": 0}
    losses = [changed.runs[place].result.quantity("test_loss") for place in (0, 2)]
    assert content["summary"]["test_loss"]["mean"] == pytest.approx(sum(losses) / 2)


def test_one_run_has_no_mean_and_none_no_table(results: CellResults) -> None:
    alone = dataclasses.replace(results, runs=results.runs[:1])
    assert not any("mean" in line for line in shown(alone, 120))
    nothing = with_result(alone, 0, outcome=Outcome.FAILED, error="RuntimeError: no")
    assert cell_tables(nothing, width=80) == []
    assert run_sentences(nothing) == ["seed 0 failed: RuntimeError: no"]


def test_json_has_no_infinities(results: CellResults) -> None:
    changed = with_result(results, 0, outcome=Outcome.FINISHED, test_metric=float("inf"), test_loss=1e4)
    text = json_text(cell_summary(changed, store=Path("small.sqlite"), seconds=1.0))
    assert '"test_metric": null' in text
