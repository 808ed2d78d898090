"""Tables of the paper that are trained again: their settings, and the published values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from isotherm.studies.paper.registry import objects
from pages.results import ROOT


class Published(NamedTuple):
    """A row of the paper: its learning rate ε_eff, and the errors on test and training data."""

    rate: float
    test: str
    train: str


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table of the paper at an equal number of updates.

    Args:
        number: in the paper.
        task: a built-in task.
        num_steps: updates of every run.
        rates: effective learning rates at each batch size.
        num_seeds: runs of each cell.
        num_kept: the best runs, over which means are taken.
        measure: what the task's metric is.
        decimals: of the metric.
        published: the paper's row at each batch size.
    """

    number: int
    task: str
    num_steps: int
    rates: Mapping[int, tuple[float, ...]]
    num_seeds: int
    num_kept: int
    measure: str
    decimals: int
    published: Mapping[int, Published]

    @property
    def name(self) -> str:
        """The name of its script, its folder and its result file."""
        return f"table{self.number}"

    @property
    def file(self) -> Path:
        """The file with its rows."""
        return ROOT / "results" / self.name / f"{self.name}.json"


def _published(identifier: str) -> dict[int, Published]:
    """Return the rows of the registry."""
    rows = objects()[identifier].published
    return {row.batch_size: Published(row.rate, str(row.test), str(row.train)) for row in rows}


# The paper keeps the best 5 of 7 here too.
TABLE_6 = PaperTable(
    number=6,
    task="lstm_ptb",
    num_steps=16_560,
    rates={
        16: (1.0, 1.4, 2.0),
        32: (1.4, 2.0, 2.8),
        64: (2.0, 2.8, 4.0),
        128: (4.0, 5.6, 8.0),
        256: (4.0, 5.6, 8.0),
    },
    num_seeds=5,
    num_kept=5,
    measure="Perplexity",
    decimals=2,
    published=_published("table6"),
)

TABLE_7 = PaperTable(
    number=7,
    task="autoencoder_mnist",
    num_steps=156_250,
    rates=dict.fromkeys((64, 256, 1024, 4096), (0.04, 0.08, 0.16)),
    num_seeds=7,
    num_kept=5,
    measure="Squared error per image",
    decimals=3,
    published=_published("table7"),
)
