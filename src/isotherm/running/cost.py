"""The cost of a study: counted, and timed by short probes that store nothing."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from isotherm.core.one_screen import columns_text, one_screen
from isotherm.core.optimizers import num_moments
from isotherm.core.records import RunResult, RunSpec
from isotherm.engine.memory import bytes_per_run
from isotherm.engine.placed_task import evaluation_steps
from isotherm.errors import UserError
from isotherm.running.executors.local import LocalExecutor
from isotherm.running.executors.options import FleetOptions
from isotherm.running.fleet_probe import probed
from isotherm.running.flop import flop_per_example
from isotherm.running.runner import prepared_study
from isotherm.running.store import Store
from isotherm.running.timing import waited_seconds
from isotherm.sweep.rounds import all_runs, confirming_runs, missing_runs, num_refining_runs
from isotherm.sweep.study import Study
from isotherm.sweep.sweep import Sweep
from isotherm.tasks.task import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetCost:
    """The cost of the fleets of one shape."""

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
    """The cost of a study's missing runs in its base grids, and of those that confirm what they choose.

    `num_confirming` of the runs confirm. Extensions cannot be foreseen; refinement will add about `num_refining` runs.
    `busy` is the share of the time for which the probes waited for the processor, which other programs had; None where
    the system does not tell. The estimate is for a machine where they need not wait.
    """

    costs: tuple[FleetCost, ...]
    num_stored: int
    num_confirming: int = 0
    num_refining: int = 0
    busy: float | None = 0.0

    @property
    def num_runs(self) -> int:
        """Number of missing runs."""
        return sum(cost.num_runs for cost in self.costs)

    @property
    def num_examples(self) -> int:
        """Number of examples that they train on."""
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
        """Memory that the largest fleet needs, roughly."""
        return max((cost.memory_bytes for cost in self.costs), default=0)

    def __repr__(self) -> str:
        names = ("task", "B", "steps", "runs", "fleet", "MiB", "seconds")
        rows = [
            (
                cost.task,
                *(f"{n:,}" for n in (cost.batch_size, cost.num_steps, cost.num_runs, cost.fleet_size)),
                f"{cost.memory_bytes / 2**20:.0f}",
                f"{cost.seconds:.1f}",
            )
            for cost in sorted(self.costs, key=lambda c: (c.task, c.num_steps * c.batch_size, c.batch_size))
        ]
        later = f"; refining will add about {self.num_refining:,} runs" if self.num_refining else ""
        total = f"{self.flop / 1e12:.3g} TFLOP, about {self.seconds:.0f} s here{later}"
        title = f"Estimate: {self.num_runs:,} runs to do, {self.num_stored:,} stored; {total}"
        return one_screen([title, *busy_words(self), *(columns_text(names, rows) if rows else [])])


# Where probes wait for longer than this, training beside the same programs takes noticeably longer, too.
_NOTICEABLY_BUSY = 0.2


def busy_words(cost: Estimate) -> list[str]:
    """Say that other programs used the machine while updates were timed; nothing where it was at rest.

    >>> busy_words(Estimate(costs=(), num_stored=0, busy=0.75))[0][:57]
    'This machine was busy: other programs had the processor f'
    """
    if cost.busy is None:
        return ["Whether other programs slowed the timing down is not known on this system."]
    if cost.busy < _NOTICEABLY_BUSY:
        return []
    times = 1 / (1 - min(cost.busy, 0.99))
    return [
        f"This machine was busy: other programs had the processor for {cost.busy:.0%} of the time while updates were "
        f"timed. The estimate leaves that out; beside them training would take about {times:.2g} times as long."
    ]


def estimate(
    study: Study,
    known: Mapping[str, RunResult],
    *,
    device: str = "cpu",
    workers: int = 1,
    fleet_size: int | None = None,
    micro_batch_size: int | None = None,
) -> Estimate:
    """Return the cost of a study's missing runs; trains a few updates of every shape and keeps nothing.

    Several workers are assumed to share the work evenly, each at the speed of one thread alone.
    """
    prepared = prepared_study(study)
    options = FleetOptions(fleet_size=fleet_size, micro_batch_size=micro_batch_size)
    executor = LocalExecutor(prepared.tasks, options, device=device)
    plan = prepared.plan
    confirming = confirming_runs(plan.sweeps, known)
    wanted = {spec.key: spec for spec in missing_runs(plan.sweeps, known)} | confirming
    shapes: dict[tuple[str, str, int, int], list[list[RunSpec]]] = {}
    for fleet in executor.fleets(list(wanted.values())):
        first = fleet[0]
        shapes.setdefault((first.data_id, first.model_id, first.batch_size, first.num_steps), []).append(fleet)
    start, waited = time.perf_counter(), waited_seconds()
    with _threads_of(workers):
        costs = [_cost(executor, prepared.tasks[name[0], name[1]], fleets, workers) for name, fleets in shapes.items()]
    busy = _share_waited(time.perf_counter() - start, waited, waited_seconds())
    return Estimate(
        costs=tuple(costs),
        num_stored=sum(key in known and key not in wanted for key in all_runs(plan.sweeps, known)),
        num_confirming=len(confirming),
        num_refining=num_refining_runs(plan.sweeps, known),
        busy=busy,
    )


def plan(
    study: Study | Sweep,
    *,
    store: str | Path | None = None,
    device: str = "cpu",
    workers: int | None = None,
    fleet_size: int | None = None,
    micro_batch_size: int | None = None,
) -> Estimate:
    """Return what a study or sweep would run and how long that would take here; stores nothing.

    Args:
        study: what is to be run.
        store: a path; runs in it are done already. It need not exist yet.
        device: "cpu" or "cuda".
        workers: processes that would train on the CPU; by default one, as for `run`.
        fleet_size: runs per fleet; chosen automatically by default.
        micro_batch_size: most examples of an update that are computed at once; by default, as many as memory holds.
    """
    whole = Study.of(study) if isinstance(study, Sweep) else study
    known: Mapping[str, RunResult] = {}
    if store is not None and Path(store).exists():
        with Store.read(store) as opened:
            known = opened.results()
    return estimate(
        whole,
        known,
        device=device,
        workers=1 if workers is None else workers,
        fleet_size=fleet_size,
        micro_batch_size=micro_batch_size,
    )


def _share_waited(seconds: float, before: float | None, after: float | None) -> float | None:
    """Return the share of some time for which this thread waited for the processor.

    >>> _share_waited(8.0, 1.0, 7.0), _share_waited(8.0, None, None)
    (0.75, None)
    """
    if before is None or after is None:
        return None
    return min(1.0, (after - before) / seconds) if seconds > 0 else 0.0


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
    size = max(len(fleet) for fleet in fleets)
    return FleetCost(
        task=task.name,
        batch_size=first.batch_size,
        num_steps=first.num_steps,
        num_runs=num_runs,
        fleet_size=size,
        num_examples=examples,
        flop=examples * (flop_per_example(task) / (task.unroll or 1)),
        memory_bytes=size
        * bytes_per_run(
            executor.placed(first),
            first.batch_size,
            micro_batch_size=executor.micro_batch_size(first),
            num_moments=num_moments(first.method),
        ),
        seconds=seconds / workers,
    )


def _seconds(executor: LocalExecutor, fleet: Sequence[RunSpec]) -> float:
    """Return the estimated time of a fleet, from the times of a few updates and of evaluations of a few examples."""
    placed, first = executor.placed(fleet[0]), fleet[0]
    try:
        size = executor.micro_batch_size(first)
        found = probed(placed, fleet, checks=executor.checks(first), micro_batch_size=size)
    except UserError:
        raise
    except Exception as error:  # the user's module may raise anything
        raise UserError(
            f"a few updates of task {first.task!r} at batch size {first.batch_size} raised "
            f"{type(error).__name__}: {error}; these runs would fail: mend the model, or change the setting"
        ) from error
    seconds = found.setup + found.per_update * first.num_steps
    if found.evaluation is None:  # no run has a finite loss even before its first update: none will be evaluated
        return seconds
    sizes = {name: len(targets) for name, (_, targets) in placed.splits.items()}
    return seconds + found.evaluation.of_run(sizes, num_evaluations=len(evaluation_steps(first)))
