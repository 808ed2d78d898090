"""A table of the paper beside the runs in its result file."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from isotherm.core.records import Direction
from isotherm.core.statistics import best_k_of_n
from pages.paper import PaperTable
from pages.text import paragraph, table
from pages.values import Value

Run = dict[str, Any]


def block(wanted: PaperTable) -> str:
    """Return the table: every learning rate that was run, the best of each batch size in bold."""
    content = json.loads(wanted.file.read_text())
    runs: list[Run] = content["runs"]
    rows = [row for size in wanted.published for row in rows_of(wanted, size, runs)]
    best = f"best {wanted.num_kept} of {wanted.num_seeds}"
    everything = f"all {wanted.num_seeds}"
    tests = (f"test, {best}", f"test, {everything}", f"train, {best}")
    header = ("B", "ε_eff", *tests, "paper, test", "paper, train")
    if _keeps_all(wanted):
        header = ("B", "ε_eff", f"test, {everything}", f"train, {everything}", "paper, test", "paper, train")
    return f"{table(header, rows)}\n\n{paragraph(_origin(wanted, content))}"


def rows_of(wanted: PaperTable, size: int, runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """Return the rows of one batch size, one for each learning rate that was run."""
    published = wanted.published[size]
    found = [run for run in runs if run["spec"]["batch_size"] == size]
    if not found:
        holes = ("–",) * (1 if _keeps_all(wanted) else 2)
        return [(f"{size:,}", "–", "not run", *holes, published.test, published.train)]
    rates = sorted({run["spec"]["effective_learning_rate"] for run in found})
    cells = {rate: [r["result"] for r in found if r["spec"]["effective_learning_rate"] == rate] for rate in rates}
    best = min(rates, key=lambda rate: _for_order(kept(wanted, cells[rate], "test_metric")))
    rows = []
    for rate, results in cells.items():
        test = _text(wanted, kept(wanted, results, "test_metric"))
        everything = () if _keeps_all(wanted) else (_text(wanted, _values(results, "test_metric")),)
        train = _text(wanted, kept(wanted, results, "train_metric"))
        theirs = (published.test, published.train) if rate == published.rate else ("", "")
        shown = f"**{test}**" if rate == best else test
        rows.append((f"{size:,}", f"{rate:g}", shown, *everything, train, *theirs))
    return rows


def kept(wanted: PaperTable, results: Sequence[Run], quantity: str) -> list[float]:
    """Return a quantity of the runs with the lowest test error; NaN for those that diverged."""
    errors, values = _values(results, "test_metric"), _values(results, quantity)
    return [values[index] for index in best_k_of_n(errors, num_kept=wanted.num_kept, direction=Direction.MINIMISE)]


def _values(results: Sequence[Run], quantity: str) -> list[float]:
    return [math.nan if result[quantity] is None else result[quantity] for result in results]


def _for_order(values: Sequence[float]) -> float:
    return math.inf if any(map(math.isnan, values)) else sum(values) / len(values)


def _text(wanted: PaperTable, values: Sequence[float]) -> str:
    if num := sum(map(math.isnan, values)):
        return f"{num} of {len(values)} without a number"
    return Value.of(values).text(wanted.decimals, with_num=False)


def _keeps_all(wanted: PaperTable) -> bool:
    return wanted.num_kept == wanted.num_seeds


def _origin(wanted: PaperTable, content: dict[str, Any]) -> str:
    provenances = [run["provenance"] for run in content["runs"]]
    devices = sorted({p["device"].removeprefix("cuda: ") for p in provenances})
    releases = sorted({p["torch"] for p in provenances})
    num_finished = sum(run["result"]["outcome"] == "finished" for run in content["runs"])
    return (
        f"{wanted.measure}, mean ± standard deviation; {num_finished} of {content['num_runs']} runs finished; "
        f"{', '.join(devices)}, torch {', '.join(releases)}, mixed precision, {_commits(content['runs'])}: "
        f"`{content['command']}`. Rows: `results/{wanted.name}/{wanted.name}.json`."
    )


def _commits(runs: Sequence[Run]) -> str:
    """Return the commits, with their batch sizes if there are several.

    >>> _commits([{"commit": "abc", "spec": {"batch_size": 64}}])
    'commit abc'
    >>> _commits([{"commit": c, "spec": {"batch_size": b}} for c, b in (("abc", 64), ("abc", 256), ("def", 1024))])
    'commits abc (B = 64, 256) and def (B = 1,024)'
    """
    sizes: dict[str, set[int]] = {}
    for run in runs:
        sizes.setdefault(run["commit"], set()).add(run["spec"]["batch_size"])
    if len(sizes) == 1:
        return f"commit {next(iter(sizes))}"
    named = [f"{commit} (B = {', '.join(f'{size:,}' for size in sorted(found))})" for commit, found in sizes.items()]
    return f"commits {' and '.join(named)}"
