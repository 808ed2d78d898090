"""Fleets to be timed, trained as `isotherm run` trains them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from isotherm.bench.tasks import timed_task
from isotherm.bench.workloads import MOMENTUM, Workload
from isotherm.core.records import Precision, RunSpec
from isotherm.engine.placed_task import place_task
from isotherm.running.executors.choice import default_workers
from isotherm.running.executors.local import LocalExecutor
from isotherm.running.timing import FleetTimer, Turn, pool_speed
from isotherm.tasks.task import Task

# Enough that a fleet is compiled where that pays, and does not finish while it is timed.
NUM_STEPS = 10_000_000


class _Refusal(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError(record.getMessage())


@contextlib.contextmanager
def refusing_warnings() -> Iterator[None]:
    """Raise the engine's warnings as errors within this context: they mean that something else would be timed."""
    logger, refusal = logging.getLogger("isotherm"), _Refusal(logging.WARNING)
    logger.addHandler(refusal)
    try:
        yield
    finally:
        logger.removeHandler(refusal)


def spec_of(
    task: Task,
    *,
    batch_size: int,
    num_steps: int,
    rate: float,
    seed: int,
    precision: Precision,
    l2: float | None = None,
) -> RunSpec:
    """Return a run of a task on synthetic data."""
    return RunSpec(
        task=task.name,
        data_id="made",
        model_id="made",
        batch_size=batch_size,
        num_steps=num_steps,
        effective_learning_rate=rate,
        momentum=MOMENTUM,
        gamma=2.0,
        l2=task.l2 if l2 is None else l2,
        l2_scope=task.l2_scope,
        clip_norm=task.clip_norm,
        precision=precision,
        num_evaluations=1,
        seed=seed,
    )


def specs_of(workload: Workload, task: Task) -> list[RunSpec]:
    """Return the runs of a workload."""
    return [
        spec_of(
            task,
            batch_size=workload.batch_size,
            num_steps=NUM_STEPS,
            rate=workload.rate * 2.0**-place,
            seed=seed,
            precision=workload.precision,
            l2=workload.l2,
        )
        for seed in range(workload.num_seeds)
        for place in range(workload.num_rates)
    ]


def ours(workload: Workload, turn: Turn) -> None:
    """Train a workload as `isotherm run` would: with one worker per core on a CPU, as one fleet on a GPU."""
    task = timed_task(workload.task)
    specs = specs_of(workload, task)
    num_workers = default_workers(workload.device)
    with refusing_warnings():
        if num_workers == 1:
            if workload.device == "cpu":
                specs = specs[: LocalExecutor({("made", "made"): task}).default_fleet_size(specs[0])]
            placed = place_task(task, precision=workload.precision, device=workload.device)
            FleetTimer(placed, specs).speeds_in_turn(turn)
            return
        _load_tracing()
        num_workers = min(num_workers, len(specs))
        speed = None
        while (seconds := turn(speed)) is not None:
            speed = pool_speed(task, specs, num_workers=num_workers, seconds=seconds)


def _load_tracing() -> None:
    """Import what tracing needs before workers are forked, so that they need not; computes no gradient."""
    make_fx(torch.func.vmap(torch.neg))(torch.zeros(1, 1))
