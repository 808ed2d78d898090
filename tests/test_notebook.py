"""The notebook runs from top to bottom, and what a notebook would show of each cell can be made."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

import isotherm as it

NOTEBOOKS = sorted((Path(__file__).parent.parent / "examples").glob("*.ipynb"))


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]


def value_of(cell: dict[str, Any], names: dict[str, Any], name: str) -> Any:
    """Run a cell as a kernel does, and return the value of its last line if that is an expression."""
    tree = ast.parse("".join(cell["source"]), name)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), names)


def test_there_is_a_notebook_in_the_format_of_today() -> None:
    assert NOTEBOOKS
    for notebook in NOTEBOOKS:
        content = json.loads(notebook.read_text())
        assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
        assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_not_kept(notebook: Path) -> None:
    for cell in code_cells(notebook):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = [value_of(cell, names, f"{notebook.name}, cell {k}") for k, cell in enumerate(code_cells(notebook))]
    results, analysis = names["results"], names["analysis"]
    assert isinstance(results, it.Results)
    assert results.counts()["missing"] == results.counts()["failed"] == 0
    assert [grid.axes.batch_size for grid in results.optima()] == list(names["sweep"].batch_sizes)
    assert analysis.recommendations
    html = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
    assert sum("<table" in (text or "") for text in html) == 3  # results, analysis and the frame
    assert sum(type(value).__name__ == "Figure" and len(value.axes) == 3 for value in shown) == 1
