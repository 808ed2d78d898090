"""The example runs as its docstring says, and resumes."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples import own_model

from isotherm.studies.load import load_study

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_own_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = own_model.main(str(tmp_path / "spirals.sqlite"))
    assert results.counts()["missing"] == 0
    assert results.counts()["failed"] == 0
    optima = results.optima()
    assert [grid.axes.batch_size for grid in optima] == [8, 16, 32, 64]
    for grid in optima:
        test = grid.at_optimum("test_metric")
        assert test is not None
        assert test.mean > 0.9
    printed = capsys.readouterr().out
    assert "test accuracy" in printed
    assert "learning rate" in printed
    again = own_model.main(str(tmp_path / "spirals.sqlite"))
    assert again.by_key == results.by_key


def test_the_study_file_is_a_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    study = load_study("examples/study.toml")
    assert [sweep.name for sweep in study.sweeps] == ["constant_epochs"]
    assert study.sweeps[0].momenta == (0.0, 0.9)
    assert len(study.sweeps[0].plan().grids()) == 6
