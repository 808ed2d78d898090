"""One cell: a task at one batch size and learning rate, all its seeds, as a study that can be run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from isotherm.cli.cell_options import NUM_EVALUATIONS, CellSettings
from isotherm.core.budget import updates_per_pass
from isotherm.core.launch import follows
from isotherm.core.optimizers import decays_weights
from isotherm.core.rates import tidy
from isotherm.core.records import Outcome, Precision, RunSpec
from isotherm.core.schedule import Schedule
from isotherm.core.temperature import temperature
from isotherm.engine.placed_task import checked_device
from isotherm.report.files import file_stem
from isotherm.report.wording import count_text
from isotherm.running.progress import Progress
from isotherm.running.runner import CHECKPOINT_SECONDS, prepared_study, run_study
from isotherm.running.store import Store, StoredRun
from isotherm.sweep.plan import SweepPlan
from isotherm.sweep.rounds import Round
from isotherm.sweep.study import Study
from isotherm.sweep.sweep import Sweep
from isotherm.tasks.seeding import initial_model
from isotherm.tasks.task import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A task at one setting, ready to be run: a study of one learning rate, and notes for the user.

    Make one with `prepare_cell`.
    """

    study: Study
    plan: SweepPlan
    device: str
    num_parameters: int
    notes: tuple[str, ...]

    @property
    def specs(self) -> list[RunSpec]:
        """The runs, in order of their seeds."""
        (axes,) = self.plan.grids()
        (rate,) = self.plan.base_learning_rates(axes)
        return [self.plan.run_spec(axes, effective_learning_rate=rate, seed=seed) for seed in self.plan.seeds]

    @property
    def num_epochs(self) -> float:
        """Passes over the training set."""
        spec, num_train, unroll = self.specs[0], self.plan.num_train, self.plan.unroll
        if unroll is None:
            return spec.num_steps * spec.batch_size / num_train
        return spec.num_steps / updates_per_pass(num_tokens=num_train + 1, batch_size=spec.batch_size, unroll=unroll)

    @property
    def temperature(self) -> float | None:
        """T = ε_eff / B of SGD; None for another optimiser."""
        if not self.plan.has_temperature:
            return None
        return temperature(self.specs[0].effective_learning_rate, self.specs[0].batch_size)

    def _rates(self) -> list[str]:
        """Return learning rate and optimiser in words; the temperature of SGD too."""
        spec = self.specs[0]
        own = f"ε = {tidy(spec.learning_rate):g}"
        if not self.plan.has_temperature:
            return [own, spec.method.label]
        effective, degrees = f"ε_eff = {spec.effective_learning_rate:g}", f"T = {self.temperature:.4g}"
        method = f"m = {spec.momentum:g}" if spec.optimizer is None else spec.method.label
        return [effective, own, method, degrees]

    def line(self) -> str:
        """Return the setting in one line."""
        spec = self.specs[0]
        parts = [
            f"B = {spec.batch_size:,}",
            *self._rates(),
            count_text(spec.num_steps, "update"),
            f"{self.num_epochs:.4g} epoch{'s' * (self.num_epochs != 1)}",
            spec.precision,
            self.device,
            f"{self.num_parameters:,} parameters",
        ]
        parts += [] if self.plan.schedule == Schedule() else [str(self.plan.schedule)]
        return f"{spec.task}: {', '.join(parts)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CellResults:
    """The runs of a cell in order of their seeds; `known` are the keys that were stored before.

    `left` is what there was no time for, if anything.
    """

    cell: Cell
    runs: tuple[StoredRun, ...]
    known: frozenset[str]
    left: Round | None = None

    def count(self, outcome: Outcome) -> int:
        """Return how many runs ended this way."""
        return sum(run.result.outcome is outcome for run in self.runs)


def prepare_cell(task: Task, settings: CellSettings, *, device: str = "cpu") -> Cell:
    """Return a cell that can be run; builds the model and tries it on a few examples.

    Raises:
        UserError: the device is missing, the settings do not suit the task, or the model cannot be trained.
    """
    settings, notes = _with_precision(settings, task, on_cpu=checked_device(device).type == "cpu")
    sweep = _sweep(task, settings)
    (plan,) = prepared_study(Study.of(sweep)).plan.sweeps
    model = initial_model(task.model, seed=0)
    return Cell(
        study=Study(name=_name(plan, task), sweeps=(sweep,)),
        plan=plan,
        device=device,
        num_parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        notes=(*task.notes, *notes),
    )


def _with_precision(settings: CellSettings, task: Task, *, on_cpu: bool) -> tuple[CellSettings, tuple[str, ...]]:
    """Return the settings with the precision that suits the device, and a note where that is not the task's."""
    if settings.precision is not None or task.precision != "mixed" or not on_cpu:
        return settings, ()
    note = "the task asks for mixed precision, which pays on a GPU; on this CPU it is trained in float32"
    return dataclasses.replace(settings, precision="float32"), (note,)


def _sweep(task: Task, settings: CellSettings) -> Sweep:
    return Sweep(
        name="cell",
        task=task,
        batch_sizes=[settings.batch_size],
        effective_learning_rates=_listed(settings.effective_learning_rate),
        learning_rates=_listed(settings.learning_rate),
        optimizer=settings.optimizer,
        budget=settings.budget,
        momentum=settings.momentum,
        num_seeds=settings.num_seeds,
        num_kept=settings.num_seeds,
        first_seed=settings.first_seed,
        tune_on="test",
        num_evaluations=settings.num_evaluations,
        max_extensions=0,
        resolution="paper",
        l2=settings.l2,
        clip_norm=settings.clip_norm,
        schedule=settings.schedule,
        precision=cast(Precision | None, settings.precision),  # a sweep refuses any other
    )


def _listed(rate: float | None) -> list[float] | None:
    return None if rate is None else [rate]


def _name(plan: SweepPlan, task: Task) -> str:
    """Return the study's name, made of the settings so that cells of a task can share a store."""
    (axes,) = plan.grids()
    (rate,) = plan.base_learning_rates(axes)
    method = f"m{axes.momentum!r}" if axes.optimizer is None else file_stem(axes.optimizer.label)
    parts = [file_stem(task.name), f"B{axes.batch_size}", f"lr{rate!r}", method]
    parts.append(f"{axes.budget.amount}{axes.budget.unit}")
    for name, short in (("l2", "l2_"), ("clip_norm", "clip_"), ("precision", "")):  # where it is not the task's own
        if name == "l2" and axes.optimizer is not None and decays_weights(axes.optimizer):
            continue
        if (value := getattr(plan, name)) != getattr(task, name):
            parts.append(f"{short}{value}")
    parts += [f"seed{plan.seeds[0]}"] if plan.seeds[0] else []
    parts += [] if plan.schedule == Schedule() else [_schedule_name(plan.schedule)]
    parts += [f"evaluations{plan.num_evaluations}"] if plan.num_evaluations != NUM_EVALUATIONS else []
    return "-".join(parts).replace("+", "")


def _schedule_name(schedule: Schedule) -> str:
    """Return a schedule and its options, as far as a command can give them, as part of a name.

    >>> _schedule_name(Schedule.cosine(warmup_steps=100, final_fraction=0.1))
    'cosine-warmup_steps100-final_fraction0.1'
    """
    names = ("warmup_steps", "warmup_fraction", "decay_fraction", "final_fraction")
    given = [f"{name}{value}" for name in names if (value := getattr(schedule, name)) is not None]
    return "-".join([schedule.shape, *given])


def default_store(task: Task) -> Path:
    """Return the default store of a task's cells."""
    return Path(f"{file_stem(task.name)}.sqlite")


def run_cell(
    cell: Cell,
    store: Path,
    *,
    fleet_size: int | None = None,
    micro_batch_size: int | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    minutes: float | None = None,
    executor: str | None = None,
    progress: Progress | None = None,
    on_stored: Callable[[list[int]], None] = lambda _seeds: None,
) -> CellResults:
    """Run what is missing of a cell in this process, or in torchrun's, and return all its runs.

    Args:
        cell: what to run.
        store: file to keep the runs in.
        fleet_size: runs per fleet; chosen automatically by default.
        micro_batch_size: most examples of an update that are computed at once; by default, as many as memory holds.
        checkpoint_seconds: time between checkpoints of a fleet, written beside the store.
        minutes: time from now on; by default as long as it takes.
        executor: "torchrun" where the processes that it has started share every run.
        progress: receives progress.
        on_stored: receives, before training starts, the seeds whose runs are already stored.
    """
    keys = {spec.key for spec in cell.specs}
    with Store.in_memory() if follows(executor) else Store.write(store) as opened:
        done = {key for key, result in opened.results().items() if result.outcome is not Outcome.FAILED}
        on_stored([spec.seed for spec in cell.specs if spec.key in done])
        results = run_study(
            cell.study,
            store=opened,
            device=cell.device,
            fleet_size=fleet_size,
            micro_batch_size=micro_batch_size,
            checkpoint_seconds=checkpoint_seconds,
            minutes=minutes,
            executor=executor,
            progress=progress,
        )
        found = {run.spec.key: run for run in opened.runs() if run.spec.key in keys}
    return CellResults(
        cell=cell,
        runs=tuple(found[spec.key] for spec in cell.specs if spec.key in found),
        known=frozenset(keys & done),
        left=results.next_round(),
    )
