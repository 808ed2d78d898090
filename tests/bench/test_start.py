"""Time to the first update: which fleets are started, in what order, and what is told of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from isotherm.bench import start
from isotherm.bench.start import STARTS, StartWorkload, chosen_starts, first_updates, measure_start
from isotherm.engine.stack.plan import UPDATES_WORTH_COMPILING
from isotherm.errors import UserError
from isotherm.tasks.builtin import TASKS

WORKLOAD = StartWorkload(task="mlp_mnist1d", device="cpu", batch_sizes=(4, 8), num_runs=2, rate=0.1)


def test_every_start_is_of_a_known_task_at_two_batch_sizes_and_too_short_to_be_compiled() -> None:
    assert len({workload.label for workload in STARTS}) == len(STARTS)
    for workload in STARTS:
        assert workload.task in TASKS
        assert len(set(workload.batch_sizes)) == 2
    assert start.NUM_STEPS < UPDATES_WORTH_COMPILING


def test_starts_are_told_from_speeds() -> None:
    starts, others = chosen_starts(["lstm_ptb", "lstm_ptb:start", "lstm_ptb:64"], device="cuda")
    assert [one.label for one in starts] == ["lstm_ptb:start"]
    assert others == ["lstm_ptb", "lstm_ptb:64"]
    assert chosen_starts([], device="cpu") == ([], [])


def test_unknown_starts_are_refused() -> None:
    with pytest.raises(UserError, match="'lstm_ptb:start' is not timed on cpu; use --device cuda"):
        chosen_starts(["lstm_ptb:start"], device="cpu")
    with pytest.raises(UserError, match="known on cpu: mlp_mnist1d:start"):
        chosen_starts(["mlp:start"], device="cpu")


def test_a_fleet_stops_after_its_first_update() -> None:
    assert all(seconds > 0 for seconds in first_updates(WORKLOAD, [4, 8]))


def test_a_trial_is_two_processes_that_share_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[int], dict[str, str]]] = []

    def run(command: Sequence[str], *, env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[:3] == [sys.executable, "-m", "isotherm.bench.start"]
        sizes = json.loads(command[3])["batch_sizes"]
        asked.append((sizes, {name: env[name] for name in start._CACHES}))
        return subprocess.CompletedProcess(command, 0, stdout=json.dumps([float(len(asked))] * len(sizes)), stderr="")

    monkeypatch.setattr(start.subprocess, "run", run)
    row = measure_start(WORKLOAD, repeats=2)
    assert [sizes for sizes, _ in asked] == [[4, 8], [4], [4, 8], [4]]
    assert asked[0][1] == asked[1][1] != asked[2][1] == asked[3][1]
    assert [(e["batch_size"], e["seconds"], e["lowest"], e["highest"]) for e in row["starts"]] == [
        (4, 2.0, 1.0, 3.0),
        (8, 2.0, 1.0, 3.0),
        (4, 3.0, 2.0, 4.0),
    ]
    assert [entry["reached"] for entry in row["starts"]] == [None] * 3  # targets are for GPUs


def test_a_start_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr="Traceback\nRuntimeError: no kernels")
    monkeypatch.setattr(start.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(UserError, match="could not be timed: RuntimeError: no kernels"):
        measure_start(WORKLOAD, repeats=1)


def test_the_targets_of_a_gpu() -> None:
    assert start._entry("nothing", 64, [16.0, 14.0, 15.0], 15.0)["reached"]
    assert not start._entry("nothing", 64, [16.0], 15.0)["reached"]
