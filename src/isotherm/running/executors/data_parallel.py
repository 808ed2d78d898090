"""One run after another, each over all processes that torchrun has started.

Every process draws the same examples, computes the micro-batches that are its own, and makes the step with the sums
over all. The first process leads: it says which run is next, yields the results, and is the one that prints and writes.
The others follow it and end with it. A process that fails ends them all, as nobody else has its share of the run; this
is the one point where the contract of `contract.py` is not kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist

from isotherm.core.json import exact_json
from isotherm.core.launch import Launch
from isotherm.core.records import RunSpec
from isotherm.engine.data_parallel import Processes
from isotherm.engine.deadline import OutOfTime
from isotherm.engine.micro_batch_check import NotSeparable
from isotherm.engine.micro_batches import MicroBatches, example_unit, largest_size
from isotherm.engine.placed_task import PlacedTask, checked_device
from isotherm.engine.reference import run_reference
from isotherm.errors import UserError
from isotherm.running.executors.fleet_times import StoppedFleet, work_of_fleet
from isotherm.running.executors.local import LocalExecutor, provenance_on
from isotherm.running.executors.micro_batch_sizes import MicroBatchSizes
from isotherm.running.executors.options import FleetOptions
from isotherm.running.stopping import Stopping
from isotherm.running.store import StoredRun
from isotherm.tasks.raised import message_of
from isotherm.tasks.task import Task

# A process that says nothing for so long counts as lost, where no run timeout was given.
TIMEOUT_SECONDS = 600.0


class DataParallelExecutor:
    """Computes every run with all processes that torchrun has started; those that follow end in the constructor.

    Args:
        tasks: by (data_id, model_id), as the specs name them.
        options: of the fleets, which are single runs without checkpoints.
        device: "cpu" or "cuda", where every process has the GPU of its own number.

    Raises:
        SystemExit: in a process that follows, once the first one has ended.
    """

    def __init__(self, tasks: Mapping[tuple[str, str], Task], options: FleetOptions, *, device: str = "cpu") -> None:
        launch = Launch.find()
        assert launch is not None  # `check_launch` has seen to it
        self._launch, self._options = launch, options
        self._device = _own_device(device, launch)
        self._local = LocalExecutor(tasks, dataclasses.replace(options, checkpoints=None), device=self._device)
        self._sizes = MicroBatchSizes(options.micro_batch_size)
        self._known = frozenset(tasks)
        self._is_in_step = True  # every process waits for the next run
        self._is_open = True
        _join(self._device, seconds=options.run_timeout or TIMEOUT_SECONDS)
        if launch.rank > 0:
            self._follow()

    def run(self, specs: Sequence[RunSpec]) -> Iterator[list[StoredRun]]:
        """Yield one run after another, the smallest work first.

        Raises:
            StoppedFleet: the deadline stopped a run, or let none start.
            UserError: a process failed; or the model does not allow it, or the batch is too small.
        """
        for spec in sorted(specs, key=lambda spec: work_of_fleet([spec])):
            self._options.on_fleet([spec])
            if self._options.deadline.seconds_left <= 0:
                raise StoppedFleet
            self._tell(exact_json(spec.to_json()))
            try:
                stored = self._train(spec)
            except OutOfTime:
                raise StoppedFleet from None
            yield [stored]

    def close(self) -> None:
        """End the processes that follow; those that wait within a run fail with the end of this one."""
        if self._is_open and self._is_in_step:
            with contextlib.suppress(UserError):  # whoever is gone need not be told
                self._tell("")
        self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- one run --------------------------------------------------------------------------------------------------

    def _train(self, spec: RunSpec) -> StoredRun:
        placed = self._placed(spec)
        micro_batches = self._shared(spec, placed)
        start = time.perf_counter()
        self._is_in_step = False
        try:
            result = run_reference(
                placed,
                spec,
                on_steps=lambda num: self._options.on_steps(spec.batch_size, num),
                on_evaluation=lambda point: self._options.on_evaluation(spec, point),
                micro_batches=micro_batches,
            )
        except OutOfTime:  # in all processes
            self._is_in_step = True
            raise
        except (Exception, SystemExit) as error:  # the user's module may raise anything
            raise self._failure(spec, error) from error
        self._is_in_step = True
        provenance = {
            **provenance_on(self._device),
            "seconds_per_run": time.perf_counter() - start,
            "fleet_size": 1,
            "micro_batch_size": micro_batches.size,
            "processes": self._launch.num,
        }
        return StoredRun(spec=spec, result=result, provenance=provenance)

    def _placed(self, spec: RunSpec) -> PlacedTask:
        if (spec.data_id, spec.model_id) not in self._known:
            raise UserError(
                f"process {self._launch.rank} of {self._launch.num} has other data or another model than process 0 for "
                f"task {spec.task!r}; start all with the same command, files and versions"
            )
        return self._local.placed(spec)

    def _shared(self, spec: RunSpec, placed: PlacedTask) -> MicroBatches:
        """Return the micro-batches of a run, of which this process computes its share.

        Raises:
            NotSeparable: the model mixes the examples of a batch.
            UserError: there are more processes than parts.
        """
        num, batch_size = self._launch.num, spec.batch_size
        if num == 1:
            return MicroBatches.whole(batch_size)
        size = largest_size(placed, batch_size, at_most=min(batch_size // num, self._sizes.size(spec, placed)))
        if batch_size // size < num:
            unit = example_unit(placed, batch_size)
            raise UserError(
                f"task {spec.task!r}, batch size {batch_size}: a batch is {batch_size // size} parts that are computed "
                f"whole (ghost batches of {unit}), too few for {num} processes: use a larger batch or fewer processes"
            )
        try:
            cut = self._local.checks(spec).micro_batches(placed, batch_size, size=size)
        except NotSeparable as reason:
            raise NotSeparable(f"task {spec.task!r}, batch size {batch_size}: {reason}") from reason
        return dataclasses.replace(
            cut, among=Processes(rank=self._launch.rank, num=num, deadline=self._options.deadline)
        )

    def _failure(self, spec: RunSpec, error: BaseException) -> UserError:
        return UserError(
            f"process {self._launch.rank} of {self._launch.num} ended the run of task {spec.task!r}, batch size "
            f"{spec.batch_size}, seed {spec.seed}: {type(error).__name__}: {message_of(error)}; where another process "
            "says why it failed, that came first. Finished runs are stored: mend it and run the same command again"
        )

    # -- who says what is next ------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Compute what the first process says, until it says nothing more."""
        logging.getLogger("isotherm").setLevel(logging.ERROR)  # the first process says it
        with Stopping():  # the first process decides when to stop
            while text := self._heard():
                self._compute(RunSpec.from_json(json.loads(text)))
        self._leave()
        raise SystemExit(0)

    def _compute(self, spec: RunSpec) -> None:
        self._placed(spec)
        try:
            self._train(spec)
        except OutOfTime:  # the first process stops too
            return
        except UserError:
            if not self._is_in_step:
                raise  # what is refused before the first update, the first process refuses too, and says it

    def _tell(self, text: str) -> None:
        """Send a text to those that follow."""
        content = torch.tensor(list(text.encode()), dtype=torch.uint8, device=self._device)
        self._broadcast(torch.tensor([len(content)], device=self._device))
        if len(content):
            self._broadcast(content)

    def _heard(self) -> str:
        """Return the text that the first process sends."""
        length = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._broadcast(length)
        content = torch.zeros(int(length), dtype=torch.uint8, device=self._device)
        if len(content):
            self._broadcast(content)
        return bytes(content.tolist()).decode()

    def _broadcast(self, tensor: torch.Tensor) -> None:
        try:
            dist.broadcast(tensor, src=0)
        except RuntimeError as error:
            self._is_in_step = False
            raise UserError(
                f"process {self._launch.rank} of {self._launch.num} has lost another one: {message_of(error)}; "
                "finished runs are stored: run the same command again"
            ) from error

    def _leave(self) -> None:
        if self._is_open:
            self._is_open = False
            if self._is_in_step or self._device.type == "cpu":  # NCCL would wait for what cannot come
                dist.destroy_process_group()


def _own_device(device: str, launch: Launch) -> torch.device:
    found = checked_device(device)
    if found.type != "cuda":
        return found
    if launch.local_rank >= torch.cuda.device_count():
        raise UserError(
            f"torchrun has started more processes than the {torch.cuda.device_count()} GPUs here; use "
            f"--nproc-per-node {torch.cuda.device_count()}"
        )
    torch.cuda.set_device(launch.local_rank)
    return torch.device("cuda", launch.local_rank)


def _join(device: torch.device, *, seconds: float) -> None:
    """Meet the other processes, where torchrun's variables say."""
    options: dict[str, Any] = {"device_id": device} if device.type == "cuda" else {}
    try:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo", timeout=timedelta(seconds=seconds), **options
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(f"the processes that torchrun started cannot meet: {message_of(error)}") from error
