"""What a study will cost: counted, and timed by a short probe that stores nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from isotherm.engine.fleet import run_fleet
from isotherm.errors import UserError
from isotherm.executors.local import LocalExecutor
from isotherm.protocol import missing_runs
from isotherm.records import RunResult, RunSpec
from isotherm.runner import checked_tasks
from isotherm.seeding import initial_model, seeded
from isotherm.study import Study
from isotherm.sweep import SweepPlan
from isotherm.tasks import Task, call_model, example_batch

# Per shape of fleet, at most so many updates are timed, and not many more once so much time has gone.
PROBE_UPDATES = 40
PROBE_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetCost:
    """What the fleets of one shape will cost."""

    task: str
    batch_size: int
    num_steps: int
    num_runs: int
    fleet_size: int
    num_examples: int
    flop: float
    memory_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What is still to be run of a study: base grids, extensions cannot be foreseen."""

    costs: tuple[FleetCost, ...]
    num_stored: int

    @property
    def num_runs(self) -> int:
        """How many runs are missing."""
        return sum(cost.num_runs for cost in self.costs)

    @property
    def num_examples(self) -> int:
        """How many examples they go through."""
        return sum(cost.num_examples for cost in self.costs)

    @property
    def flop(self) -> float:
        """Floating-point operations, forward and backward."""
        return sum(cost.flop for cost in self.costs)

    @property
    def seconds(self) -> float:
        """Estimated time on this machine."""
        return sum(cost.seconds for cost in self.costs)

    @property
    def memory_bytes(self) -> int:
        """Memory of the largest fleet's states and activations, roughly."""
        return max((cost.memory_bytes for cost in self.costs), default=0)


def estimate(
    study: Study,
    known: Mapping[str, RunResult],
    *,
    device: str = "cpu",
    workers: int = 1,
    fleet_size: int | None = None,
) -> Estimate:
    """Return what the missing runs of a study will cost; trains a few updates of every shape and keeps nothing.

    Several workers are taken to share the work evenly, each at the speed of one thread alone.
    """
    tasks = checked_tasks(study)
    executor = LocalExecutor(tasks, device=device, fleet_size=fleet_size)
    plan = study.plan()
    specs = missing_runs(plan.sweeps, known)
    shapes: dict[tuple[str, str, int, int], list[list[RunSpec]]] = {}
    for fleet in executor.fleets(specs):
        first = fleet[0]
        shapes.setdefault((first.data_id, first.model_id, first.batch_size, first.num_steps), []).append(fleet)
    with _threads_of(workers):
        costs = [_cost(executor, tasks[name[0], name[1]], fleets, workers) for name, fleets in shapes.items()]
    wanted = {spec.key for spec in specs}
    stored = sum(key not in wanted for p in plan.sweeps for key in _base_keys(p))
    return Estimate(costs=tuple(costs), num_stored=stored)


def _base_keys(plan: SweepPlan) -> set[str]:
    return {
        plan.run_spec(axes, effective_learning_rate=rate, seed=seed).key
        for axes in plan.grids()
        for rate in plan.base_learning_rates(axes)
        for seed in plan.seeds
    }


@contextlib.contextmanager
def _threads_of(workers: int) -> Iterator[None]:
    """Use as many threads as a worker does."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if workers == 1 else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _cost(executor: LocalExecutor, task: Task, fleets: Sequence[Sequence[RunSpec]], workers: int) -> FleetCost:
    first = fleets[0][0]
    seconds = sum(
        num * _seconds(executor, next(f for f in fleets if len(f) == size))
        for size, num in Counter(len(fleet) for fleet in fleets).items()
    )
    num_runs = sum(len(fleet) for fleet in fleets)
    examples = num_runs * first.num_steps * first.batch_size * (task.unroll or 1)
    flop_per_example, values_per_example, num_parameters = _work_per_example(task)
    size = max(len(fleet) for fleet in fleets)
    width = 8 if first.precision == "float64" else 4
    per_update = first.batch_size * (task.unroll or 1)
    return FleetCost(
        task=task.name,
        batch_size=first.batch_size,
        num_steps=first.num_steps,
        num_runs=num_runs,
        fleet_size=size,
        num_examples=examples,
        flop=examples * flop_per_example,
        # weights, velocity and two gradients; activations and their gradients
        memory_bytes=width * size * (4 * num_parameters + 2 * per_update * values_per_example),
        seconds=seconds / workers,
    )


class _Enough(Exception):
    """Ends a probe."""


def _seconds(executor: LocalExecutor, fleet: Sequence[RunSpec]) -> float:
    """Return the estimated time of a fleet: its updates by the median of a few, the rest as timed once."""
    problem, num_steps = executor.problem(fleet[0]), fleet[0].num_steps

    def shortened(num: int) -> list[RunSpec]:
        return [dataclasses.replace(s, num_steps=num, num_evaluations=min(1, s.num_evaluations)) for s in fleet]

    times: list[float] = []

    def on_steps(_num: int) -> None:
        times.append(time.perf_counter())
        if len(times) > 2 and times[-1] - times[0] > PROBE_SECONDS:
            raise _Enough

    try:
        with contextlib.suppress(_Enough):
            run_fleet(problem, shortened(min(PROBE_UPDATES, num_steps)), on_steps=on_steps, block=1)
        start = time.perf_counter()
        run_fleet(problem, shortened(1))
    except UserError:
        raise
    except Exception as error:  # the user's module may raise anything
        raise UserError(
            f"a few updates of task {fleet[0].task!r} at batch size {fleet[0].batch_size} raised "
            f"{type(error).__name__}: {error}; such runs would fail"
        ) from error
    once = time.perf_counter() - start  # set-up, one update, evaluation
    per_update = statistics.median(np.diff(times).tolist()) if len(times) > 1 else 0.0
    return once + per_update * (num_steps - 1)


def _work_per_example(task: Task) -> tuple[float, int, int]:
    """Return FLOP of a training step and activation values, both per example or token, and parameters."""
    module = initial_model(task.model, seed=0)
    x, y = example_batch(task)
    num_examples = len(x) * (task.unroll or 1)
    num_values = 0

    def count(_module: torch.nn.Module, _inputs: object, output: object) -> None:
        nonlocal num_values
        parts = output if isinstance(output, tuple) else (output,)
        num_values += sum(part.numel() for part in parts if isinstance(part, torch.Tensor))

    for part in module.modules():
        if not list(part.children()):
            part.register_forward_hook(count)
    with seeded(0, "probe"), FlopCounterMode(display=False) as counter:  # dropout draws from a global generator
        loss = task.loss_function(call_model(module, x, unroll=task.unroll), y)
        loss.backward()  # type: ignore[no-untyped-call]
    num_parameters = sum(p.numel() for p in module.parameters())
    return counter.get_total_flops() / num_examples, num_values // num_examples, num_parameters
