"""Runs are told to a tracker beside the training, and a tracker that fails changes nothing."""

from __future__ import annotations

import logging
import math
import threading
import time
from pathlib import Path

import pytest

from helpers_protocol import diverged, failed, finished, make_spec, tiny_sweep
from isotherm.core.records import CurvePoint, Outcome, RunResult
from isotherm.errors import UserError
from isotherm.running.runner import run
from isotherm.running.store import StoredRun
from isotherm.running.trackers.tracked_run import TrackedRun, points_of, tracked_run
from isotherm.running.trackers.tracking import TRACKERS, Tracking, check_tracker


class Recorder:
    """A tracker that keeps what it is told."""

    def __init__(self) -> None:
        self.runs: list[TrackedRun] = []
        self.is_closed = False
        self.thread = threading.current_thread()

    def tell(self, run: TrackedRun) -> None:
        self.runs.append(run)

    def close(self) -> None:
        self.is_closed = True


class Breaks(Recorder):
    def tell(self, run: TrackedRun) -> None:
        super().tell(run)
        if len(self.runs) == 2:
            raise ConnectionError("no route to the tracker")


def stored(result: RunResult, *, seed: int = 0, **changes: object) -> StoredRun:
    return StoredRun(spec=make_spec(seed=seed, **changes), result=result, provenance={"device": "cpu: x"})


def test_seeds_of_a_cell_share_a_group_and_other_settings_do_not() -> None:
    first, second = (tracked_run(stored(finished(), seed=seed), study="s") for seed in (0, 1))
    assert first.cell == second.cell
    assert first.name != second.name
    assert (first.config["seed"], second.config["seed"]) == (0, 1)
    others = [stored(finished(), l2=0.5), stored(finished(), batch_size=17), stored(finished(), num_steps=99)]
    assert len({first.cell, *(tracked_run(other, study="s").cell for other in others)}) == 4


def test_a_run_has_its_setting_its_curve_and_its_end() -> None:
    curve = (
        CurvePoint(step=1, test_loss=2.0, test_metric=math.nan),
        CurvePoint(step=2, test_loss=math.inf, test_metric=0.5),
    )
    result = finished(0.75, test_loss=0.5, train_loss=math.nan, curve=curve)
    told = tracked_run(stored(result), study="s")
    assert told.config["temperature"] == told.config["effective_learning_rate"] / told.config["batch_size"]
    assert told.config["trained_with.device"] == "cpu: x"
    assert told.final == {"test_metric": 0.75, "test_loss": 0.5}
    assert points_of(told) == [
        (1, {"curve/test_loss": 2.0}),
        (2, {"curve/test_metric": 0.5}),
        (told.num_steps, {"final/test_metric": 0.75, "final/test_loss": 0.5}),
    ]


def test_runs_that_diverged_or_failed_say_so() -> None:
    lost, broken = (tracked_run(stored(result), study="s") for result in (diverged(), failed()))
    assert (lost.outcome, lost.final, lost.error) == (Outcome.DIVERGED, {}, None)
    assert broken.error == "RuntimeError: by hand"


def test_a_sweep_tells_every_run_in_a_thread_of_its_own(tmp_path: Path) -> None:
    made: list[Recorder] = []

    def open_() -> Recorder:
        made.append(Recorder())
        return made[0]

    with Tracking("recorder", study="s", open_=open_) as tracking:
        results = run(tiny_sweep(), store=tmp_path / "a.sqlite", progress=tracking)
    (recorder,) = made
    assert {told.config["key"] for told in recorder.runs} == set(results.runs())
    assert len(recorder.runs) == len(results.runs())
    assert recorder.is_closed
    assert recorder.thread is not threading.main_thread()


def test_a_tracker_that_fails_is_given_up_after_one_sentence_and_the_sweep_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "isotherm"), Tracking("breaks", study="s", open_=Breaks) as tracking:
        results = run(tiny_sweep(), store=tmp_path / "a.sqlite", progress=tracking)
    assert results.counts()["missing"] == 0
    (line,) = [record.getMessage() for record in caplog.records if "tracker" in record.getMessage()]
    assert line.startswith("the tracker breaks is given up after 1 run: ConnectionError: no route to the tracker")


def test_one_that_cannot_be_opened_or_exits_is_given_up_too(caplog: pytest.LogCaptureFixture) -> None:
    def leaves() -> Recorder:
        raise SystemExit(1)

    with caplog.at_level(logging.WARNING, "isotherm"), Tracking("leaves", study="s", open_=leaves) as tracking:
        tracking.runs_done([stored(finished())])
    assert "given up after 0 runs: SystemExit" in caplog.text
    tracking.runs_done([stored(finished())])  # nobody listens, nobody minds


def test_one_that_hangs_is_not_waited_for_forever(caplog: pytest.LogCaptureFixture) -> None:
    free = threading.Event()

    class Hangs(Recorder):
        def tell(self, run: TrackedRun) -> None:
            free.wait(30)

    start = time.monotonic()
    hanging = Tracking("hangs", study="s", open_=Hangs, patience=0.2)
    with caplog.at_level(logging.WARNING, "isotherm"), hanging as tracking:
        tracking.runs_done([stored(finished(), seed=seed) for seed in range(3)])
    assert time.monotonic() - start < 10
    assert "does not answer" in caplog.text
    free.set()


def test_one_that_is_slow_but_makes_headway_is_waited_for() -> None:
    recorder = Recorder()

    class Slow(Recorder):
        def tell(self, run: TrackedRun) -> None:
            time.sleep(0.15)
            recorder.tell(run)

    with Tracking("slow", study="s", open_=Slow, patience=0.6) as tracking:
        tracking.runs_done([stored(finished(), seed=seed) for seed in range(6)])
    assert len(recorder.runs) == 6


def test_without_runs_nothing_is_opened() -> None:
    def never() -> Recorder:
        raise AssertionError

    with Tracking("never", study="s", open_=never):
        pass


def test_a_tracker_that_is_not_known_or_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="there is no tracker 'wand'; did you mean 'wandb'"):
        check_tracker("wand")
    monkeypatch.setattr("isotherm.running.trackers.tracking.importlib.util.find_spec", lambda name: None)
    for name in TRACKERS:
        with pytest.raises(UserError, match=rf'pip install "isotherm\[{name}\]"'):
            check_tracker(name)
