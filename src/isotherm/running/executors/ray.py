"""Fleets on a Ray cluster: one actor per GPU or core, which lives as long as the executor.

Ray's workers are not reused between tasks that hold a GPU, so a task per fleet would place the data and compile the
programs again and again; an actor keeps both. The tasks go into the object store once, and every machine fetches them
once. An actor trains one fleet at a time, so no more is in flight than there are actors. Which fleet is trained where,
and what becomes of a lost one, is decided by the driver, which alone writes the store.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any, Self

import torch

from isotherm.core.records import RunSpec
from isotherm.errors import UserError
from isotherm.running.executors.dispatch import Dispatcher, Event
from isotherm.running.executors.fleet_queue import Job
from isotherm.running.executors.local import LocalExecutor
from isotherm.running.executors.options import FleetOptions
from isotherm.running.executors.packing import PackedTasks
from isotherm.running.executors.remote import RemoteTrainer, versions
from isotherm.running.store import StoredRun
from isotherm.tasks.task import Task

logger = logging.getLogger("isotherm")

# Between two questions to an actor what it has done so far: soon after it has begun a fleet, then less often.
FIRST_NEWS_SECONDS, NEWS_SECONDS = 0.25, 2.0
# After so long without a single actor, the user is told what is waited for.
WAITING_SECONDS = 60.0
# For an answer from the address of a cluster.
LISTENER_SECONDS = 10.0
# Actors in a row that die before they are ready.
MOST_STILLBORN = 3
# Of an actor: one trains, the others answer questions.
_THREADS = 3


class RayExecutor:
    """Trains fleets on a Ray cluster; `contract.Executor` says what that includes.

    Args:
        tasks: by (data_id, model_id), as the specs name them.
        options: of the fleets. Checkpoints are written where the store's folder is on a disk that the machines share.
        address: of the cluster; "auto" for the one of this machine; None starts Ray here.
        device: "cpu" or "cuda".
        num_workers: actors; by default one for every GPU or core of the cluster.
        trainer: class of the actors.
    """

    def __init__(
        self,
        tasks: Mapping[tuple[str, str], Task],
        options: FleetOptions | None = None,
        *,
        address: str | None = None,
        device: str = "cpu",
        num_workers: int | None = None,
        trainer: type[Any] = RemoteTrainer,
    ) -> None:
        options = options or FleetOptions()
        self._ray = _ray()
        self._has_started_ray = not self._ray.is_initialized()
        if self._has_started_ray:
            _connect(self._ray, address)
        self._planner = LocalExecutor(tasks, options, device=torch.device(device))  # this machine may have no GPU
        self._device = device
        try:
            self._actors = _Actors(self._ray, tasks, options, device=device, num=num_workers, trainer=trainer)
        except BaseException:
            self._disconnect()
            raise
        self._dispatcher = Dispatcher(self._actors, options, failed=self._planner.failed)

    def run(self, specs: Sequence[RunSpec]) -> Iterator[list[StoredRun]]:
        """Yield the finished runs of every fleet as soon as it is done; the longest fleets start first.

        Raises:
            StoppedFleet: the deadline stopped fleets; no other is in training any more.
        """
        on_cpu = self._device == "cpu"
        return self._dispatcher.run(self._planner.fleets(specs) if on_cpu else self._actors.fleets(specs))

    def close(self) -> None:
        """End the actors; of a fleet in training only its checkpoint is left."""
        self._actors.close()
        self._disconnect()

    def _disconnect(self) -> None:
        if self._has_started_ray:
            self._ray.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ray() -> ModuleType:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing leaves the cluster
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray does from now on with CPU actors
    try:
        import ray
    except ImportError as error:
        raise UserError("the ray executor needs Ray; install it with pip install 'isotherm[ray]'") from error
    return ray


def _connect(ray: ModuleType, address: str | None) -> None:
    try:
        _require_listener(address)
        ray.init(address=address, include_dashboard=False if address is None else None, log_to_driver=False)
    except (OSError, ValueError, RuntimeError) as error:
        place = address or os.environ.get("RAY_ADDRESS")
        raise UserError(
            f"there is no Ray cluster at {place!r}: {str(error).partition(chr(10))[0]}; start one with "
            "`ray start --head`, give its address, or leave --ray-address and RAY_ADDRESS out to use this machine alone"
        ) from error


def _require_listener(address: str | None) -> None:
    """Fail soon where nobody listens; Ray itself goes on trying for minutes.

    Raises:
        OSError: nobody does.
    """
    given = os.environ.get("RAY_ADDRESS") if address in (None, "auto") else address
    host, _, port = (given or "").rpartition("://")[2].rpartition(":")
    if host and port.isascii() and port.isdecimal():  # anything else is Ray's to read
        socket.create_connection((host.strip("[]"), min(int(port), 65_535)), timeout=LISTENER_SECONDS).close()


@dataclass(eq=False, slots=True)
class _Actor:
    """An actor, what it was asked last, and what it is doing."""

    handle: Any
    ready: Any  # the answer to `about`; None once it came
    about: Mapping[str, str] | None = None
    job: Job | None = None
    result: Any = None
    news: Any = None
    asked_at: float = 0.0
    ask_after: float = FIRST_NEWS_SECONDS


class _Actors:
    """The actors of a cluster, for the dispatcher; one that dies is replaced."""

    def __init__(
        self,
        ray: ModuleType,
        tasks: Mapping[tuple[str, str], Task],
        options: FleetOptions,
        *,
        device: str,
        num: int | None,
        trainer: type[Any],
    ) -> None:
        self._ray, self._options, self._device = ray, options, device
        resource = "CPU" if device == "cpu" else "GPU"
        available = int(ray.cluster_resources().get(resource, 0))
        if not available:
            raise UserError(f"the Ray cluster has no {resource}; add machines that have, or use another --device")
        self._num = num or available
        self._num_machines = max(1, sum(node["Alive"] for node in ray.nodes()))
        resources = {"num_cpus": 1} if device == "cpu" else {"num_cpus": 1, "num_gpus": 1}
        self._class = ray.remote(trainer).options(**resources, max_restarts=0, max_concurrency=_THREADS)
        self._tasks = ray.put(PackedTasks(tasks))
        self._num_stillborn = 0
        self._alone_since = time.monotonic()
        self._is_closed = False
        self.actors = [self._started() for _ in range(self._num)]

    def _started(self) -> _Actor:
        sharing = -(-self._num // self._num_machines) if self._device == "cpu" else 1
        handle = self._class.remote(self._tasks, self._options.for_worker(), device=self._device, num_sharing=sharing)
        return _Actor(handle, handle.about.remote())

    def fleets(self, specs: Sequence[RunSpec]) -> list[list[RunSpec]]:
        """Return the runs in fleets that suit the cluster's machines, as the first actor that is ready says."""
        while True:
            for _ in self.events(1.0):
                pass
            for actor in [actor for actor in self.actors if actor.about is not None]:
                try:
                    found: list[list[RunSpec]] = self._ray.get(actor.handle.fleets.remote(list(specs)))
                    return found
                except self._ray.exceptions.RayActorError as error:
                    self._replace(actor, error)

    # -- what the dispatcher asks for -----------------------------------------------------------------------------

    def has_room(self) -> bool:
        return any(actor.about is not None and actor.job is None for actor in self.actors)

    def start(self, job: Job) -> None:
        actor = next(actor for actor in self.actors if actor.about is not None and actor.job is None)
        actor.job, actor.asked_at, actor.ask_after = job, time.monotonic(), FIRST_NEWS_SECONDS
        actor.result = actor.handle.train.remote(job.specs, self._options.deadline.seconds_left)

    def events(self, timeout: float) -> Iterator[Event]:
        self._ask_for_news()
        waiting: dict[Any, _Actor] = {}
        for actor in self.actors:
            waiting |= {ref: actor for ref in (actor.ready, actor.result, actor.news) if ref is not None}
        some, _ = self._ray.wait(list(waiting), num_returns=1, timeout=timeout)
        found, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0) if some else ([], None)
        for ref in found:
            if waiting[ref] in self.actors:  # not replaced in the meantime
                yield from self._answered(waiting[ref], ref)
        self._say_what_is_waited_for()

    def _ask_for_news(self) -> None:
        now = time.monotonic()
        for actor in self.actors:
            if actor.job is not None and actor.news is None and now - actor.asked_at >= actor.ask_after:
                actor.asked_at, actor.ask_after = now, min(2 * actor.ask_after, NEWS_SECONDS)
                actor.news = actor.handle.news.remote()

    def _answered(self, actor: _Actor, ref: Any) -> Iterator[Event]:
        try:
            answer = self._ray.get(ref)
        except self._ray.exceptions.RayActorError as error:
            yield from self._died(actor, error)
            return
        if ref == actor.ready:
            actor.ready, actor.about, self._num_stillborn = None, answer, 0
            _check_versions(answer, versions())
            return
        job = actor.job
        if ref == actor.news:
            actor.news = None
            if job is not None:
                yield from (Event(job, kind, content) for kind, content in answer)
            return
        kind, content, news = answer
        assert job is not None
        actor.job, actor.result = None, None
        yield from (Event(job, said, what) for said, what in news)
        if kind == "lost":  # it has no memory left
            self._replace(actor)
        yield Event(job, kind, content)

    def _died(self, actor: _Actor, error: Exception) -> Iterator[Event]:
        job, is_machine = actor.job, _is_of_machine(error)
        self._num_stillborn += actor.about is None and not is_machine
        if self._num_stillborn > MOST_STILLBORN:
            raise UserError(
                f"Ray's workers end before they are ready: {_reason(error)}; check that the machines have the same "
                "Isotherm and PyTorch as this one"
            ) from error
        self._replace(actor, error)
        if job is not None:
            yield Event(job, "machine lost" if is_machine else "lost", f"its Ray actor ended ({_reason(error)})")

    def _replace(self, actor: _Actor, error: Exception | None = None) -> None:
        self._ray.kill(actor.handle)
        self.actors.remove(actor)
        self.actors.append(self._started())
        if not any(other.about is not None for other in self.actors):
            self._alone_since = time.monotonic()

    def _say_what_is_waited_for(self) -> None:
        if any(actor.about is not None for actor in self.actors):
            self._alone_since = time.monotonic()
        elif time.monotonic() - self._alone_since > WAITING_SECONDS:
            self._alone_since = time.monotonic()
            logger.warning(
                "no worker of the Ray cluster is ready; waiting for one with a free %s (`ray status` shows what there "
                "is)",
                "core" if self._device == "cpu" else "GPU",
            )

    def end(self, job: Job) -> None:
        self._replace(next(actor for actor in self.actors if actor.job is job))

    def stop(self) -> None:
        for actor in self.actors:
            if actor.about is not None:
                actor.handle.stop.remote()

    def place(self, job: Job) -> str:
        actor = next(actor for actor in self.actors if actor.job is job)
        return f"on {actor.about['host']}" if actor.about else "on Ray"

    def close(self) -> None:
        """End all actors at once."""
        for actor in self.actors:
            self._ray.kill(actor.handle)
        self.actors.clear()
        self._tasks = None


def _is_of_machine(error: Exception) -> bool:
    """Tell whether an actor died with its machine; Ray has no error code for it, only this sentence."""
    return "its node has died" in str(error)


def _reason(error: Exception) -> str:
    """Return the sentences of a Ray error that say why; the first lines tell the actor's name."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "dead because" in line or "out of memory" in line]
    line = (telling or lines or [type(error).__name__])[-1]
    return line.partition(" Some common causes")[0][:300]


def _check_versions(there: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Refuse a machine whose numbers may differ from those of the others."""
    for name, version in here.items():
        if there[name] != version:
            raise UserError(
                f"the machine {there['host']} has {name} {there[name]}, and this one {version}; "
                "install the same versions everywhere"
            )
