"""Fleets in this process, one after another, on one device."""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch

from isotherm.core.optimizers import kind_of, num_moments
from isotherm.core.records import Outcome, Precision, RunResult, RunSpec
from isotherm.engine.checkpoint import report_unusable
from isotherm.engine.deadline import OutOfTime, train_in_turn
from isotherm.engine.fleet import TIME_IN_TURN, run_fleet
from isotherm.engine.fleet_checks import FleetChecks
from isotherm.engine.memory import is_fault_of_gpu, is_out_of_memory, runs_that_fit
from isotherm.engine.micro_batch_check import NotSeparable
from isotherm.engine.placed_task import PlacedTask, checked_device, place_task
from isotherm.engine.reference import run_reference
from isotherm.errors import UserError
from isotherm.running.executors.fleet_times import FleetTimes, StoppedFleet, work_of_fleet
from isotherm.running.executors.micro_batch_sizes import MicroBatchSizes
from isotherm.running.executors.options import FleetOptions
from isotherm.running.executors.progress_watch import ProgressWatch
from isotherm.running.fleet_size import faster_size
from isotherm.running.flop import flop_per_example
from isotherm.running.store import StoredRun
from isotherm.tasks.process_settings import settings_kept
from isotherm.tasks.raised import message_of
from isotherm.tasks.task import Task
from isotherm.version import __version__

logger = logging.getLogger("isotherm")

# Most examples and runs of a fleet on a CPU: more gain next to nothing, and large fleets leave workers idle at the end
# (docs/performance.md). Sizes depend on the batch size alone, not on what is left to do: after a kill the same fleets
# are formed again, and a run's last bits may depend on the other runs of its fleet.
CPU_EXAMPLES_PER_FLEET = 4_096
CPU_RUNS_PER_FLEET = 28
# Most runs of a fleet on a GPU, as one batched program or each on its own stream; more gain nothing.
GPU_RUNS_PER_FLEET = 64
GPU_STREAMS = 6


class ListenerError(BaseException):
    """A progress listener raised an error; passes through handlers of the module's errors."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


# What ends training from outside; all else that passes through a model, whatever its class, is its own.
NOT_OF_MODELS = (KeyboardInterrupt, OutOfTime, ListenerError)


def tell(listener: Callable[..., None], *what: Any) -> None:
    """Call a listener.

    Raises:
        ListenerError: it raised an error.
    """
    try:
        listener(*what)
    except Exception as error:
        raise ListenerError(error) from error


class LocalExecutor:
    """Trains runs of known tasks in fleets and yields the results of each fleet as soon as it is done.

    Args:
        tasks: by (data_id, model_id), as the specs name them.
        options: of the fleets.
        device: "cpu" or "cuda"; a `torch.device` is taken as it is, by those who plan for other machines.
        num_workers: processes that train at the same time and share the memory.
    """

    def __init__(
        self,
        tasks: Mapping[tuple[str, str], Task],
        options: FleetOptions | None = None,
        *,
        device: str | torch.device = "cpu",
        num_workers: int = 1,
    ) -> None:
        self._tasks = dict(tasks)
        self._options = options or FleetOptions()
        self._device = device if isinstance(device, torch.device) else checked_device(device)
        self._seconds_before = 0.0  # of training the present fleet before a kill
        self._placed: dict[tuple[str, str, Precision], PlacedTask] = {}
        self._checks: dict[tuple[str, str, Precision], FleetChecks] = {}
        self._sizes: dict[tuple[str, str, Precision, int, int], int] = {}
        self._num_workers = num_workers
        self._micro_batch_sizes = MicroBatchSizes(self._options.micro_batch_size, shared_by=num_workers)
        self._trained_with: dict[str, int] = {}  # fleet size of every run of the present fleet, which may be halved
        self._times = FleetTimes(self._options.deadline)
        self._watch = ProgressWatch()
        self.is_out_of_memory = False  # whether even single runs of the last fleet did not fit into memory

    def run(self, specs: Sequence[RunSpec]) -> Iterator[list[StoredRun]]:
        """Yield the finished runs of one fleet after another, the smallest work first.

        Raises:
            StoppedFleet: the deadline stopped a fleet, or let none start.
        """
        for fleet in self.fleets(specs):
            self._options.on_fleet(fleet)
            with self._watch.over(fleet):
                runs = self.run_one_fleet(fleet)
            yield runs

    def close(self) -> None:
        """Do nothing: there are no workers to end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fleets(self, specs: Sequence[RunSpec]) -> list[list[RunSpec]]:
        """Return the specs grouped into fleets; the grouping depends only on the specs and the checkpoints.

        A fleet that can continue from a checkpoint is formed again as it was.
        """
        fleets: list[list[RunSpec]] = []
        if self._options.checkpoints is not None:
            fleets = self._options.checkpoints.unfinished(
                specs, device=self._device, fleet_size=self._options.fleet_size
            )
        known = {spec.key for fleet in fleets for spec in fleet}
        groups: dict[tuple[Any, ...], list[RunSpec]] = {}
        for spec in specs:
            if known and spec.key in known:
                continue
            alike = (spec.data_id, spec.model_id, spec.batch_size, spec.num_steps)
            others = (spec.l2_scope, spec.num_evaluations, spec.precision, spec.clip_norm is None, kind_of(spec.method))
            groups.setdefault((*alike, *others), []).append(spec)
        for group in groups.values():
            size = self._options.fleet_size or self.default_fleet_size(group[0])
            fleets += [group[start : start + size] for start in range(0, len(group), size)]
        return sorted(fleets, key=work_of_fleet)

    def default_fleet_size(self, spec: RunSpec) -> int:
        """Return how many runs like this one to train together: as many as gain speed and fit into memory."""
        shape = (spec.data_id, spec.model_id, spec.precision, spec.batch_size, num_moments(spec.method))
        if shape not in self._sizes:
            with settings_kept(f"task {spec.task!r}"):
                self._sizes[shape] = self._size_for(spec)
        return self._sizes[shape]

    def _size_for(self, spec: RunSpec) -> int:
        placed = self.placed(spec)
        if self._device.type == "cpu":
            by_speed = CPU_EXAMPLES_PER_FLEET // (spec.batch_size * (placed.unroll or 1))
            by_speed = max(1, min(CPU_RUNS_PER_FLEET, by_speed))
        else:
            by_speed = (
                GPU_STREAMS if self.checks(spec).wants_own_streams(placed, spec.batch_size) else GPU_RUNS_PER_FLEET
            )
        fitting = runs_that_fit(
            placed,
            spec.batch_size,
            shared_by=self._num_workers,
            micro_batch_size=self._micro_batch_sizes.size(spec, placed),
            num_moments=num_moments(spec.method),
        )
        size = min(by_speed, fitting)
        if self._device.type == "cuda" or self._micro_batch_sizes.size(spec, placed) < spec.batch_size:
            return size
        return faster_size(placed, spec, size, num_threads=1 if self._num_workers > 1 else None)

    def micro_batch_size(self, spec: RunSpec) -> int:
        """Return how many examples of an update runs like this one compute at once, and say it if these are not all.

        Raises:
            NotSeparable: the size was asked for, and the model does not allow it.
        """
        with settings_kept(f"task {spec.task!r}"):
            return self._micro_batch_sizes.settle(spec, self.placed(spec), self.checks(spec))

    def placed(self, spec: RunSpec) -> PlacedTask:
        """Return the spec's task on the device."""
        name = (spec.data_id, spec.model_id, spec.precision)
        if name not in self._placed:
            task = self._tasks[spec.data_id, spec.model_id]
            beside = list(self._placed.values())
            self._placed[name] = place_task(task, precision=spec.precision, device=self._device, beside=beside)
        return self._placed[name]

    def checks(self, spec: RunSpec) -> FleetChecks:
        """Return what fleets of the spec's task have shown so far."""
        name = (spec.data_id, spec.model_id, spec.precision)
        if name not in self._checks:
            task = self._tasks[spec.data_id, spec.model_id]
            self._checks[name] = FleetChecks.on(
                self._device,
                name=" ".join(name),
                is_built_in=task.is_built_in,
                # What is worth compiling depends on it; on a CPU nothing is compiled.
                flop_per_example=flop_per_example(task) if self._device.type == "cuda" else None,
            )
        return self._checks[name]

    def run_one_fleet(self, specs: Sequence[RunSpec]) -> list[StoredRun]:
        """Train runs of one shape together; a fleet that does not fit into memory is halved.

        Raises:
            StoppedFleet: the deadline came first, or no time is left to start.
        """
        start, self._seconds_before, self.is_out_of_memory = time.perf_counter(), 0.0, False
        self._trained_with.clear()
        self._start_clock(specs)
        try:
            with settings_kept(f"task {specs[0].task!r}"):
                results = self._results(list(specs))
        except ListenerError as stop:
            raise stop.error from None
        except OutOfTime as stop:
            done = self._stored(specs[: len(stop.results)], stop.results, seconds=time.perf_counter() - start)
            raise StoppedFleet(done, is_saved=stop.is_saved) from None
        self._times.finish(specs)
        return self._stored(specs, results, seconds=time.perf_counter() - start + self._seconds_before)

    def _start_clock(self, specs: Sequence[RunSpec]) -> None:
        """Raise `StoppedFleet` unless there is time for this fleet, or for its first run where they take turns."""
        if self.checks(specs[0]).are_one_by_one(specs[0].batch_size):
            self._times.start(specs[:1], is_saved=False)
        else:
            self._times.start(specs, is_saved=self._options.checkpoints is not None)

    def failed(self, spec: RunSpec, reason: str) -> StoredRun:
        """Return the row of a run that has failed with its worker."""
        provenance = {**provenance_on(self._device), "seconds_per_run": 0.0, "fleet_size": 1}
        return StoredRun(spec=spec, result=RunResult(outcome=Outcome.FAILED, error=reason), provenance=provenance)

    def _stored(self, specs: Sequence[RunSpec], results: Sequence[RunResult], *, seconds: float) -> list[StoredRun]:
        provenance = {**provenance_on(self._device), "seconds_per_run": seconds / max(1, len(specs))}
        micro_batch_size = self.micro_batch_size(specs[0]) if specs else 0
        if specs and micro_batch_size < specs[0].batch_size:
            provenance["micro_batch_size"] = micro_batch_size
        return [
            StoredRun(
                spec=spec, result=result, provenance={**provenance, "fleet_size": self._trained_with.get(spec.key, 1)}
            )
            for spec, result in zip(specs, results, strict=True)
        ]

    def _results(self, specs: list[RunSpec]) -> list[RunResult]:
        batch_size = specs[0].batch_size
        placed, checks = self.placed(specs[0]), self.checks(specs[0])
        micro_batch_size = self.micro_batch_size(specs[0])
        checkpoint = None
        if self._options.checkpoints is not None:
            checkpoint = self._options.checkpoints.checkpoint(specs, device=self._device)
        has_begun = False

        def on_steps(num: int) -> None:
            nonlocal has_begun
            has_begun = True
            self._times.first_update()
            self._watch.advanced()
            tell(self._options.on_steps, batch_size, num)

        try:
            results = run_fleet(
                placed,
                specs,
                on_steps=on_steps,
                on_evaluation=lambda index, point: tell(self._options.on_evaluation, specs[index], point),
                checkpoint=checkpoint,
                checks=checks,
                deadline=self._options.deadline,
                micro_batch_size=micro_batch_size,
            )
            self._seconds_before += 0.0 if checkpoint is None else checkpoint.seconds_before
            is_alone = checks.are_one_by_one(batch_size)
            self._trained_with.update({spec.key: 1 if is_alone else len(specs) for spec in specs})
            return results
        except (UserError, *NOT_OF_MODELS):
            raise
        except BaseException as error:  # the user's module may raise anything
            if is_fault_of_gpu(error):  # no fault of these runs; their checkpoint stays
                raise _lost_gpu(error) from error
            if not is_out_of_memory(error):
                if checkpoint is not None and checkpoint.seconds_before > 0 and not has_begun:
                    report_unusable(checkpoint.path, error)
                    checkpoint.remove()
                    return self._results(specs)
                logger.warning(
                    "a fleet of %d runs failed, trying them one at a time: %s; %s",
                    len(specs),
                    message_of(error),
                    TIME_IN_TURN,
                )
                return train_in_turn([partial(self._result_alone, spec) for spec in specs], self._options.deadline)
        if len(specs) == 1:
            remedy = self._cut_smaller(specs[0])
            return self._results(specs) if remedy is None else [self._does_not_fit(specs[0], remedy)]
        if checkpoint is not None:
            checkpoint.remove()  # the halves have their own
        half = len(specs) // 2
        logger.warning("out of memory with %d runs; continuing with %d", len(specs), half)
        first = self._results(specs[:half])
        try:
            return first + self._results(specs[half:])
        except OutOfTime as stop:
            raise OutOfTime(results=(*first, *stop.results), is_saved=stop.is_saved) from None

    def _cut_smaller(self, spec: RunSpec) -> str | None:
        """Halve the micro-batches of runs like this one; return what else helps if that is not possible."""
        try:
            if self._micro_batch_sizes.shrink(spec, self.placed(spec), self.checks(spec)):
                return None
        except NotSeparable as reason:
            return str(reason)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        return "use a smaller batch or a device with more memory"

    def _result_alone(self, spec: RunSpec) -> RunResult:
        """Train one run by the reference; an error is recorded with that run and affects no other."""
        placed, checks = self.placed(spec), self.checks(spec)

        def on_steps(num: int) -> None:
            self._options.deadline.check()
            self._watch.advanced()
            tell(self._options.on_steps, spec.batch_size, num)

        try:
            return run_reference(
                placed,
                spec,
                on_steps=on_steps,
                on_evaluation=lambda point: tell(self._options.on_evaluation, spec, point),
                micro_batches=checks.micro_batches(placed, spec.batch_size, size=self.micro_batch_size(spec)),
            )
        except NOT_OF_MODELS:
            raise
        except BaseException as error:  # the user's module may raise anything
            if is_fault_of_gpu(error):
                raise _lost_gpu(error) from error
            if is_out_of_memory(error):
                remedy = self._cut_smaller(spec)
                return self._result_alone(spec) if remedy is None else self._does_not_fit(spec, remedy)
            return RunResult(outcome=Outcome.FAILED, error=f"{type(error).__name__}: {message_of(error)}")

    def _does_not_fit(self, spec: RunSpec, remedy: str) -> RunResult:
        self.is_out_of_memory = True
        return RunResult(
            outcome=Outcome.FAILED,
            error=f"one run of task {spec.task!r} at batch size {spec.batch_size} does not fit into the memory of "
            f"{self._device}; {remedy}",
        )


def _lost_gpu(error: BaseException) -> UserError:
    reason = str(error).strip().partition("\n")[0]
    return UserError(
        f"the GPU cannot be used by this process any more: {reason}; run it again, which continues from what is "
        "stored and from checkpoints. If it comes again, look for indices out of range in the model and the data"
    )


def provenance_on(device: torch.device) -> dict[str, Any]:
    """Return what a row says about where a run was trained."""
    on_gpu = device.type == "cuda" and torch.cuda.is_available()
    name = torch.cuda.get_device_name(device) if on_gpu else platform.processor() or platform.machine()
    threads = {"num_threads": torch.get_num_threads()} if device.type == "cpu" else {}
    return {"isotherm": __version__, "torch": torch.__version__, "device": f"{device.type}: {name}", **threads}
