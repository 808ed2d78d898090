"""What is said of failed runs."""

from __future__ import annotations

import pytest

from isotherm.cli.common import EXIT_FAILED_RUNS
from isotherm.cli.show.study import failed_runs


def test_failed_runs_are_counted_and_their_reasons_named(capsys: pytest.CaptureFixture[str]) -> None:
    leaving = failed_runs(1, {"RuntimeError: no [luck]"})
    assert leaving.exit_code == EXIT_FAILED_RUNS
    assert "1 run failed; it is tried again next time: RuntimeError: no [luck]" in " ".join(
        capsys.readouterr().err.split()
    )
    failed_runs(2, {"b", "a"})
    assert "2 runs failed; they are tried again next time: a; b" in " ".join(capsys.readouterr().err.split())
