"""One run after another, each over all processes that torchrun has started.

Every process draws the same examples, computes the micro-batches that are its own, and makes the step with the sums
over all. The first process leads: it says which run is next, yields the results, and is the one that prints, saves and
writes. The others follow it and end with it. The contract of `contract.py` holds but for one point: a process that dies
ends them all, as it is torchrun that starts processes; the same command goes on from the checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import NoReturn, Self

import torch

from isotherm.core.json import exact_json
from isotherm.core.launch import Launch
from isotherm.core.records import Outcome, RunResult, RunSpec
from isotherm.engine.data_parallel import FailedElsewhere, LostProcess, Processes
from isotherm.engine.deadline import Deadline, OutOfTime
from isotherm.engine.memory import is_out_of_memory
from isotherm.engine.micro_batch_check import NotSeparable
from isotherm.engine.micro_batches import MicroBatches, example_unit, largest_size
from isotherm.engine.placed_task import PlacedTask, checked_device
from isotherm.engine.reference import run_reference
from isotherm.engine.shared_saver import SharedSaver
from isotherm.errors import UserError
from isotherm.running.executors.fleet_times import FleetTimes, StoppedFleet, work_of_fleet
from isotherm.running.executors.local import ListenerError, LocalExecutor, provenance_on, tell
from isotherm.running.executors.micro_batch_sizes import MicroBatchSizes
from isotherm.running.executors.options import FleetOptions
from isotherm.running.stopping import Stopping
from isotherm.running.store import StoredRun
from isotherm.tasks.process_settings import settings_kept
from isotherm.tasks.raised import message_of
from isotherm.tasks.task import Task
from isotherm.version import __version__

# A process that says nothing for so long counts as lost, where no run timeout was given.
TIMEOUT_SECONDS = 600.0
# What a checkpoint says of how its run was trained; a fleet saves another state.
_HOW = ", shared by torchrun's processes,"


class TorchrunExecutor:
    """Computes every run with all processes that torchrun has started; those that follow end in the constructor.

    Args:
        tasks: by (data_id, model_id), as the specs name them.
        options: of the fleets, which are single runs.
        device: "cpu" or "cuda", where every process has the GPU of its own number.

    Raises:
        SystemExit: in a process that follows, once the first one has ended.
        UserError: the processes cannot meet, or are not alike.
    """

    def __init__(self, tasks: Mapping[tuple[str, str], Task], options: FleetOptions, *, device: str = "cpu") -> None:
        launch = Launch.find()
        assert launch is not None  # `check_launch` has seen to it
        self._options, self._times = options, FleetTimes(options.deadline)
        self._device = _own_device(device, launch)
        self._local = LocalExecutor(tasks, dataclasses.replace(options, checkpoints=None), device=self._device)
        shared_by = launch.num_local if self._device.type == "cpu" else 1
        self._sizes = MicroBatchSizes(options.micro_batch_size, shared_by=shared_by)
        self._is_in_step = True  # every process waits for the next run
        seconds = TIMEOUT_SECONDS if options.run_timeout is None else options.run_timeout
        self._processes = Processes.meeting(launch, self._device, seconds=seconds)
        try:
            self._check_alike(tasks)
            if launch.rank > 0:
                self._follow()
        except BaseException:
            self._processes.leave()
            raise

    def run(self, specs: Sequence[RunSpec]) -> Iterator[list[StoredRun]]:
        """Yield one run after another, the smallest work first.

        Raises:
            StoppedFleet: the deadline stopped a run, or let none start.
            UserError: a process is lost or was asked to stop, the model does not allow it, or a batch is too small.
        """
        with settings_kept("a model of this study"):
            sizes = {spec.key: self._size(spec) for spec in specs}  # refused before anything is trained, if at all
        for spec in sorted(specs, key=lambda spec: work_of_fleet([spec])):
            self._options.on_fleet([spec])
            self._times.start([spec], is_saved=self._options.checkpoints is not None)
            with self._no_loss():
                self._processes.sent(exact_json({"run": spec.to_json(), "size": sizes[spec.key]}).encode())
                try:
                    stored = self._train(spec, sizes[spec.key], self._options)
                except StoppedFleet:
                    if self._options.deadline.seconds_left < math.inf:
                        raise
                    raise UserError(
                        "a signal asked another process to stop, and all have; finished runs and checkpoints are kept: "
                        "run the same command again"
                    ) from None
            self._times.finish([spec])
            yield [stored]

    def close(self) -> None:
        """End the processes that follow; those that wait within a run fail with the end of this one."""
        if self._is_in_step:
            with contextlib.suppress(LostProcess):  # whoever is gone need not be told
                self._processes.sent()
        self._is_in_step = False
        self._processes.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- one run --------------------------------------------------------------------------------------------------

    def _train(self, spec: RunSpec, size: int, options: FleetOptions) -> StoredRun:
        """Train a run together with the other processes, in micro-batches of a size."""
        start, checkpoint = time.perf_counter(), None
        if options.checkpoints is not None:
            checkpoint = options.checkpoints.checkpoint([spec], device=self._device, how=_HOW)
        saver = SharedSaver(self._processes, checkpoint=checkpoint, deadline=options.deadline, device=self._device)
        with settings_kept(f"task {spec.task!r}"):
            result = self._result(spec, size, options, saver)
        seconds_before = 0.0 if checkpoint is None else checkpoint.seconds_before
        provenance = {
            **provenance_on(self._device),
            "seconds_per_run": time.perf_counter() - start + seconds_before,
            "fleet_size": 1,
            "micro_batch_size": size,
            "processes": self._processes.num,
        }
        return StoredRun(spec=spec, result=result, provenance=provenance)

    def _result(self, spec: RunSpec, size: int, options: FleetOptions, saver: SharedSaver) -> RunResult:
        """Return the result that all processes have found, or a failure where one of them has failed."""

        def on_steps(num: int) -> None:
            self._times.first_update()
            tell(options.on_steps, spec.batch_size, num)

        self._is_in_step = False
        try:
            cut = self._cut(spec, size)
            result = run_reference(
                self._local.placed(spec),
                spec,
                on_steps=on_steps,
                on_evaluation=lambda point: tell(options.on_evaluation, spec, point),
                micro_batches=cut if cut.is_whole else dataclasses.replace(cut, among=self._processes),
                saver=saver,
            )
            self._processes.meet()
        except LostProcess:
            raise
        except ListenerError as stop:
            raise stop.error from None
        except OutOfTime as stop:  # in all processes
            self._is_in_step = True
            raise StoppedFleet(is_saved=stop.is_saved) from None
        except FailedElsewhere as failure:
            result = RunResult(outcome=Outcome.FAILED, error=str(failure))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the user's module may raise anything
            result = RunResult(outcome=Outcome.FAILED, error=self._processes.tell_failure(_reason(error)))
        self._is_in_step = True
        return result

    def _size(self, spec: RunSpec) -> int:
        """Return how many examples of an update a process computes at once, once it is known that it can."""
        placed = self._local.placed(spec)
        size = shared_size(placed, spec, num=self._processes.num, at_most=self._sizes.size(spec, placed))
        self._cut(spec, size)
        return size

    def _cut(self, spec: RunSpec, size: int) -> MicroBatches:
        try:
            return self._local.checks(spec).micro_batches(self._local.placed(spec), spec.batch_size, size=size)
        except NotSeparable as reason:
            raise NotSeparable(
                f"task {spec.task!r}, batch size {spec.batch_size}, {self._processes.num} processes: {reason}"
            ) from reason

    # -- the others -----------------------------------------------------------------------------------------------

    def _check_alike(self, tasks: Mapping[tuple[str, str], Task]) -> None:
        """Refuse processes with other data, models or versions than the first one's."""
        own = exact_json([__version__, torch.__version__, sorted(tasks)]).encode()
        with self._no_loss():
            if self._processes.sent(own) != own:
                raise UserError(
                    self._processes.tell_failure(
                        f"process {self._processes.rank} of {self._processes.num} has other data, another model or "
                        "other versions than process 0; start all with the same command, files and packages"
                    )
                )
            try:
                self._processes.meet()
            except FailedElsewhere as failure:
                raise UserError(str(failure)) from None

    def _follow(self) -> NoReturn:
        """Compute what the first process says, until it says nothing more."""
        logging.getLogger("isotherm").setLevel(logging.ERROR)  # the first process says it
        with Stopping() as stopping, self._no_loss():
            options = dataclasses.replace(
                self._options.for_worker(), checkpoints=None, deadline=Deadline(stop=stopping.flag)
            )
            while message := self._processes.sent():
                content = json.loads(message)
                with contextlib.suppress(StoppedFleet):  # the first process stops too
                    self._train(RunSpec.from_json(content["run"]), content["size"], options)
        self._processes.leave()
        raise SystemExit(0)

    @contextlib.contextmanager
    def _no_loss(self) -> Iterator[None]:
        """Say what to do where another process is lost."""
        try:
            yield
        except LostProcess as loss:
            self._is_in_step = False
            raise UserError(
                f"process {self._processes.rank} of {self._processes.num} has lost another one, which has ended or is "
                f"silent ({loss}); finished runs are stored, and the same command goes on from there and from the "
                "last checkpoint. What another process says above may be the reason"
            ) from loss


def shared_size(placed: PlacedTask, spec: RunSpec, *, num: int, at_most: int) -> int:
    """Return the size of micro-batches of which each of `num` processes computes at least one.

    Raises:
        UserError: there are more processes than ghost batches, or than examples.
    """
    unit = example_unit(placed, spec.batch_size)
    if spec.batch_size // unit < num:
        what = "1 example" if unit == 1 else f"a ghost batch of {unit} examples"
        raise UserError(
            f"task {spec.task!r}, batch size {spec.batch_size}: {num} processes cannot share a batch, of which each "
            f"computes at least {what}; use at most {spec.batch_size // unit} processes (--nproc-per-node), or batch "
            f"sizes of at least {num * unit}"
        )
    return largest_size(placed, spec.batch_size, at_most=min(spec.batch_size // num, at_most))


def _reason(error: BaseException) -> str:
    remedy = "; use more processes or a smaller --micro-batch-size" if is_out_of_memory(error) else ""
    return f"{type(error).__name__}: {message_of(error)}{remedy}"


def _own_device(device: str, launch: Launch) -> torch.device:
    found = checked_device(device)
    if found.type != "cuda":
        return found
    if launch.local_rank >= torch.cuda.device_count():
        raise UserError(
            f"torchrun has started {launch.num_local} processes on a machine of {torch.cuda.device_count()} GPUs; use "
            f"--nproc-per-node {torch.cuda.device_count()}"
        )
    torch.cuda.set_device(launch.local_rank)
    return torch.device("cuda", launch.local_rank)
