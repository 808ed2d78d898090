"""Short runs for a diagnosis: trained in fleets, cached, counted and timed."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isotherm.core.records import Outcome, RunResult, RunSpec
from isotherm.core.schedule import Schedule
from isotherm.core.statistics import Floats
from isotherm.engine.fleet import run_fleet
from isotherm.engine.placed_task import place_task
from isotherm.errors import UserError
from isotherm.running.executors.local import LocalExecutor
from isotherm.running.executors.pool import PoolExecutor
from isotherm.tasks.seeding import derive, initial_model
from isotherm.tasks.task import Task

# Most held-out examples that a short run is judged by.
MOST_HELD_OUT = 4096
# Examples of the test set, which a short run does not need.
TEST_EXAMPLES = 16
# Of a training set whose tenth has fewer examples than this, four quarters are held out in turn.
ENOUGH_HELD_OUT = 1000
NUM_FOLDS = 4
_MODEL_ID = "diagnose"


@dataclass(frozen=True, kw_only=True, slots=True)
class ShortGridSpec:
    """Runs at one batch size and momentum: every learning rate with every seed."""

    batch_size: int
    momentum: float
    num_steps: int
    rates: tuple[float, ...]
    num_seeds: int


def held_out_tasks(task: Task) -> tuple[tuple[Task, ...], str]:
    """Return the tasks that short runs train, and the split that judges them.

    Without validation data, part of the training set is held out: a tenth, or of a small training set each quarter in
    turn, so that chance in the choice of a few held-out examples shows up as scatter between runs. A sequence or a
    training set on disk is judged on its test set.
    """
    folds = _folds(task)
    if folds:
        return tuple(_cut(fold, judged_by="validation") for fold in folds), "validation"
    try:
        return (_cut(task.with_validation(0.1), judged_by="validation"),), "validation"
    except UserError:
        return (_cut(task, judged_by="test"),), "test"


def _folds(task: Task) -> list[Task]:
    """Return the task with each quarter of its training set held out; none if a tenth of it is enough."""
    x, y = task.train
    if task.validation is not None or task.unroll is not None or not isinstance(x, Tensor):
        return []
    if len(x) < 10 * NUM_FOLDS or len(x) >= 10 * ENOUGH_HELD_OUT:
        return []
    order = np.random.default_rng(derive(0, "diagnose folds")).permutation(len(x))
    found = []
    for part in np.array_split(order, NUM_FOLDS):
        held, kept = np.sort(part), np.sort(np.setdiff1d(order, part))
        index, rest = torch.from_numpy(held), torch.from_numpy(kept)
        found.append(dataclasses.replace(task, train=(x[rest], y[rest]), validation=(x[index], y[index])))
    return found


def _cut(task: Task, *, judged_by: str) -> Task:
    """Return a task with fewer held-out examples if there are very many, and hardly any it is not judged by."""
    if task.unroll is not None:
        return task
    cut: dict[str, tuple[Tensor, Tensor]] = {}
    most_of_test = TEST_EXAMPLES if judged_by == "validation" else MOST_HELD_OUT
    for part, most in (("validation", MOST_HELD_OUT), ("test", most_of_test)):
        split = task.splits.get(part)
        if split is not None and isinstance(split[0], Tensor) and len(split[0]) > most:
            chosen = np.random.default_rng(derive(0, f"diagnose {part}")).permutation(len(split[0]))[:most]
            index = torch.from_numpy(np.sort(chosen))
            cut[part] = split[0][index], split[1][index]
    return dataclasses.replace(task, **cut)  # type: ignore[arg-type]


class ShortRuns:
    """Trains short runs of a task; a context manager, as it may hold processes.

    Args:
        tasks: as `held_out_tasks` returns them; seeds take turns.
        judged_by: the split whose loss `losses` returns.
        first_seed: of the runs.
        device: "cpu" or "cuda".
        workers: processes, on a CPU.
        schedule_at: the schedule of the runs at a batch size, whatever their length; the paper's by default.
        now: returns the time in seconds.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        judged_by: str,
        first_seed: int,
        device: str,
        workers: int,
        schedule_at: Callable[[int], Schedule] = lambda _: Schedule(),
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.tasks, self.judged_by, self.device, self.now = tuple(tasks), judged_by, device, now
        self._first_seed, self._workers, self._schedule_at = first_seed, workers, schedule_at
        self._results: dict[RunSpec, RunResult] = {}
        self._stack = contextlib.ExitStack()
        self._executor: LocalExecutor | PoolExecutor | None = None
        self.num_examples = 0

    def __enter__(self) -> ShortRuns:
        tasks = {(_data_id(fold), _MODEL_ID): task for fold, task in enumerate(self.tasks)}
        if self._workers == 1:
            self._executor = LocalExecutor(tasks, device=self.device)
        else:
            self._executor = self._stack.enter_context(PoolExecutor(tasks, num_workers=self._workers))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def task(self) -> Task:
        """The first of the tasks, which stands for all of them where only one is needed."""
        return self.tasks[0]

    @property
    def num_workers(self) -> int:
        """The number of training processes."""
        return self._workers

    @property
    def num_runs(self) -> int:
        """The number of trained runs."""
        return len(self._results)

    def spec(self, grid_spec: ShortGridSpec, *, rate: float, seed: int) -> RunSpec:
        """Return one run."""
        schedule = self._schedule_at(grid_spec.batch_size)
        gamma, rest = schedule.of_run(num_steps=grid_spec.num_steps, initial=rate)
        return RunSpec(
            task=self.task.name,
            data_id=_data_id(seed % len(self.tasks)),
            model_id=_MODEL_ID,
            batch_size=grid_spec.batch_size,
            num_steps=grid_spec.num_steps,
            effective_learning_rate=rate,
            momentum=grid_spec.momentum,
            gamma=gamma,
            schedule=rest,
            l2=self.task.l2,
            l2_scope=self.task.l2_scope,
            clip_norm=self.task.clip_norm,
            precision=self.task.precision,
            num_evaluations=0,
            seed=self._first_seed + seed,
        )

    def train(self, grid_specs: Sequence[ShortGridSpec]) -> float:
        """Train the missing runs of some grids; return the seconds it took."""
        assert self._executor is not None, "use it as a context"
        start = self.now()
        specs = [s for grid_spec in grid_specs for s in self._specs(grid_spec) if s not in self._results]
        specs = list(dict.fromkeys(specs))
        for fleet in self._executor.run(specs) if specs else ():
            for stored in fleet:
                if stored.result.outcome is Outcome.FAILED:
                    raise UserError(f"task {self.task.name!r}: a short run failed: {stored.result.error}")
                self._results[stored.spec] = stored.result
                done = stored.result.divergence_step
                steps = stored.spec.num_steps if done is None else done
                self.num_examples += steps * stored.spec.batch_size * (self.task.unroll or 1)
        return self.now() - start

    def _specs(self, grid_spec: ShortGridSpec) -> Iterator[RunSpec]:
        for rate in grid_spec.rates:
            for seed in range(grid_spec.num_seeds):
                yield self.spec(grid_spec, rate=rate, seed=seed)

    def losses(self, grid_spec: ShortGridSpec, *, on: str | None = None) -> Floats:
        """Return the final losses (rates, seeds) of trained runs; infinite if one diverged."""
        table = self.values(grid_spec, f"{on or self.judged_by}_loss")
        return np.asarray(np.nan_to_num(table, nan=np.inf, posinf=np.inf))

    def scores(self, grid_spec: ShortGridSpec) -> Floats:
        """Return the held-out metric (rates, seeds), larger is better; minus infinity if a run diverged."""
        sign = self.task.metric_definition.direction.sign
        table = sign * self.values(grid_spec, f"{self.judged_by}_metric")
        return np.asarray(np.nan_to_num(table, nan=-np.inf, posinf=-np.inf, neginf=-np.inf))

    def values(self, grid_spec: ShortGridSpec, name: str) -> Floats:
        """Return a final quantity (rates, seeds) of trained runs; NaN if one diverged."""
        found = [self._results[spec].quantity(name) for spec in self._specs(grid_spec)]
        return np.array(found).reshape(len(grid_spec.rates), grid_spec.num_seeds)

    def parameters_after(self, grid_spec: ShortGridSpec, *, rate: float) -> dict[str, Tensor]:
        """Retrain one run and return its final parameters, with buffers as they were at the start."""
        spec = self.spec(grid_spec, rate=rate, seed=0)
        kept: dict[str, Tensor] = {}

        def on_trained(_index: int, parameters: dict[str, Tensor]) -> None:
            kept.update({name: value.detach().cpu().clone() for name, value in parameters.items()})

        placed = place_task(self.task, precision=spec.precision, device=self.device)
        run_fleet(placed, [spec], on_trained=on_trained)
        self.num_examples += spec.num_steps * spec.batch_size * (self.task.unroll or 1)
        state = initial_model(self.task.model, seed=spec.seed).state_dict()
        return {**state, **kept} if kept else {}


def _data_id(fold: int) -> str:
    return f"fold {fold}"


@dataclass(kw_only=True)
class Clock:
    """The remaining time.

    Args:
        seconds: that may be spent.
        now: returns the time in seconds.
    """

    seconds: float
    now: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self._start = self.now()

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return self.now() - self._start

    @property
    def left(self) -> float:
        """Seconds that may still be spent."""
        return self.seconds - self.spent
