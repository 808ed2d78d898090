"""One cell: a task at one batch size and learning rate, all its seeds. The study it is, and what it gave as text."""

from __future__ import annotations

import contextlib
import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from isotherm.core.budget import Budget, updates_per_pass
from isotherm.core.rates import tidy
from isotherm.core.records import Outcome, Precision, RunResult, RunSpec
from isotherm.core.statistics import standard_deviation
from isotherm.core.temperature import temperature
from isotherm.engine.placed_task import checked_device
from isotherm.errors import UserError
from isotherm.report.files import file_stem
from isotherm.report.wording import count_text, is_percent, metric_label
from isotherm.running.runner import CHECKPOINT_SECONDS, Progress, prepared_study, run_study
from isotherm.running.store import Store, StoredRun
from isotherm.sweep.plan import SweepPlan
from isotherm.sweep.study import Study
from isotherm.sweep.sweep import Sweep
from isotherm.tasks.seeding import initial_model
from isotherm.tasks.task import Task

NUM_EVALUATIONS = 10  # looks at the test set along the way, unless the user says otherwise
HEADER_WIDTH = 9  # headers wrap so that columns stay as narrow as their numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A task at one setting, ready to be run: the study of one learning rate, and what to say about it.

    Make one with `prepare_cell`.
    """

    study: Study
    plan: SweepPlan
    device: str
    num_parameters: int
    notes: tuple[str, ...]

    @property
    def specs(self) -> list[RunSpec]:
        """Its runs, by rising seed."""
        (axes,) = self.plan.grids()
        (rate,) = self.plan.base_learning_rates(axes)
        return [self.plan.run_spec(axes, effective_learning_rate=rate, seed=seed) for seed in self.plan.seeds]

    @property
    def num_epochs(self) -> float:
        """How often the training set is gone through."""
        spec, num_train, unroll = self.specs[0], self.plan.num_train, self.plan.unroll
        if unroll is None:
            return spec.num_steps * spec.batch_size / num_train
        return spec.num_steps / updates_per_pass(num_tokens=num_train + 1, batch_size=spec.batch_size, unroll=unroll)

    @property
    def temperature(self) -> float:
        """T = ε_eff / B."""
        return temperature(self.specs[0].effective_learning_rate, self.specs[0].batch_size)

    def line(self) -> str:
        """Return the setting in one line."""
        spec = self.specs[0]
        parts = [
            f"B = {spec.batch_size:,}",
            f"ε_eff = {spec.effective_learning_rate:g}",
            f"ε = {tidy(spec.learning_rate):g}",
            f"m = {spec.momentum:g}",
            f"T = {self.temperature:.4g}",
            count_text(spec.num_steps, "update"),
            f"{self.num_epochs:.4g} epoch{'s' * (self.num_epochs != 1)}",
            spec.precision,
            self.device,
            f"{self.num_parameters:,} parameters",
        ]
        return f"{spec.task}: {', '.join(parts)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CellResults:
    """What a cell gave, in the order of its seeds; `known` are the keys that were stored before."""

    cell: Cell
    runs: tuple[StoredRun, ...]
    known: frozenset[str]

    def count(self, outcome: Outcome) -> int:
        """Return how many runs ended this way."""
        return sum(run.result.outcome is outcome for run in self.runs)


def prepare_cell(
    task: Task,
    *,
    batch_size: int,
    effective_learning_rate: float,
    budget: Budget,
    momentum: float = 0.9,
    num_seeds: int = 1,
    first_seed: int = 0,
    l2: float | None = None,
    clip_norm: float | None = None,
    precision: Precision | None = None,
    num_evaluations: int = NUM_EVALUATIONS,
    device: str = "cpu",
) -> Cell:
    """Return a cell that can be run; builds the model and tries it on a few examples.

    Args:
        task: what is trained.
        batch_size: of an update.
        effective_learning_rate: ε_eff = ε / (1 - m).
        budget: how long.
        momentum: heavy-ball momentum; 0 is plain SGD.
        num_seeds: how many runs.
        first_seed: seeds are first_seed .. first_seed + num_seeds - 1.
        l2: coefficient of the penalty; None, here and for the next two, takes what the task says.
        clip_norm: the gradient's norm is cut to this.
        precision: of the computation; a task that says "mixed" is trained in float32 on a CPU unless it is given.
        num_evaluations: looks at the test set along the way.
        device: "cpu" or "cuda".

    Raises:
        UserError: the device is not there, the setting makes no sense for the task, or the model cannot be trained.
    """
    on_cpu = checked_device(device).type == "cpu"
    notes = task.notes
    if precision is None and task.precision == "mixed" and on_cpu:
        precision = "float32"
        notes += ("the task says mixed precision, which pays on a GPU; on this CPU it is trained in float32",)
    sweep = Sweep(
        name="cell",
        task=task,
        batch_sizes=[batch_size],
        effective_learning_rates=[effective_learning_rate],
        budget=budget,
        momentum=momentum,
        num_seeds=num_seeds,
        num_kept=num_seeds,
        first_seed=first_seed,
        tune_on="test",
        num_evaluations=num_evaluations,
        max_extensions=0,
        l2=l2,
        clip_norm=clip_norm,
        precision=precision,
    )
    (plan,) = prepared_study(Study.of(sweep)).plan.sweeps
    model = initial_model(task.model, seed=0)
    num_parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return Cell(
        study=Study(name=_name(plan, task), sweeps=(sweep,)),
        plan=plan,
        device=device,
        num_parameters=num_parameters,
        notes=notes,
    )


def _name(plan: SweepPlan, task: Task) -> str:
    """Return the name of the study: the setting, so that several cells of a task can share a store."""
    (axes,) = plan.grids()
    (rate,) = plan.base_learning_rates(axes)
    parts = [file_stem(task.name), f"B{axes.batch_size}", f"lr{rate!r}", f"m{axes.momentum!r}"]
    parts.append(f"{axes.budget.amount}{axes.budget.unit}")
    for name, short in (("l2", "l2_"), ("clip_norm", "clip_"), ("precision", "")):  # where it is not the task's own
        if (value := getattr(plan, name)) != getattr(task, name):
            parts.append(f"{short}{value}")
    parts += [f"seed{plan.seeds[0]}"] if plan.seeds[0] else []
    parts += [f"looks{plan.num_evaluations}"] if plan.num_evaluations != NUM_EVALUATIONS else []
    return "-".join(parts).replace("+", "")


def parsed_options(given: Iterable[str], option: str) -> dict[str, bool | int | float | str]:
    """Return what NAME=VALUE stands for; a value that is a number or a truth value becomes one.

    >>> parsed_options(["drop_probability=0.5", "depth=22", "padding=zero", "flip=false"], "--model")
    {'drop_probability': 0.5, 'depth': 22, 'padding': 'zero', 'flip': False}
    """
    found: dict[str, bool | int | float | str] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not (name and sign and value):
            raise UserError(f"{option} {text!r} is not NAME=VALUE; write e.g. {option} drop_probability=0.5")
        found[name] = _number_or_text(value)
    return found


def _number_or_text(value: str) -> bool | int | float | str:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(value)
    return value


def default_store(task: Task) -> Path:
    """Return where the cells of a task are kept unless the user says otherwise."""
    return Path(f"{file_stem(task.name)}.sqlite")


def run_cell(
    cell: Cell,
    store: Path,
    *,
    fleet_size: int | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    progress: Progress | None = None,
    on_stored: Callable[[list[int]], None] = lambda _seeds: None,
) -> CellResults:
    """Run what is missing of a cell, in this process, and return all of it.

    Args:
        cell: what to run.
        store: the file that keeps it.
        fleet_size: runs per fleet; by default as many as pay.
        checkpoint_seconds: so often a fleet in training is saved beside the store.
        progress: told how it goes.
        on_stored: told, before anything is run, the seeds whose runs are there already.
    """
    keys = {spec.key for spec in cell.specs}
    with Store.write(store) as opened:
        done = {key for key, result in opened.results().items() if result.outcome is not Outcome.FAILED}
        on_stored([spec.seed for spec in cell.specs if spec.key in done])
        run_study(
            cell.study,
            store=opened,
            device=cell.device,
            fleet_size=fleet_size,
            checkpoint_seconds=checkpoint_seconds,
            progress=progress,
        )
        found = {run.spec.key: run for run in opened.runs() if run.spec.key in keys}
    return CellResults(cell=cell, runs=tuple(found[spec.key] for spec in cell.specs), known=frozenset(keys & done))


# -- as people read it ----------------------------------------------------------------------------------------------


def number_text(value: float) -> str:
    """Return a loss or a metric in four digits.

    >>> number_text(0.5), number_text(12.3456), number_text(9876.5), number_text(math.nan), number_text(1e-9)
    ('0.5000', '12.35', '9,876', 'not finite', '1.000e-09')
    """
    if not math.isfinite(value):
        return "not finite"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:#.4g}".rstrip(".")


def metric_text(metric: str, value: float) -> str:
    """Return a metric's value as it is read, accuracy in percent.

    >>> metric_text("accuracy", 0.51234), metric_text("perplexity", 88.8)
    ('51.23 %', '88.80')
    """
    return f"{100 * value:.2f} %" if is_percent(metric) and math.isfinite(value) else number_text(value)


def run_sentences(results: CellResults) -> list[str]:
    """Return a sentence for every run that did not finish."""
    sentences = []
    for run in results.runs:
        if run.result.outcome is Outcome.DIVERGED:
            step = run.result.divergence_step or 0
            sentences.append(
                f"seed {run.spec.seed} diverged: its loss was not finite after "
                f"{count_text(step, 'update')}; a smaller learning rate may do"
            )
        elif run.result.outcome is Outcome.FAILED:
            sentences.append(f"seed {run.spec.seed} failed: {run.result.error}")
    return sentences


@dataclass(frozen=True, slots=True)
class _Column:
    quantity: str
    header: str
    percent: bool = False

    def text(self, value: float | None) -> str:
        if value is None:
            return "–"
        return f"{100 * value:.2f}" if self.percent and math.isfinite(value) else number_text(value)

    def spread(self, values: Sequence[float]) -> str:
        deviation = standard_deviation(values) * (100 if self.percent else 1)
        return f"± {deviation:.2g}" if math.isfinite(deviation) else "–"


def _columns(plan: SweepPlan) -> list[_Column]:
    percent = is_percent(plan.metric)
    test, train = (metric_label(plan.metric, data=data).replace(" (%)", " %") for data in ("test", "train"))
    penalty = [_Column("l2_penalty", "L2 penalty"), _Column("train_objective", "train loss + L2")] if plan.l2 else []
    return [
        _Column("test_metric", test, percent),
        _Column("test_loss", "test loss"),
        _Column("train_metric", train, percent),
        _Column("train_loss", "train loss"),
        *penalty,
        _Column("train_loss_running", "running train loss"),
        _Column("clipped_fraction", "clipped %", True),
        _Column("test_metric_running", f"{test} by running averages", percent),
    ]


def cell_tables(results: CellResults, *, width: int) -> list[Table]:
    """Return a row per seed, mean and standard deviation; as many tables as the columns need, none if no run finished.

    Args:
        results: what the cell gave.
        width: of the terminal.
    """
    finished = [run.result for run in results.runs if run.result.outcome is Outcome.FINISHED]
    columns = [c for c in _columns(results.cell.plan) if any(getattr(r, c.quantity) is not None for r in finished)]
    texts = [_column_text(column, results, finished) for column in columns]
    tables: list[list[list[str]]] = []
    room = 0
    for text in texts:
        needed = 2 + max(len(line) for cell in text for line in cell.split("\n"))
        if needed > room:
            tables.append([_seed_column(results, finished)])
            room = width - 8
        tables[-1].append(text)
        room -= needed
    shown = [_table(table, num_seeds=len(results.runs)) for table in tables]
    if shown and 1 < len(finished) < len(results.runs):
        shown[-1].caption = f"mean and sd of the {len(finished)} of {len(results.runs)} runs that finished"
    return shown


def _seed_column(results: CellResults, finished: Sequence[RunResult]) -> list[str]:
    seeds = [str(run.spec.seed) for run in results.runs]
    return ["seed", *seeds, *(["mean", "sd"] if len(finished) > 1 else [])]


def _column_text(column: _Column, results: CellResults, finished: Sequence[RunResult]) -> list[str]:
    """Return header and values of a column as text."""
    header = "\n".join(textwrap.wrap(column.header, HEADER_WIDTH, break_long_words=False))
    texts = [header, *(column.text(getattr(run.result, column.quantity)) for run in results.runs)]
    values = _values(finished, column.quantity)
    return [*texts, column.text(math.fsum(values) / len(values)), column.spread(values)] if len(finished) > 1 else texts


def _table(columns: Sequence[Sequence[str]], *, num_seeds: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), caption_justify="left")
    for column in columns:
        table.add_column(escape(column[0]), justify="right", no_wrap=True)
    for place in range(1, len(columns[0])):
        table.add_row(*(escape(column[place]) for column in columns), end_section=place == num_seeds)
    return table


def _values(results: Sequence[RunResult], quantity: str) -> list[float]:
    return [float(value) for result in results if (value := getattr(result, quantity)) is not None]


# -- as JSON --------------------------------------------------------------------------------------------------------


def cell_summary(results: CellResults, *, store: Path, seconds: float) -> dict[str, Any]:
    """Return the cell as JSON values: the setting, and spec and result of every run."""
    cell, spec = results.cell, results.cell.specs[0]
    finished = [run.result for run in results.runs if run.result.outcome is Outcome.FINISHED]
    quantities = {c.quantity: _values(finished, c.quantity) for c in _columns(cell.plan)}
    content = {
        "study": cell.study.name,
        "task": spec.task,
        "metric": cell.plan.metric,
        "batch_size": spec.batch_size,
        "effective_learning_rate": spec.effective_learning_rate,
        "learning_rate": tidy(spec.learning_rate),
        "temperature": cell.temperature,
        "num_steps": spec.num_steps,
        "num_epochs": cell.num_epochs,
        "precision": spec.precision,
        "device": cell.device,
        "num_parameters": cell.num_parameters,
        "notes": list(cell.notes),
        "store": str(store),
        "seconds": seconds,
        "counts": {str(outcome): results.count(outcome) for outcome in Outcome},
        "summary": {
            name: {"mean": math.fsum(v) / len(v), "standard_deviation": standard_deviation(v), "num_runs": len(v)}
            for name, v in quantities.items()
            if v
        },
        "runs": [
            {
                "key": run.spec.key,
                "was_stored": run.spec.key in results.known,
                "spec": run.spec.to_json(),
                "result": run.result.to_json(),
                "provenance": run.provenance,
            }
            for run in results.runs
        ],
    }
    return _finite(content)  # type: ignore[no-any-return]


def _finite(content: Any) -> Any:
    """Return JSON values with None in place of numbers that JSON does not have."""
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
