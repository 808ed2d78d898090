"""What a study will cost: counted, and timed by a short probe that stores nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from isotherm.core.records import CurvePoint, RunResult, RunSpec
from isotherm.engine.evaluation import CHUNK, EXAMPLES_FOR_A_LOOK, WINDOW
from isotherm.engine.fleet import run_fleet
from isotherm.engine.fleet_checks import FleetChecks
from isotherm.engine.placed_task import PlacedTask, evaluation_steps, ghost_layers
from isotherm.errors import UserError
from isotherm.running.executors.local import LocalExecutor
from isotherm.running.runner import prepared_study
from isotherm.sweep.plan import SweepPlan
from isotherm.sweep.protocol import missing_runs
from isotherm.sweep.study import Study
from isotherm.tasks.inputs import Inputs, LazyInputs, Split
from isotherm.tasks.model_check import call_model, example_batch
from isotherm.tasks.seeding import initial_model, seeded
from isotherm.tasks.task import Task

# Per shape of fleet so many looks at a cut test set are timed, and hardly more updates once so much time has gone.
PROBE_LOOKS = 10
PROBE_SECONDS = 0.5
# Updates that are timed together, two blocks between looks; on a GPU the recording of an update needs room for a few.
PROBE_BLOCKS = {"cpu": 2, "cuda": 4}
# Examples, or tokens, that the first looks evaluate: one look to warm up, then two sizes to tell the cost of more of
# them, the large one twice, as a pause of the machine in it would count most.
PROBE_EXAMPLES = (100, CHUNK, 3 * CHUNK, 3 * CHUNK)
PROBE_TOKENS = (WINDOW, 2 * WINDOW, 12 * WINDOW, 12 * WINDOW)
# Training examples that are left where the statistics of ghost batch norm are re-estimated at every look.
PROBE_TRAIN = 512
# So small that no run of a probe diverges; the time of an update does not depend on it.
PROBE_LEARNING_RATE = 1e-9


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
    prepared = prepared_study(study)
    executor = LocalExecutor(prepared.tasks, device=device, fleet_size=fleet_size)
    plan = prepared.plan
    specs = missing_runs(plan.sweeps, known)
    shapes: dict[tuple[str, str, int, int], list[list[RunSpec]]] = {}
    for fleet in executor.fleets(specs):
        first = fleet[0]
        shapes.setdefault((first.data_id, first.model_id, first.batch_size, first.num_steps), []).append(fleet)
    with _threads_of(workers):
        costs = [_cost(executor, prepared.tasks[name[0], name[1]], fleets, workers) for name, fleets in shapes.items()]
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


@dataclass(frozen=True, slots=True)
class _FirstOf:
    """The first of inputs that are read from disk."""

    inputs: LazyInputs
    num: int

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.num, *self.inputs.shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        return self.inputs.dtype

    def __len__(self) -> int:
        return self.num

    def fetch(self, indices: Any, *, seed: int | None = None, step: int = 0) -> Tensor:
        return self.inputs.fetch(indices, seed=seed, step=step)

    def identity(self) -> str:
        return f"first {self.num} of {self.inputs.identity()}"


def _cut(split: Split, num: int) -> Split:
    """Return the first examples, or tokens, of a split."""
    inputs, targets = split
    num = min(num, len(targets))
    first: Inputs = inputs[:num] if isinstance(inputs, Tensor) else _FirstOf(inputs, num)
    return first, targets[:num]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Evaluation:
    """What evaluation costs in seconds: to begin with a split, per example, per example of a re-estimation."""

    fixed: float
    per_example: float
    per_reestimated: float

    @classmethod
    def of(cls, looks: Sequence[tuple[int, float]], *, num_reestimated: int) -> _Evaluation:
        """Tell the parts of looks, (examples, seconds) each, apart by their sizes; the first look warmed up.

        Where sizes do not differ enough to tell, a re-estimated example is taken to cost what an evaluated one does.
        """
        quickest: dict[int, float] = {}  # of every size: a pause of the machine in one look should not count
        for num, seconds in looks[1:4]:
            quickest[num] = min(seconds, quickest.get(num, math.inf))
        if len(quickest) > 1 and quickest[max(quickest)] > quickest[min(quickest)]:
            few, many = min(quickest), max(quickest)
            short, long = quickest[few], quickest[many]
            per_example = (long - short) / (many - few)
            rest = max(0.0, short - per_example * few)
            if num_reestimated:
                return cls(fixed=0.0, per_example=per_example, per_reestimated=rest / num_reestimated)
            return cls(fixed=rest, per_example=per_example, per_reestimated=0.0)
        num = max(quickest, default=looks[0][0])
        seconds = quickest.get(num, looks[0][1])
        alike = seconds / (num + num_reestimated)
        return cls(fixed=0.0, per_example=alike, per_reestimated=alike if num_reestimated else 0.0)

    def of_run(self, sizes: Mapping[str, int], *, num_looks: int) -> float:
        """Return the seconds of the looks along the way and of the end, which goes through all splits.

        With re-estimated statistics the end also evaluates the test set with those it has, then re-estimates over the
        whole training set.
        """
        test = self.fixed + self.per_example * sizes["test"]
        look = test + self.per_reestimated * min(EXAMPLES_FOR_A_LOOK, sizes["train"])
        end = sum(self.fixed + self.per_example * num for num in sizes.values())
        if self.per_reestimated:
            end += test + self.per_reestimated * sizes["train"]
        return num_looks * look + end


class _Probe:
    """A fleet's first updates, with looks at a test set that is cut to a few examples; ends itself.

    Args:
        placed: the task on a device; nothing of it is changed.
        fleet: the runs.
        checks: what earlier fleets have shown.
    """

    def __init__(self, placed: PlacedTask, fleet: Sequence[RunSpec], checks: FleetChecks) -> None:
        self._checks = checks
        self._sizes = PROBE_EXAMPLES if placed.unroll is None else PROBE_TOKENS
        self._test = placed.splits["test"]
        self._splits = {"train": placed.splits["train"], "test": _cut(self._test, self._sizes[0])}
        self.num_reestimated = 0
        if placed.reestimates and ghost_layers(initial_model(placed.build, seed=fleet[0].seed)):
            self._splits["train"] = _cut(self._splits["train"], PROBE_TRAIN)
            self.num_reestimated = len(self._splits["train"][1])
        self._placed = dataclasses.replace(placed, splits=self._splits)
        self._fleet, self._block = fleet, PROBE_BLOCKS[placed.device.type]
        self._start = self._last = time.perf_counter()
        self._covered = 0  # how many runs are trained at the same time; not known before the first block
        self._whole_block = 0  # run-updates
        self._block_seconds, self._block_updates, self._look_seconds = 0.0, 0, 0.0  # of those under way
        self._blocks: list[tuple[float, float]] = []  # seconds, and updates of the runs that are covered
        self._looks: list[tuple[int, float]] = []

    def run(self) -> None:
        """Train and look until enough was seen."""
        num_steps = PROBE_LOOKS * 2 * self._block
        changes: dict[str, Any] = {"num_steps": num_steps, "num_evaluations": PROBE_LOOKS}
        specs = [dataclasses.replace(s, **changes, effective_learning_rate=PROBE_LEARNING_RATE) for s in self._fleet]
        with contextlib.suppress(_Enough):
            run_fleet(
                self._placed,
                specs,
                on_steps=self._on_steps,
                on_evaluation=self._on_look,
                checks=self._checks,
                updates_per_window=self._block,
            )

    @property
    def setup(self) -> float:
        """Seconds before the first update."""
        if not self._blocks:
            return self._last - self._start
        seconds, updates = self._blocks[0]
        return max(0.0, seconds - updates * self.per_update / self._share)

    @property
    def per_update(self) -> float:
        """Seconds of one update of all runs."""
        pace = [seconds / updates for seconds, updates in self._blocks[1:]]
        return statistics.median(pace) * self._share if pace else 0.0

    @property
    def looks(self) -> list[tuple[int, float]]:
        """Examples and seconds of every look, for all runs."""
        return [(num, seconds * self._share) for num, seconds in self._looks]

    @property
    def _share(self) -> float:
        return len(self._fleet) / max(1, self._covered)

    def _lap(self) -> float:
        """Return the seconds since the last call."""
        before, self._last = self._last, time.perf_counter()
        return self._last - before

    def _on_steps(self, num: int) -> None:
        self._block_seconds += self._lap()
        self._block_updates += num
        if not self._covered:  # runs that are trained one after another tell of every update
            alone = num == 1 and not self._checks.wants_own_streams(self._placed, self._fleet[0].batch_size)
            self._covered = 1 if alone else len(self._fleet)
            self._whole_block = 1 if alone else self._covered * self._block
        if self._block_updates >= self._whole_block:
            self._blocks.append((self._block_seconds, self._block_updates / self._covered))
            self._block_seconds, self._block_updates = 0.0, 0

    def _on_look(self, index: int, _point: CurvePoint) -> None:
        self._look_seconds += self._lap()
        if index < self._covered - 1:  # on streams of their own, runs look one after another
            return
        self._looks.append((len(self._splits["test"][1]), self._look_seconds))
        self._look_seconds = 0.0
        self._go_on()

    def _go_on(self) -> None:
        """Choose the size of the next look, or end."""
        first = self._blocks[0][0] if self._blocks else 0.0
        is_late = self._last - self._start - first > PROBE_SECONDS
        num = len(self._looks)
        # On a GPU a look begins with costs that are not those of examples, so one size tells too little.
        if num >= PROBE_LOOKS or (is_late and (num >= len(self._sizes) or self._placed.device.type == "cpu")):
            raise _Enough
        self._splits["test"] = _cut(self._test, self._sizes[num] if num < len(self._sizes) else self._sizes[0])


def _seconds(executor: LocalExecutor, fleet: Sequence[RunSpec]) -> float:
    """Return the estimated time of a fleet: set-up, updates by the median of a few, evaluation by that of a part."""
    placed, first = executor.placed(fleet[0]), fleet[0]
    try:
        probe = _Probe(placed, fleet, executor.checks(first))
        probe.run()
    except UserError:
        raise
    except Exception as error:  # the user's module may raise anything
        raise UserError(
            f"a few updates of task {first.task!r} at batch size {first.batch_size} raised "
            f"{type(error).__name__}: {error}; such runs would fail"
        ) from error
    seconds = probe.setup + probe.per_update * first.num_steps
    if not probe.looks:  # no run has a finite loss even before its first update: none will be evaluated
        return seconds
    sizes = {name: len(targets) for name, (_, targets) in placed.splits.items()}
    evaluation = _Evaluation.of(probe.looks, num_reestimated=probe.num_reestimated)
    return seconds + evaluation.of_run(sizes, num_looks=len(evaluation_steps(first)))


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
