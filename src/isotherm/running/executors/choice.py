"""Which executor trains a study, and what has to be there for it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from isotherm.core.checks import require_choice
from isotherm.core.launch import check_launch
from isotherm.core.machine import can_fork, num_cores
from isotherm.errors import UserError
from isotherm.running.executors.contract import Executor
from isotherm.running.executors.local import LocalExecutor
from isotherm.running.executors.options import FleetOptions
from isotherm.running.executors.pool import PoolExecutor
from isotherm.tasks.task import Task

ExecutorName = Literal["local", "pool", "ray", "slurm", "torchrun"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutorChoice:
    """Where fleets are trained; none of it changes their results.

    Args:
        name: of the executor; by default "local" for one worker and "pool" for several.
        device: "cpu" or "cuda".
        workers: processes that train, one fleet each; by default as many as suit the executor.
        ray_address: of a Ray cluster; "auto" for the one of this machine, None to start Ray here.
        slurm: parameters of Slurm's jobs, by submitit's names.
    """

    name: str | None = None
    device: str = "cpu"
    workers: int | None = None
    ray_address: str | None = None
    slurm: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name is not None:
            require_choice("executor", self.name, get_args(ExecutorName))
        for given, name in ((self.ray_address, "ray"), (self.slurm, "slurm")):
            if given and self.name != name:
                raise UserError(f"{given!r} is for the {name} executor; choose it with --executor {name}")

    def executor(
        self, tasks: Mapping[tuple[str, str], Task], options: FleetOptions, *, folder: Path | None = None
    ) -> Executor:
        """Return the executor, which has started its workers.

        Args:
            tasks: by (data_id, model_id).
            options: of the fleets.
            folder: where the machines of a Slurm cluster can meet; None where results are kept in memory.

        Raises:
            UserError: it cannot do what it is asked for here.
        """
        check_launch(self.name)
        name = self.name or ("local" if self.workers in (None, 1) else "pool")
        if name == "local":
            self._check_local(options)
            return LocalExecutor(tasks, options, device=self.device)
        if name == "ray":
            from isotherm.running.executors.ray import RayExecutor

            return RayExecutor(tasks, options, address=self.ray_address, device=self.device, num_workers=self.workers)
        if name == "slurm":
            return self._slurm(tasks, options, folder)
        if name == "torchrun":
            return self._torchrun(tasks, options)
        self._check_pool()
        return PoolExecutor(tasks, options, num_workers=num_cores() if self.workers is None else self.workers)

    def _slurm(self, tasks: Mapping[tuple[str, str], Task], options: FleetOptions, folder: Path | None) -> Executor:
        from isotherm.running.executors.slurm import SlurmExecutor

        if folder is None:
            raise UserError("the slurm executor needs a store on a disk that all machines share; name one with store=")
        return SlurmExecutor(
            tasks, options, folder=folder, device=self.device, num_workers=self.workers, parameters=self.slurm
        )

    def _torchrun(self, tasks: Mapping[tuple[str, str], Task], options: FleetOptions) -> Executor:
        from isotherm.running.executors.torchrun import TorchrunExecutor

        if self.workers is not None:
            raise UserError(
                f"workers={self.workers}: torchrun starts the processes that share a run; leave it out and use "
                "torchrun --nproc-per-node N"
            )
        if options.fleet_size not in (None, 1):
            raise UserError(
                f"fleet_size={options.fleet_size}: torchrun's processes share one run after another; leave it out, or "
                "train fleets with --executor local or pool"
            )
        return TorchrunExecutor(tasks, options, device=self.device)

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
