"""What is said of results and of failed runs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from helpers_report import make_plan, make_study
from isotherm.analysis.analysis import analyse
from isotherm.cli.common import EXIT_FAILED_RUNS
from isotherm.cli.show.study import failed_runs, print_results


def test_failed_runs_are_counted_and_their_reasons_named(capsys: pytest.CaptureFixture[str]) -> None:
    leaving = failed_runs(1, {"RuntimeError: no [luck]"})
    assert leaving.exit_code == EXIT_FAILED_RUNS
    assert "1 run failed; it is tried again next time: RuntimeError: no [luck]" in " ".join(
        capsys.readouterr().err.split()
    )
    failed_runs(2, {"b", "a"})
    assert "2 runs failed; they are tried again next time: a; b" in " ".join(capsys.readouterr().err.split())


def test_the_answer_comes_first() -> None:
    analysis = analyse(make_study(make_plan()))
    console = Console(file=io.StringIO(), width=120)
    print_results(analysis, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    answer, rest = text.split("What to use")[1].split("constant_steps, ", 1)
    assert not answer.strip()
    assert "not determined" in rest.split("test accuracy", 1)[0]
    (advice,) = analysis.recommendations
    assert advice.words in " ".join(text.split())
    assert f"\n\n{chr(10).join(advice.code)}\n" in text  # not indented and not broken: as they are pasted
    assert advice.code[-1] == "# scheduler.step() after every update"
