"""`isotherm run --track`: every run is told, of studies and of single cells; what cannot be told is refused at once."""

from __future__ import annotations

import importlib.machinery
from pathlib import Path

import pytest

from helpers_cli import invoke
from isotherm.running.store import Store
from isotherm.running.trackers.tracked_run import TrackedRun

TOLD: list[TrackedRun] = []


class Recorder:
    """Keeps what it is told."""

    def tell(self, run: TrackedRun) -> None:
        TOLD.append(run)

    def close(self) -> None:
        pass


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    TOLD.clear()
    place = "isotherm.running.trackers.tracking"
    monkeypatch.setattr(f"{place}.open_tracker", lambda name, *, study, folder: Recorder())
    found = importlib.machinery.ModuleSpec("mlflow", None, origin="somewhere")
    monkeypatch.setattr(f"{place}.importlib.util.find_spec", lambda name: found)


@pytest.mark.usefixtures("study_folder", "recorder")
def test_a_study_tells_every_run_once() -> None:
    code, output = invoke("run", "study.toml", "--store", "a.sqlite", "--workers", "1", "--track", "mlflow")
    assert code == 0, output
    with Store.read("a.sqlite") as store:
        keys = sorted(run.spec.key for run in store.runs())
    assert sorted(told.config["key"] for told in TOLD) == keys
    (study,) = {told.study for told in TOLD}
    assert study == next(iter(Store.read("a.sqlite").studies()))
    TOLD.clear()
    code, output = invoke("run", "study.toml", "--store", "a.sqlite", "--workers", "1", "--track", "mlflow")
    assert (code, TOLD) == (0, [])  # nothing was run, nothing is told


@pytest.mark.usefixtures("task_folder", "recorder")
def test_a_cell_tells_its_seeds_as_one_group() -> None:
    arguments = "--task taskcode:blobs --batch-size 16 --effective-learning-rate 0.5 --steps 4 --seeds 3"
    code, output = invoke("run", *arguments.split(), "--store", "a.sqlite", "--track", "mlflow", "--track", "mlflow")
    assert code == 0, output
    assert sorted(told.config["seed"] for told in TOLD) == [0, 1, 2]
    assert len({told.cell for told in TOLD}) == 1


@pytest.mark.usefixtures("study_folder")
@pytest.mark.parametrize(
    ("name", "words"), [("wand", "did you mean 'wandb'"), ("mlflow", 'pip install "isotherm[mlflow]"')]
)
def test_what_cannot_be_told_is_refused_before_anything_is_trained(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isotherm.running.trackers.tracking.importlib.util.find_spec", lambda name: None)
    code, output = invoke("run", "study.toml", "--store", "a.sqlite", "--track", name)
    assert code == 2
    assert words in output
    assert not Path("a.sqlite").exists()
