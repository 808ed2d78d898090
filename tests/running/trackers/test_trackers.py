"""The trackers themselves, read back; each is skipped where it is not installed."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from helpers_protocol import diverged, failed, finished, make_spec
from isotherm.core.records import CurvePoint
from isotherm.running.store import StoredRun
from isotherm.running.trackers.tracked_run import tracked_run
from isotherm.running.trackers.tracking import TRACKERS, Tracking, open_tracker

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs
CURVE = tuple(CurvePoint(step=step, test_loss=2.0 / step, test_metric=step / 10) for step in (1, 2, 5))
RUNS = [
    *(
        StoredRun(
            spec=make_spec(seed=seed),
            result=dataclasses.replace(finished(0.5 + seed / 10, test_loss=0.25, train_loss=math.nan), curve=CURVE),
            provenance={"device": "cpu: x"},
        )
        for seed in (0, 1)
    ),
    StoredRun(spec=make_spec(seed=0, batch_size=64), result=diverged(), provenance={}),
    StoredRun(spec=make_spec(seed=0, batch_size=128), result=failed(), provenance={}),
]
CELLS = [tracked_run(run, study="mine").cell for run in RUNS]


def needs(name: str) -> None:
    pytest.importorskip(TRACKERS[name][0], reason=f'needs pip install "isotherm[{name}]"')


def tell(name: str, folder: Path) -> None:
    tracker = open_tracker(name, study="mine", folder=folder)
    for run in RUNS:
        tracker.tell(tracked_run(run, study="mine"))
    tracker.close()


def test_tensorboard(tmp_path: Path) -> None:
    needs("tensorboard")
    tell("tensorboard", tmp_path)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(tmp_path / "tensorboard" / "mine" / CELLS[0] / "seed1"))
    found.Reload()
    assert [(e.step, round(e.value, 4)) for e in found.Scalars("curve/test_metric")] == [(1, 0.1), (2, 0.2), (5, 0.5)]
    (last,) = found.Scalars("final/test_metric")
    assert (last.step, round(last.value, 4)) == (RUNS[1].spec.num_steps, 0.6)
    assert "final/train_loss" not in found.Tags()["scalars"]
    text = found.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert '"seed": 1' in text
    assert sorted(p.name for p in (tmp_path / "tensorboard" / "mine").iterdir()) == sorted(set(CELLS))


def test_mlflow_in_a_store_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tell("mlflow", tmp_path)
    tell("mlflow", tmp_path)  # the experiment is there already
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("mine")
    found = client.search_runs([experiment.experiment_id], filter_string=f"tags.`group` = '{CELLS[0]}'")
    assert len(found) == 4
    one = next(r for r in found if r.data.params["seed"] == "1")
    assert one.data.metrics["final/test_metric"] == pytest.approx(0.6)
    assert "final/train_loss" not in one.data.metrics
    history = client.get_metric_history(one.info.run_id, "curve/test_metric")
    assert sorted((m.step, m.value) for m in history) == [(1, 0.1), (2, 0.2), (5, 0.5)]
    (lost, _) = client.search_runs([experiment.experiment_id], filter_string="tags.outcome = 'diverged'")
    assert lost.info.status == "FINISHED"
    (broken, _) = client.search_runs([experiment.experiment_id], filter_string="tags.outcome = 'failed'")
    assert (broken.info.status, broken.data.tags["error"]) == ("FAILED", "RuntimeError: by hand")


def test_wandb_offline(tmp_path: Path) -> None:
    needs("wandb")
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(tmp_path)}
    code = "import test_trackers, sys, pathlib; test_trackers.tell('wandb', pathlib.Path(sys.argv[1]))"
    path = os.pathsep.join(
        [str(Path(__file__).parent), str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")]
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    subprocess.run(command, check=True, timeout=300, env={**environment, "PYTHONPATH": path})
    files = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == len(RUNS)
    content = b"".join(file.read_bytes() for file in files)
    for words in (CELLS[0].encode(), b"curve/test_metric", b"final/test_metric", b"effective_learning_rate"):
        assert words in content


def test_trackio_on_this_machine(tmp_path: Path) -> None:
    needs("trackio")
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio"), "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    code = "import test_trackers, sys, pathlib; test_trackers.tell('trackio', pathlib.Path(sys.argv[1]))"
    path = os.pathsep.join(
        [str(Path(__file__).parent), str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")]
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    subprocess.run(command, check=True, timeout=300, env={**environment, "PYTHONPATH": path})
    (database,) = (tmp_path / "trackio").glob("mine*.db")
    with sqlite3.connect(database) as connection:
        rows = connection.execute("SELECT run_name, step, metrics FROM metrics ORDER BY run_name, step").fetchall()
    told = [(step, json.loads(metrics)) for name, step, metrics in rows if name == f"{CELLS[0]}-seed1"]
    assert [(step, metrics["curve/test_metric"]) for step, metrics in told[:3]] == [(1, 0.1), (2, 0.2), (5, 0.5)]
    assert told[-1][1]["final/test_metric"] == pytest.approx(0.6)


@pytest.mark.parametrize("name", list(TRACKERS))
def test_what_lies_on_disk_lies_beside_the_store(name: str, tmp_path: Path) -> None:
    needs(name)
    with Tracking.to(name, study="mine", store=tmp_path / "a.sqlite"):
        pass
    assert not list(tmp_path.iterdir())  # nothing is opened before there is a run
