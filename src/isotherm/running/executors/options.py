"""What an executor is told about fleets, the same for every executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from isotherm.core.checks import is_whole
from isotherm.core.records import CurvePoint, RunSpec
from isotherm.engine.deadline import Deadline
from isotherm.errors import UserError
from isotherm.running.executors.checkpoints import CheckpointFolder


def _ignore(*_: object) -> None:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetOptions:
    """The size of fleets, their checkpoints, and the callbacks during training.

    Args:
        fleet_size: runs per fleet; chosen automatically by default.
        micro_batch_size: most examples of an update that are computed at once; chosen automatically by default.
        checkpoints: where long fleets save their state, to continue from after a kill; runs that are trained one at a
            time have none. Whoever stores the results removes it.
        deadline: when training has to end; none by default.
        run_timeout: seconds without an update after which a worker is ended and its fleet counts as lost; by default
            a fleet without progress is only warned of.
        on_fleet: called in the process that hands out fleets, with the runs of each fleet before it is trained.
        on_steps: called from time to time with the batch size and the number of run-updates made.
        on_evaluation: called with a run's spec and its scores on the test set during training.
    """

    fleet_size: int | None = None
    micro_batch_size: int | None = None
    checkpoints: CheckpointFolder | None = None
    deadline: Deadline = field(default_factory=Deadline)
    run_timeout: float | None = None
    on_fleet: Callable[[Sequence[RunSpec]], None] = _ignore
    on_steps: Callable[[int, int], None] = _ignore
    on_evaluation: Callable[[RunSpec, CurvePoint], None] = _ignore

    def for_worker(self) -> FleetOptions:
        """Return what a worker needs to know: listeners and deadline are of this process."""
        return replace(self, deadline=Deadline(), on_fleet=_ignore, on_steps=_ignore, on_evaluation=_ignore)

    def __post_init__(self) -> None:
        if self.run_timeout is not None and not self.run_timeout > 0:
            raise UserError(
                f"run_timeout={self.run_timeout:g} is no time; give the minutes after which a fleet without progress "
                "is ended, or leave it out"
            )
        for name in ("fleet_size", "micro_batch_size"):
            value = getattr(self, name)
            if value is not None and (not is_whole(value) or value < 1):
                raise UserError(f"{name}={value} is not a positive whole number; leave it out for an automatic choice")
