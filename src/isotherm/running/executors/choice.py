"""Which executor trains a study, and what has to be there for it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from isotherm.core.checks import require_choice
from isotherm.errors import UserError
from isotherm.running.executors.contract import Executor
from isotherm.running.executors.local import LocalExecutor
from isotherm.running.executors.options import FleetOptions
from isotherm.running.executors.pool import PoolExecutor, can_fork, num_cores
from isotherm.tasks.task import Task

ExecutorName = Literal["local", "pool"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutorChoice:
    """Where fleets are trained; none of it changes their results.

    Args:
        name: of the executor; by default "local" for one worker and "pool" for several.
        device: "cpu" or "cuda".
        workers: processes that train, one fleet each.
    """

    name: str | None = None
    device: str = "cpu"
    workers: int | None = 1

    def __post_init__(self) -> None:
        if self.name is not None:
            require_choice("executor", self.name, get_args(ExecutorName))

    def executor(self, tasks: Mapping[tuple[str, str], Task], options: FleetOptions) -> Executor:
        """Return the executor, which has started its workers.

        Raises:
            UserError: it cannot do what it is asked for here.
        """
        name = self.name or ("local" if self.workers == 1 else "pool")
        if name == "local":
            self._check_local(options)
            return LocalExecutor(tasks, options, device=self.device)
        self._check_pool()
        return PoolExecutor(tasks, options, num_workers=num_cores() if self.workers is None else self.workers)

    def _check_local(self, options: FleetOptions) -> None:
        if self.workers not in (None, 1):
            raise UserError(f"the local executor trains in one process, not workers={self.workers}; use 'pool'")
        if options.run_timeout is not None:
            raise UserError(
                "a run timeout needs a worker that can be ended, and the local executor trains in this process; use "
                "--executor pool, in Python executor='pool', or leave the timeout out"
            )

    def _check_pool(self) -> None:
        if self.device != "cpu":
            raise UserError(
                f"several workers were asked for on {self.device!r} ({sys.platform}); they train on the CPU: "
                "use workers=1 here"
            )


def default_workers(device: str) -> int:
    """Return how many processes suit a device: one per core on a CPU where they can be forked, else this one."""
    return num_cores() if device == "cpu" and can_fork() else 1
