"""Progress by default: in a terminal and in a notebook, silence elsewhere."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

import cases
import isotherm as it
from isotherm.cli import shown_progress
from isotherm.core.views import view


def sweep() -> it.Sweep:
    return it.Sweep(
        task=cases.blobs_task(),
        batch_sizes=[8],
        effective_learning_rates=[0.1, 0.2],
        budget=it.Budget.steps(3),
        num_seeds=2,
        max_extensions=0,
        resolution="paper",
    )


class Handle:
    """What IPython returns for an output that can be replaced."""

    def __init__(self, shown: list[Any]) -> None:
        self.shown = shown

    def update(self, content: Any) -> None:
        self.shown.append(content)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A kernel that collects what is shown."""
    shown: list[Any] = []

    def display(content: Any, *, display_id: bool) -> Handle:
        assert display_id
        shown.append(content)
        return Handle(shown)

    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    return shown


def test_nothing_is_shown_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    it.run(sweep())
    with view("stages")() as on_stage:
        on_stage("checking")
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_runs_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shown_progress, "in_terminal", lambda: True)
    it.run(sweep())
    out, err = capsys.readouterr()
    assert out == ""
    assert "base grids: 0/4 runs, 0 diverged" in err
    it.run(sweep(), progress=False)
    assert capsys.readouterr() == ("", "")


def test_a_notebook_shows_runs_in_one_output(notebook: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert shown_progress.in_notebook()
    it.run(sweep())
    assert capsys.readouterr() == ("", "")
    assert repr(notebook[0]) == "base grids: 0/4 runs, 0 diverged"
    assert repr(notebook[-1]).startswith("base grids: 4/4 runs, 0 diverged")
    assert '<progress value="1.000" max="1">' in notebook[-1]._repr_html_()


def test_a_notebook_shows_the_stages_of_a_diagnosis_and_then_nothing(notebook: list[Any]) -> None:
    with view("stages")() as on_stage:
        on_stage("checking <the> task")
    assert "checking &lt;the&gt; task" in notebook[0]._repr_html_()
    assert repr(notebook[-1]) == ""


def test_an_ipython_in_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = types.SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert not shown_progress.in_notebook()
