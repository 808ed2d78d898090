"""Fleets that wait for a worker, and what becomes of those whose worker was lost.

The rules. A fleet whose worker is lost is handed out once more, before any other: a worker may be killed by chance, or
by another program that took the memory. A fleet that is lost again is taken apart, and its runs are tried alone, each
once; a run that is lost alone has failed. Where the first three to end are lost and none is done, the fault is not of
single runs, and the rest of the fleet has failed with them. A machine that goes away is no fault of a fleet, and does
not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from isotherm.core.records import RunSpec

# Runs of a fleet that are lost one after another, with none done, before the rest is given up.
LOST_ALONE = 3
# How often a fleet may lose its machine; a fleet that outlives none of so many is given up like any other.
MOST_MACHINES = 20


@dataclass(eq=False, slots=True)
class _TakenApart:
    """The runs of a fleet that was lost twice."""

    num_lost: int = 0
    num_done: int = 0
    is_hopeless: bool = False


@dataclass(eq=False, kw_only=True, slots=True)
class Job:
    """A fleet on its way to a worker."""

    specs: list[RunSpec]
    num_lost: int = 0
    num_machines_lost: int = 0
    part_of: _TakenApart | None = field(default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenUp:
    """Runs that have failed, and why."""

    specs: tuple[RunSpec, ...]
    reason: str


class FleetQueue:
    """Fleets that wait; those at the end of the list are handed out first."""

    def __init__(self, fleets: Sequence[Sequence[RunSpec]]) -> None:
        self._waiting = [Job(specs=list(fleet)) for fleet in fleets]

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self) -> Job:
        """Return the next fleet to hand out."""
        return self._waiting.pop()

    def clear(self) -> None:
        """Hand out no more."""
        self._waiting.clear()

    def put_back(self, job: Job) -> None:
        """Let a fleet that no worker has begun wait again."""
        self._waiting.append(job)

    def done(self, job: Job) -> None:
        """Note that the results of a fleet are there."""
        if job.part_of is not None:
            job.part_of.num_done += 1

    def lost(self, job: Job, reason: str, *, is_machine: bool = False) -> list[GivenUp]:
        """Note that the worker of a fleet was lost; return the runs that have failed by that.

        Args:
            job: what the worker was training.
            reason: why it was lost.
            is_machine: the whole machine went away.
        """
        if is_machine and job.num_machines_lost < MOST_MACHINES:
            job.num_machines_lost += 1
            self._waiting.append(job)
            return []
        job.num_lost += 1
        if job.part_of is not None:
            return self._lost_alone(job, job.part_of, reason)
        if job.num_lost == 1:
            self._waiting.append(job)
            return []
        if len(job.specs) == 1:
            return [GivenUp(specs=tuple(job.specs), reason=reason)]
        whole = _TakenApart()
        self._waiting += [Job(specs=[spec], part_of=whole) for spec in reversed(job.specs)]
        return []

    def _lost_alone(self, job: Job, whole: _TakenApart, reason: str) -> list[GivenUp]:
        whole.num_lost += 1
        found = [GivenUp(specs=tuple(job.specs), reason=reason)]
        if whole.num_lost == LOST_ALONE and whole.num_done == 0:
            rest = [other for other in self._waiting if other.part_of is whole]
            self._waiting = [other for other in self._waiting if other.part_of is not whole]
            untried = tuple(spec for other in reversed(rest) for spec in other.specs)
            also = f"{reason} (not tried alone: {whole.num_lost} other runs of its fleet were lost like this)"
            found += [GivenUp(specs=untried, reason=also)] if untried else []
        return found
