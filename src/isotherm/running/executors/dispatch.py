"""Handing out fleets to workers of any kind: what is in training, what was lost, what makes no progress."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from isotherm.core.records import RunSpec
from isotherm.running.executors.fleet_queue import FleetQueue, GivenUp, Job
from isotherm.running.executors.fleet_times import StoppedFleet
from isotherm.running.executors.options import FleetOptions
from isotherm.running.store import StoredRun

logger = logging.getLogger("isotherm")

# Between two looks at what nobody reports: a deadline, and fleets without progress.
POLL_SECONDS = 0.5
# A fleet without an update for this long is warned of; after a deadline it is ended.
NO_PROGRESS_SECONDS = 600.0

# What a worker reports: "steps" and "evaluation" with the arguments of the listener, "warning" with a kind and a text,
# "done" with the runs, "stopped" with a `StoppedFleet`, "lost" with the reason, "machine lost" likewise, "unstarted",
# and "error" with what a user has to mend.
Kind = Literal["steps", "evaluation", "warning", "done", "stopped", "lost", "machine lost", "unstarted", "error"]


@dataclass(frozen=True, slots=True)
class Event:
    """What a worker reports of a fleet."""

    job: Job
    kind: Kind
    content: Any = None


class Workers(Protocol):
    """Whatever trains fleets one at a time; replaces those of its workers that are lost."""

    def has_room(self) -> bool:
        """Tell whether a worker is free."""

    def start(self, job: Job) -> None:
        """Hand a fleet to a free worker."""

    def events(self, timeout: float) -> Iterable[Event]:
        """Return what is reported, waiting at most so many seconds for the first."""

    def end(self, job: Job) -> None:
        """End the worker that trains a fleet; nothing more is reported of it."""

    def stop(self) -> None:
        """Ask all workers to write a checkpoint and stop."""

    def place(self, job: Job) -> str:
        """Return where a fleet is trained, in words."""


@dataclass(eq=False, slots=True)
class _InTraining:
    """What is known of a fleet in training."""

    since: float
    last_progress: float
    steps: dict[int, int] = field(default_factory=dict)  # told so far, by batch size
    is_warned: bool = False


class Dispatcher:
    """Hands out fleets and yields their results, by the rules of the contract.

    Args:
        workers: who trains them.
        options: of the fleets.
        failed: returns the row of a run that has failed for a reason.
    """

    def __init__(self, workers: Workers, options: FleetOptions, *, failed: Callable[[RunSpec, str], StoredRun]) -> None:
        self._workers, self._options, self._failed = workers, options, failed
        self._jobs: dict[Job, _InTraining] = {}
        self._stops: list[StoppedFleet] = []
        self._is_stopping = False
        self._logged: set[str] = set()

    def run(self, fleets: Sequence[Sequence[RunSpec]]) -> Iterator[list[StoredRun]]:
        """Yield the runs of every fleet as soon as it is done; those at the end of the list start first.

        Raises:
            StoppedFleet: the deadline stopped fleets; no other is in training any more.
        """
        queue = FleetQueue(fleets)
        while queue or self._jobs:
            self._pass_on_stop(queue)
            while queue and self._workers.has_room():
                self._start(queue.take())
            for event in self._workers.events(POLL_SECONDS):
                yield from self._heard(event, queue)
            for job in [job for job in self._jobs if self._is_overdue(job)]:
                yield from self._end(job, queue)
        if self._stops:
            stops, self._stops = self._stops, []
            raise StoppedFleet([run for s in stops for run in s.done], is_saved=any(s.is_saved for s in stops))

    def _start(self, job: Job) -> None:
        self._options.on_fleet(job.specs)
        now = time.monotonic()
        self._jobs[job] = _InTraining(since=now, last_progress=now)
        self._workers.start(job)

    def _pass_on_stop(self, queue: FleetQueue) -> None:
        """Hand out no more once time is up, and tell the workers where a flag asks for an end."""
        flag = self._options.deadline.stop
        is_asked = flag is not None and flag.is_set()
        if queue and (is_asked or self._options.deadline.seconds_left <= 0):
            queue.clear()
            self._stops.append(StoppedFleet())
        if is_asked and not self._is_stopping:
            self._is_stopping = True
            self._workers.stop()

    def _heard(self, event: Event, queue: FleetQueue) -> Iterator[list[StoredRun]]:
        job, content = event.job, event.content
        if event.kind == "warning":
            self._log(*content)
            return
        if job not in self._jobs:  # ended in the meantime
            return
        self._jobs[job].last_progress = time.monotonic()
        match event.kind:
            case "steps":
                batch_size, num = content
                told = self._jobs[job].steps
                told[batch_size] = told.get(batch_size, 0) + num
                self._options.on_steps(batch_size, num)
            case "evaluation":
                self._options.on_evaluation(*content)
            case "done":
                del self._jobs[job]
                queue.done(job)
                yield content
            case "stopped":
                del self._jobs[job]
                self._stops.append(content)
                queue.clear()
            case "unstarted":
                del self._jobs[job]
                queue.put_back(job)
            case "lost" | "machine lost":
                yield from self._lost(job, content, queue, is_machine=event.kind == "machine lost")
            case "error":
                raise content

    def _lost(self, job: Job, reason: str, queue: FleetQueue, *, is_machine: bool = False) -> Iterator[list[StoredRun]]:
        """Take back the progress of a fleet, and let the queue decide what becomes of it."""
        for batch_size, num in self._jobs.pop(job).steps.items():
            self._options.on_steps(batch_size, -num)
        given_up = queue.lost(job, reason, is_machine=is_machine)
        if self._is_stopping:
            queue.clear()
            self._stops.append(StoppedFleet())
        else:
            _say_lost(job, reason, given_up)
        for found in given_up:
            yield [self._failed(spec, found.reason) for spec in found.specs]

    def _is_overdue(self, job: Job) -> bool:
        """Tell whether a fleet has to be ended; warn of one without progress."""
        known, options = self._jobs[job], self._options
        seconds = time.monotonic() - known.last_progress
        if options.run_timeout is not None and seconds > options.run_timeout:
            return True
        if seconds > NO_PROGRESS_SECONDS and not known.is_warned:
            known.is_warned = True
            logger.warning("%s", no_progress(job.specs, seconds, where=self._workers.place(job)))
        return seconds > NO_PROGRESS_SECONDS and options.deadline.seconds_left < -NO_PROGRESS_SECONDS

    def _end(self, job: Job, queue: FleetQueue) -> Iterator[list[StoredRun]]:
        """End the worker of a fleet that makes no progress."""
        seconds = time.monotonic() - self._jobs[job].last_progress
        self._workers.end(job)
        if self._options.deadline.seconds_left <= 0:
            del self._jobs[job]
            queue.clear()
            self._stops.append(StoppedFleet())
            return
        yield from self._lost(job, f"no progress for {_time_text(seconds)}", queue)

    def _log(self, kind: str, text: str) -> None:
        """Log a worker's line, unless another worker has said the same or something of its kind."""
        if kind not in self._logged:
            self._logged.add(kind)
            logger.warning("%s", text)


def no_progress(specs: Sequence[RunSpec], seconds: float, *, where: str = "") -> str:
    """Return the sentence about a fleet that makes no progress."""
    place = f" ({where})" if where else ""
    return (
        f"no progress for {_time_text(seconds)}: {fleet_text(specs)}{place} has made no update; if the model hangs, "
        "stop and run again with --run-timeout MINUTES, which ends such fleets and goes on with the others"
    )


def fleet_text(specs: Sequence[RunSpec]) -> str:
    """Return a fleet in words."""
    runs = "one run" if len(specs) == 1 else f"a fleet of {len(specs)} runs"
    return f"{runs} of task {specs[0].task!r} at batch size {specs[0].batch_size}"


def _say_lost(job: Job, reason: str, given_up: Sequence[GivenUp]) -> None:
    if given_up:
        num = sum(len(found.specs) for found in given_up)
        what = f"{num} {'run has' if num == 1 else 'runs have'} failed by this, and the others go on"
    else:
        what = "it is tried again" if job.num_lost <= 1 else "its runs are tried one by one"
    logger.warning("%s was lost: %s; %s", fleet_text(job.specs), reason, what)


def _time_text(seconds: float) -> str:
    """Return a time in words.

    >>> _time_text(600), _time_text(60), _time_text(1.5)
    ('10 minutes', '1 minute', '1.5 seconds')
    """
    if seconds < 60:
        return f"{seconds:.2g} seconds"
    minutes = round(seconds / 60)
    return "1 minute" if minutes == 1 else f"{minutes} minutes"
