"""Plans and results made by hand, a tiny task, and a recorder of progress: for the protocol, store and runner tests."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from isotherm.core.budget import Budget
from isotherm.core.rates import powers_of_two
from isotherm.core.records import CurvePoint, Direction, Outcome, RunResult, RunSpec
from isotherm.core.run_schedule import NUM_DROPS
from isotherm.core.schedule import Schedule
from isotherm.running.store import StoredRun
from isotherm.sweep.plan import GridAxes, SweepPlan
from isotherm.sweep.protocol import Cell, Grid
from isotherm.sweep.rounds import Round
from isotherm.sweep.sweep import Sweep
from isotherm.tasks.task import Task

NAN = math.nan
NUM_POINTS = 32


# -- results and grids by hand ---------------------------------------------------------------------


def finished(metric: float = 0.5, **quantities: Any) -> RunResult:
    """Return a finished run of this test metric, without an L2 penalty."""
    return RunResult(outcome=Outcome.FINISHED, test_metric=metric, **{"l2_penalty": 0.0, **quantities})


def diverged() -> RunResult:
    return RunResult(outcome=Outcome.DIVERGED, divergence_step=3)


def failed() -> RunResult:
    return RunResult(outcome=Outcome.FAILED, error="RuntimeError: by hand")


def make_cell(rate: float, results: Sequence[RunResult | float | None], *, num_kept: int) -> Cell:
    """Return a cell; a number stands for a finished run of this test metric."""
    made = tuple(finished(r) if isinstance(r, int | float) else r for r in results)
    return Cell(effective_learning_rate=rate, results=made, num_kept=num_kept)


def make_grid(
    rows: dict[float, Sequence[RunResult | float | None]],
    *,
    num_kept: int,
    objective: str = "test_metric",
    direction: Direction = Direction.MAXIMISE,
    momentum: float = 0.0,
) -> Grid:
    """Return a grid from {learning rate: results of its seeds}."""
    return Grid(
        axes=GridAxes(batch_size=16, budget=Budget.steps(10), momentum=momentum),
        num_steps=10,
        cells=tuple(make_cell(rate, results, num_kept=num_kept) for rate, results in rows.items()),
        objective=objective,
        direction=direction,
    )


def make_plan(**changes: Any) -> SweepPlan:
    """Return a plan without any task behind it: tuned on test accuracy, two seeds, powers of two from 1/4 to 4."""
    batch_sizes = changes.pop("batch_sizes", (16,))
    rates = changes.pop("rates", powers_of_two(-2, 2))
    fields: dict[str, Any] = {
        "name": "plan",
        "task": "by hand",
        "data_id": "data",
        "model_id": "model",
        "num_train": 64,
        "metric": "accuracy",
        "metric_direction": Direction.MAXIMISE,
        "metric_bounds": (0.0, 1.0),
        "batch_sizes": tuple(batch_sizes),
        "learning_rates": tuple(tuple(rates) for _ in batch_sizes),
        "budgets": (Budget.steps(10),),
        "momenta": (0.0,),
        "l2": 0.0,
        "l2_scope": "weights",
        "schedule": Schedule(),
        "seeds": (0, 1),
        "num_kept": 2,
        "tune_on": "test",
        "tune_quantity": "metric",
        "num_evaluations": 0,
        "max_extensions": 3,
        "extend_for": "tuned",
        "precision": "float32",
    }
    return SweepPlan(**{**fields, **changes})


def fill(
    results: dict[str, RunResult], specs: Iterable[RunSpec], landscape: Callable[[RunSpec], RunResult | float]
) -> None:
    """Add what the landscape gives for every spec; a number stands for a finished run of this test metric."""
    for spec in specs:
        value = landscape(spec)
        results[spec.key] = finished(value) if isinstance(value, int | float) else value


def rates_of(specs: Iterable[RunSpec]) -> list[float]:
    """Return the learning rates of the runs, rising, each once."""
    return sorted({spec.effective_learning_rate for spec in specs})


def log_rates(spec: RunSpec) -> tuple[float, float]:
    """Return the learning rates at which a run starts and ends, as powers of two."""
    start = math.log2(spec.effective_learning_rate)
    return round(start, 9), round(start - NUM_DROPS * math.log2(spec.gamma), 9)


# -- runs for a store ------------------------------------------------------------------------------


def make_spec(**changes: Any) -> RunSpec:
    fields: dict[str, Any] = {
        "task": "by hand",
        "data_id": "data",
        "model_id": "model",
        "batch_size": 16,
        "num_steps": 10,
        "effective_learning_rate": 0.5,
        "momentum": 0.9,
        "gamma": 2.0,
        "l2": 1e-4,
        "l2_scope": "weights",
        "precision": "float32",
        "num_evaluations": 2,
        "seed": 0,
    }
    return RunSpec(**{**fields, **changes})


def full_result() -> RunResult:
    """Return a finished run with a value, unlike every other, in each field that a finished run has."""
    return RunResult(
        outcome=Outcome.FINISHED,
        train_loss_running=0.1,
        last_batch_loss=1 / 3,
        train_loss=2e-17,
        train_metric=0.95,
        l2_penalty=0.03125,
        weight_norm_squared=1e300,
        validation_loss=0.7,
        validation_metric=0.8,
        test_loss=math.pi,
        test_metric=0.9,
        test_metric_running=0.85,
        clipped_fraction=0.125,
        curve=(CurvePoint(step=5, test_loss=0.3, test_metric=0.6), CurvePoint(step=10, test_loss=0.2, test_metric=0.7)),
    )


def stored(result: RunResult | None = None, **changes: Any) -> StoredRun:
    return StoredRun(spec=make_spec(**changes), result=result or full_result(), provenance={"device": "by hand"})


# -- a task that trains in milliseconds ------------------------------------------------------------


def linear() -> nn.Module:
    return nn.Linear(2, 2)


def blobs(num: int = NUM_POINTS, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two overlapping Gaussian blobs in the plane, labels 0 and 1."""
    labels = torch.arange(num) % 2
    noise = torch.randn(num, 2, generator=torch.Generator().manual_seed(seed))
    return noise + (2 * labels - 1).unsqueeze(1), labels


def blobs_task(**changes: Any) -> Task:
    fields: dict[str, Any] = {"name": "blobs", "model": linear, "train": blobs(), "test": blobs(seed=1)}
    return Task(**{**fields, **changes})


def tiny_sweep(**changes: Any) -> Sweep:
    """Return a sweep of 3 learning rates and 2 seeds, 10 updates each, that never extends or refines unless told to."""
    fields: dict[str, Any] = {
        "batch_sizes": [8],
        "effective_learning_rates": powers_of_two(-3, -1),
        "budget": Budget.steps(10),
        "num_seeds": 2,
        "tune_on": "test",
        "tune_quantity": "loss",
        "num_evaluations": 2,
        "max_extensions": 0,
        "resolution": "paper",
        "precision": "float64",
    }
    fields |= changes
    return Sweep(**{"task": blobs_task(), **fields})


class Recorder:
    """Keeps what it is told, and can interrupt at the n-th fleet."""

    def __init__(self, *, interrupt_after: int | None = None) -> None:
        self.rounds: list[tuple[int, list[RunSpec]]] = []
        self.fleets: list[list[RunSpec]] = []
        self.done: list[RunResult] = []
        self.looks: list[tuple[RunSpec, CurvePoint]] = []
        self.notes: list[str] = []
        self.work = 0.0
        self.num_fleets = 0
        self._interrupt_after = interrupt_after

    @property
    def specs(self) -> list[RunSpec]:
        return [spec for _, specs in self.rounds for spec in specs]

    def round_started(self, round_: Round) -> None:
        self.rounds.append((round_.number, list(round_.specs)))

    def advanced(self, work: float) -> None:
        self.work += work

    def evaluated(self, spec: RunSpec, point: CurvePoint) -> None:
        self.looks.append((spec, point))

    def noted(self, sentence: str) -> None:
        self.notes.append(sentence)

    def fleet_started(self, specs: Sequence[RunSpec]) -> None:
        self.fleets.append(list(specs))

    def runs_done(self, runs: Sequence[StoredRun]) -> None:
        self.done += [run.result for run in runs]
        self.num_fleets += 1
        if self.num_fleets == self._interrupt_after:
            raise KeyboardInterrupt


def assert_same_results(ours: dict[str, RunResult], theirs: dict[str, RunResult], *, tolerance: float) -> None:
    """Fail unless both hold the same runs with the same numbers."""
    assert ours.keys() == theirs.keys()
    for key, result in ours.items():
        other = theirs[key]
        assert result.outcome is other.outcome
        assert [p.step for p in result.curve] == [p.step for p in other.curve]
        for a, b in zip(_numbers(result), _numbers(other), strict=True):
            assert a == b or abs(a - b) <= tolerance * max(1.0, abs(a)), (key, a, b)


def alone_of_torchrun() -> dict[str, str]:
    """Return the environment of the one process that torchrun has started."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}


def _numbers(result: RunResult) -> list[float]:
    content = result.to_json()
    curve = [value for point in content.pop("curve") for value in point.values()]
    return [v for v in content.values() if isinstance(v, int | float)] + curve
