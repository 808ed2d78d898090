"""What the registry knows of a figure or table of the paper: published values, claims, and a study at each scale."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from isotherm.analysis.analysis import Analysis
from isotherm.analysis.verdicts.claim import Claim, Verdict
from isotherm.core.budget import Budget
from isotherm.core.checks import require_choice
from isotherm.core.rates import IsothermGrid
from isotherm.core.records import Precision
from isotherm.errors import UserError
from isotherm.studies.paper.networks import NETWORKS, Network, network_task
from isotherm.sweep.plan import Resolution
from isotherm.sweep.study import Study
from isotherm.sweep.sweep import Sweep
from isotherm.tasks.task import Task


class Scale(enum.StrEnum):
    """How much of an experiment is run."""

    SMOKE = "smoke"
    LAPTOP = "laptop"
    GPU = "gpu"
    PAPER = "paper"


class Form(enum.StrEnum):
    """What an object looks like in the paper."""

    TABLE = "table"
    BATCH_SIZES = "against batch size"
    BUDGETS = "against epoch budget"
    LEARNING_RATES = "against learning rate"
    TWO_RATES = "initial and final learning rate"
    SCHEDULE = "schedule"


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """A published number and its standard deviation; None where the paper gives none."""

    mean: float
    deviation: float | None = None
    decimals: int = 2

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation:.{self.decimals}f}"
        return f"{self.mean:.{self.decimals}f}{spread}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A row of a published table: test metric (accuracies in percent), training metric or loss, learning rate."""

    batch_size: int
    test: Value
    train: Value
    rate: float
    interval: tuple[float, float]
    momentum: float = 0.9

    @property
    def temperature(self) -> float:
        """T = ε_eff / B."""
        return self.rate / self.batch_size


@dataclass(frozen=True, kw_only=True, slots=True)
class TextValue:
    """A number that text or caption state, and how ours is read from an analysis.

    `measured` returns ours in words; None where it is not measured. `computed` does where no runs are needed.
    """

    what: str
    value: str
    source: str
    measured: Callable[[Analysis], str | None] | None = None
    computed: Callable[[], str] | None = None

    def ours(self, analysis: Analysis | None) -> str | None:
        """Return ours in words; None where it is not known."""
        if self.computed is not None:
            return self.computed()
        return None if analysis is None or self.measured is None else self.measured(analysis)


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperClaim:
    """A claim that the paper makes of an object, where it does, and how results are asked about it.

    `test` returns the claim with its draws, given its text and an analysis; a claim that needs no runs has a `verdict`
    instead.
    """

    text: str
    source: str
    test: Callable[[str, Analysis], Claim] | None = None
    verdict: Callable[[str], Verdict] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A sweep before its data are loaded: as `Sweep`, with a network by name.

    `final_rates` are swept apart from the initial ones.
    """

    name: str
    network: str
    batch_sizes: tuple[int, ...]
    rates: IsothermGrid | tuple[float, ...]
    budgets: tuple[Budget, ...]
    num_seeds: int
    num_kept: int
    momentum: float = 0.9
    final_rates: tuple[float, ...] = ()
    clip_norm: float | None = None
    num_evaluations: int = 10
    max_extensions: int = 3
    resolution: Resolution = "paper"
    smallest_ratio: float = 2.0**0.5
    precision: Precision | None = None

    def __post_init__(self) -> None:
        require_choice("network", self.network, tuple(NETWORKS))
        require_choice("resolution", self.resolution, get_args(Resolution))

    def sweep(self, task: Task) -> Sweep:
        """Return the sweep on a task; tuned on the test set, as in the paper."""
        return Sweep(
            name=self.name,
            task=task,
            batch_sizes=self.batch_sizes,
            effective_learning_rates=self.rates,
            budget=self.budgets,
            momentum=self.momentum,
            clip_norm=self.clip_norm,
            final_learning_rates=self.final_rates or None,
            num_seeds=self.num_seeds,
            num_kept=self.num_kept,
            tune_on="test",
            extend_for="tuned_and_train",
            num_evaluations=self.num_evaluations,
            max_extensions=self.max_extensions,
            resolution=self.resolution,
            smallest_ratio=self.smallest_ratio,
            precision=self.precision,
        )

    @property
    def num_runs(self) -> int:
        """How many runs the grids have before any is extended or refined."""
        return sum(self.num_seeds * self._num_cells(size) * len(self.budgets) for size in self.batch_sizes)

    @property
    def seconds(self) -> float:
        """The time of these runs at the network's measured speed: one H200, or two cores for the embedded ones."""
        network = NETWORKS[self.network]
        return sum(
            self.num_seeds
            * self._num_cells(size)
            * network.seconds(batch_size=size, num_steps=self.num_steps(budget, size))
            for size in self.batch_sizes
            for budget in self.budgets
        )

    def num_steps(self, budget: Budget, batch_size: int) -> int:
        """Return the number of updates of a run."""
        network = NETWORKS[self.network]
        return budget.num_steps(num_train=network.num_train, batch_size=batch_size, unroll=network.unroll)

    def _num_cells(self, batch_size: int) -> int:
        rates = self.rates_at(batch_size)
        return sum(final <= rate for rate in rates for final in self.final_rates) if self.final_rates else len(rates)

    def rates_at(self, batch_size: int) -> Sequence[float]:
        """Return the learning rates at a batch size before any extension."""
        return self.rates.at(batch_size) if isinstance(self.rates, IsothermGrid) else self.rates


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaledStudy:
    """The sweeps of an object at one scale, and what distinguishes them from the paper's."""

    settings: tuple[Setting, ...]
    note: str

    @property
    def num_runs(self) -> int:
        """How many runs the grids have before any is extended or refined."""
        return sum(setting.num_runs for setting in self.settings)

    @property
    def seconds(self) -> float:
        """How long they take, from measured speeds."""
        return sum(setting.seconds for setting in self.settings)

    @property
    def networks(self) -> list[Network]:
        """The networks that are trained."""
        return [NETWORKS[name] for name in dict.fromkeys(setting.network for setting in self.settings)]


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperObject:
    """A figure or table of the paper, or a check in its text.

    Args:
        identifier: by which a user names it.
        shows: what it shows.
        networks: as the paper names them.
        form: what it looks like.
        published: rows of a table.
        text_values: numbers in text and caption.
        claims: what the paper says of it.
        scales: a study at each scale; a schedule has no sweeps.
        metric: what the test column holds.
        train_quantity: the quantity of a run that stands in the table's training column.
        train_label: the head of that column.
    """

    identifier: str
    shows: str
    networks: str
    form: Form
    claims: tuple[PaperClaim, ...]
    scales: Mapping[Scale, ScaledStudy]
    published: tuple[Row, ...] = ()
    text_values: tuple[TextValue, ...] = ()
    metric: str = "test accuracy (%)"
    train_quantity: str = "train_objective"
    train_label: str = "training loss"

    @property
    def title(self) -> str:
        """The name as the paper writes it.

        A check in the text has no number there.
        """
        kind, number = self.identifier.rstrip("0123456789"), self.identifier.lstrip("abcdefghijklmnopqrstuvwxyz")
        return f"X{number}, section 5" if kind == "x" else f"{kind.capitalize()} {number}"

    def study_name(self, scale: Scale) -> str:
        """Return the name under which a store keeps the study."""
        return f"{self.identifier}_{scale}"

    def study(self, scale: Scale, *, data: Path | None = None) -> Study:
        """Return the study at a scale; its data are loaded."""
        scaled = self.scales[scale]
        tasks = {network.name: self._task(network, scale, data) for network in scaled.networks}
        return Study(
            name=self.study_name(scale),
            question=self.shows,
            sweeps=tuple(setting.sweep(tasks[setting.network]) for setting in scaled.settings),
        )

    def _task(self, network: Network, scale: Scale, data: Path | None) -> Task:
        try:
            return network_task(network, data=data)
        except UserError as error:
            without = [str(s) for s in Scale if all(n.is_embedded for n in self.scales[s].networks)]
            raise UserError(
                f"{self.title} at scale {scale} trains on {network.dataset}: {error}; "
                f"the scales {' and '.join(without)} need no data"
            ) from error
