"""Runs of a published row that belong to no sweep: its network, batch size and updates, at its learning rate alone.

They say how near the network is to the paper's, and nothing about the best learning rate or batch size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isotherm.core.records import RunResult, RunSpec
from isotherm.studies.paper.definition import PaperObject, Row, Scale
from isotherm.studies.paper.registry import objects
from isotherm.tasks.builtin import DEFINITIONS


@dataclass(frozen=True, kw_only=True, slots=True)
class SingleCell:
    """The results of all seeds at the learning rate of a published row; `path` and `commit` say where they are from."""

    wanted: PaperObject
    row: Row
    metric: str
    results: tuple[RunResult, ...]
    path: Path
    commit: str


def cells_in(folder: Path) -> list[SingleCell]:
    """Return the single cells in a folder's folders, in the paper's order; files of sweeps are left out."""
    files = [(path, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*/*.json"))]
    singles = [(path, content) for path, content in files if _is_single(path, content)]
    found = [cell for path, content in singles for cell in _cells(path, content)]
    order = list(objects())
    return sorted(found, key=lambda cell: (order.index(cell.wanted.identifier), cell.row.batch_size))


def cell_words(cell: SingleCell) -> str:
    """Return which cell was run, at which learning rate and how often."""
    runs = f"{len(cell.results)} run{'s' * (len(cell.results) > 1)}"
    return f"B = {cell.row.batch_size:,} at ε_eff = {cell.row.rate:g}, {runs}"


def cells_words(cells: Sequence[SingleCell]) -> str:
    """Return which cells were run, in a few words."""
    return f"single cells at B = {', '.join(f'{cell.row.batch_size:,}' for cell in cells)}; not a sweep"


def _is_single(path: Path, content: Any) -> bool:
    return (
        isinstance(content, dict)
        and {"runs", "commit"} <= set(content)
        and "studies" not in content
        and path.parent.name not in objects()
    )


def _cells(path: Path, content: dict[str, Any]) -> Iterator[SingleCell]:
    """Yield the cells of a file, of every object whose row they are."""
    runs = [(RunSpec.from_json(row["spec"]), RunResult.from_json(row["result"])) for row in content["runs"]]
    for wanted in objects().values():
        for setting in wanted.scales[Scale.PAPER].settings:
            for row in wanted.published:
                steps = {setting.num_steps(budget, row.batch_size) for budget in setting.budgets}
                results = tuple(
                    result
                    for spec, result in runs
                    if spec.task == setting.network
                    and (spec.momentum, spec.batch_size) == (setting.momentum, row.batch_size)
                    and spec.momentum == row.momentum
                    and spec.num_steps in steps
                    and math.isclose(spec.effective_learning_rate, row.rate)
                )
                if results:
                    metric = DEFINITIONS[setting.network].metric
                    yield SingleCell(
                        wanted=wanted, row=row, metric=metric, results=results, path=path, commit=content["commit"]
                    )
