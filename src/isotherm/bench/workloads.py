"""The workloads: a network at a batch size and a number of runs, with target speeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from isotherm.core.records import Precision, RunSpec
from isotherm.errors import UserError, nearest

Unit = Literal["run-steps/s", "images/s"]
MOMENTUM = 0.9
STUDY_PEERS = ("plain loop", "one process per core")


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A target speed, shown next to the measured one and never enforced.

    `of` names the quantity: "ratio" is ours over the plain loop, "ours" our speed in the row's unit, and
    "fraction_of_ceiling" our FLOP per second over those of a large matmul.
    """

    of: Literal["ratio", "ours", "fraction_of_ceiling"]
    value: float

    def text(self, unit: str) -> str:
        """Return the target for display.

        >>> Target(of="ratio", value=25.0).text("run-steps/s"), Target(of="ours", value=4e4).text("run-steps/s")
        ('25x plain', '40,000 run-steps/s')
        """
        if self.of == "ratio":
            return f"{self.value:g}x plain"
        return f"{self.value:,.0f} {unit}" if self.of == "ours" else f"{self.value:.0%} of ceiling"


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Runs of one task at one batch size, `num_seeds` seeds at each of `num_rates` learning rates.

    The largest effective learning rate is `rate`, and each further one is half the one before: small enough that no run
    diverges on synthetic data. `l2` is the task's by default.
    """

    task: str
    device: Literal["cpu", "cuda"]
    batch_size: int
    num_seeds: int
    num_rates: int
    rate: float
    unit: Unit = "run-steps/s"
    precision: Precision = "float32"
    l2: float | None = None
    target: Target | None = None

    @property
    def name(self) -> str:
        """The name that selects all workloads of the task."""
        return self.task

    @property
    def label(self) -> str:
        """The name that selects this workload."""
        precision = f":{self.precision}" if self.device == "cuda" and self.precision != "mixed" else ""
        return f"{self.task}:{self.batch_size}{precision}"

    @property
    def num_runs(self) -> int:
        """Number of runs trained at once."""
        return self.num_seeds * self.num_rates

    @property
    def units_per_step(self) -> int:
        """Units of the row per update of one run."""
        return self.batch_size if self.unit == "images/s" else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyWorkload:
    """All updates of a study's planned runs, extrapolated from windows at each of its batch sizes."""

    name: str
    task: str
    device: Literal["cpu", "cuda"] = "cpu"
    target: Target | None = None

    @property
    def label(self) -> str:
        """The name that selects it."""
        return self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A study's updates at one batch size: how to time them, and how many run-steps they are."""

    workload: Workload
    run_steps: int


AnyWorkload = Workload | StudyWorkload


def _mlp(batch_size: int, *, target: float) -> Workload:
    return Workload(
        task="mlp_mnist1d",
        device="cpu",
        batch_size=batch_size,
        num_seeds=5,
        num_rates=11,
        rate=2.0**-3,
        target=Target(of="ratio", value=target),
    )


def _never_slower(task: str, batch_size: int) -> Workload:
    """Return a workload of a network that may gain nothing from company on a CPU, and must not lose by it."""
    target = Target(of="ratio", value=1.0)
    return Workload(
        task=task, device="cpu", batch_size=batch_size, num_seeds=4, num_rates=4, rate=2.0**-6, target=target
    )


def _on_gpu(
    task: str,
    batch_size: int,
    runs: tuple[int, int],
    rate: float,
    target: Target,
    unit: Unit = "run-steps/s",
    precision: Precision = "mixed",
) -> Workload:
    return Workload(
        task=task,
        device="cuda",
        batch_size=batch_size,
        num_seeds=runs[0],
        num_rates=runs[1],
        rate=rate,
        unit=unit,
        precision=precision,
        target=target,
    )


WORKLOADS: tuple[AnyWorkload, ...] = (
    _mlp(8, target=25.0),
    _mlp(32, target=12.0),
    _mlp(128, target=5.0),
    StudyWorkload(name="quickstart", task="mlp_mnist1d", target=Target(of="ratio", value=12.0)),
    _never_slower("gpt_text", 16),
    _never_slower("gpt", 8),
    _never_slower("cnn", 16),
    _on_gpu("autoencoder_mnist", 64, (7, 5), 0.04, Target(of="ours", value=40_000)),
    _on_gpu("autoencoder_mnist", 4096, (7, 5), 0.04, Target(of="fraction_of_ceiling", value=0.45)),
    _on_gpu("lstm_ptb", 64, (7, 3), 1.0, Target(of="ours", value=1_200)),
    _on_gpu("wrn16x4_cifar10", 64, (6, 4), 0.25, Target(of="ours", value=120_000), "images/s"),
    _on_gpu("wrn16x4_cifar10", 1024, (3, 1), 0.25, Target(of="ours", value=150_000), "images/s"),
    _on_gpu("wrn16x4_cifar10", 8192, (1, 1), 0.25, Target(of="ours", value=150_000), "images/s"),
    _on_gpu("wrn16x4_skipinit_cifar10", 64, (6, 4), 0.125, Target(of="ours", value=120_000), "images/s"),
    _on_gpu("wrn28x10_cifar100", 128, (2, 2), 0.25, Target(of="fraction_of_ceiling", value=0.45), "images/s"),
    _on_gpu("gpt", 64, (6, 4), 0.04, Target(of="ours", value=4_000)),
    _on_gpu("cnn", 64, (6, 4), 0.04, Target(of="ours", value=10_000)),
    _on_gpu("cnn", 64, (6, 4), 0.04, Target(of="ours", value=4_000), precision="float32"),
    _on_gpu("cnn", 64, (6, 4), 0.04, Target(of="ours", value=4_000), precision="tf32"),
)


def chosen_workloads(names: Sequence[str], *, device: str) -> list[AnyWorkload]:
    """Return the workloads of a device, all or by name: `mlp_mnist1d` means all its batch sizes, `mlp_mnist1d:8` one.

    >>> [workload.label for workload in chosen_workloads(["mlp_mnist1d:8", "quickstart"], device="cpu")]
    ['mlp_mnist1d:8', 'quickstart']
    """
    here = [workload for workload in WORKLOADS if workload.device == device]
    for name in names:
        if any(name in (workload.name, workload.label) for workload in here):
            continue
        elsewhere = next((workload.device for workload in WORKLOADS if name in (workload.name, workload.label)), None)
        if elsewhere is not None:
            raise UserError(
                f"workload {name!r} is not timed on {device}; use --device {elsewhere}, or another workload"
            )
        known = {known for workload in here for known in (workload.name, workload.label)}
        raise UserError(f"unknown workload {name!r} on {device}; {nearest(name, known)}")
    return [workload for workload in here if not names or {workload.name, workload.label} & set(names)]


def study_parts(workload: StudyWorkload, specs: Sequence[RunSpec]) -> list[Part]:
    """Return a study's planned runs by batch size.

    The speed at each size is measured with as many runs as the study trains there with one number of updates.
    """
    parts = []
    for batch_size in sorted({spec.batch_size for spec in specs}):
        here = [spec for spec in specs if spec.batch_size == batch_size]
        seeds = len({spec.seed for spec in here})
        together = max(sum(s.num_steps == num for s in here) for num in {s.num_steps for s in here})
        timed = Workload(
            task=workload.task,
            device=workload.device,
            batch_size=batch_size,
            num_seeds=seeds,
            num_rates=max(1, together // seeds),
            rate=2.0**-3,
            precision=here[0].precision,
            l2=here[0].l2,
        )
        parts.append(Part(workload=timed, run_steps=sum(spec.num_steps for spec in here)))
    return parts


def workload_entry(workload: AnyWorkload) -> dict[str, object]:
    """Return a workload as plain values, for a list."""
    return {
        "workload": workload.name,
        "label": workload.label,
        "device": workload.device,
        "batch_size": workload.batch_size if isinstance(workload, Workload) else None,
        "num_runs": workload.num_runs if isinstance(workload, Workload) else None,
        "unit": workload.unit if isinstance(workload, Workload) else "run-steps/s",
        "target": None if workload.target is None else dataclasses.asdict(workload.target),
    }
