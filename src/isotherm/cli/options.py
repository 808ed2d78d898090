"""The options that several commands share."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

JsonOption = Annotated[
    Path | None,
    typer.Option("--json", metavar="PATH", help="Write the results as JSON; '-' writes to standard output."),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="PATH",
        help="Data folder, or gpt_text's file; default: $ISOTHERM_DATA, else ~/.cache/isotherm.",
    ),
]
StudyArgument = Annotated[
    str, typer.Argument(metavar="STUDY", help="A built-in study, a TOML file, or module:function.")
]
TaskArgument = Annotated[str, typer.Argument(metavar="TASK", help="A built-in task, or module:function.")]
StoreArgument = Annotated[
    str, typer.Argument(metavar="STORE", help="A store, or a study whose store is in this folder.")
]
StoreOption = Annotated[
    Path | None, typer.Option("--store", metavar="FILE", help="Store of the runs; default: <study>.sqlite.")
]
ResolutionOption = Annotated[
    str | None,
    typer.Option(
        "--resolution",
        metavar="HOW",
        help="Refine grids around their optima (adaptive) or not (paper); default: the study's.",
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", metavar="DEVICE", help="Train on cpu or cuda.")]
FleetSizeOption = Annotated[
    int | None,
    typer.Option("--fleet-size", metavar="N", min=1, help="Runs per fleet; chosen automatically by default."),
]
MicroBatchSizeOption = Annotated[
    int | None,
    typer.Option(
        "--micro-batch-size",
        metavar="N",
        min=1,
        help="Most examples of an update to compute at once; by default, as many as memory holds.",
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", min=1, help="Worker processes on the CPU; one per core by default."),
]
MinutesOption = Annotated[
    float | None,
    typer.Option(
        "--minutes",
        metavar="M",
        help="Stop after M minutes; run it again to go on. Default: as long as it takes.",
    ),
]
TrackOption = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="TRACKER",
        help="Tell every run to wandb, trackio, mlflow or tensorboard; may be given again for another.",
    ),
]
ExecutorOption = Annotated[
    str | None,
    typer.Option(
        "--executor",
        metavar="NAME",
        help="Where runs train: local, pool (processes here), ray, slurm or torchrun; default: pool or local.",
    ),
]
RunTimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--run-timeout",
        metavar="M",
        help="End a fleet without progress for M minutes, go on with the others; default: only warn.",
    ),
]
RayAddressOption = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        metavar="ADDRESS",
        help="Address of the Ray cluster; 'auto' for this machine's; by default Ray is started here.",
    ),
]
SlurmOption = Annotated[
    list[str] | None,
    typer.Option(
        "--slurm", metavar="KEY=VALUE", help="Parameter of Slurm's jobs, e.g. partition=gpu; may be repeated."
    ),
]
PartOption = Annotated[
    str | None,
    typer.Option(
        "--part",
        metavar="I/N",
        help="Run only this share of every round; merge the stores of all parts with isotherm merge.",
    ),
]
KnownOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--known",
        metavar="STORE",
        help="Store whose results count as known, such as the merged one of all parts; may be repeated.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="SEED", min=0, help="Seed of all random numbers.")]


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeOptions:
    """Where and how runs are trained; none of it changes their results."""

    device: DeviceOption = "cpu"
    workers: WorkersOption = None
    fleet_size: FleetSizeOption = None
    micro_batch_size: MicroBatchSizeOption = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutorOptions:
    """Which executor trains, how long it waits for a fleet, and which part it trains; none of it changes results."""

    executor: ExecutorOption = None
    ray_address: RayAddressOption = None
    slurm: SlurmOption = None
    run_timeout: RunTimeoutOption = None
    part: PartOption = None
    known: KnownOption = None

    def given(self) -> list[str]:
        """Return the names of the options that are not left at their defaults."""
        # An option that may be repeated is an empty list where it is not given.
        return [
            f"--{f.name.replace('_', '-')}" for f in dataclasses.fields(self) if getattr(self, f.name) not in (None, [])
        ]
