"""A table of the paper beside the runs in its result file."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

from isotherm.core.records import Direction
from isotherm.core.statistics import best_k_of_n, t_interval
from pages.paper import PaperTable
from pages.text import paragraph, signed_interval, table
from pages.values import Value

Run = dict[str, Any]


def block(wanted: PaperTable) -> str:
    """Return the table: every learning rate that was run, the best of each batch size in bold where all were."""
    content = json.loads(wanted.file.read_text())
    runs: list[Run] = content["runs"]
    rows = [row for size in wanted.published for row in rows_of(wanted, size, runs)]
    best = f"best {wanted.num_kept} of {wanted.num_seeds}"
    everything = f"all {wanted.num_seeds}"
    tests = (f"test, {best}", f"test, {everything}", f"train, {best}")
    header = ("B", "ε_eff", *tests, "paper, test", "paper, train")
    if _keeps_all(wanted):
        header = ("B", "ε_eff", f"test, {everything}", f"train, {everything}", "paper, test", "paper, train")
    paragraphs = (_origin(wanted, content), trend(wanted, runs))
    return "\n\n".join((table(header, rows), *map(paragraph, filter(None, paragraphs))))


def rows_of(wanted: PaperTable, size: int, runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """Return the rows of one batch size: the learning rates that were run, and the paper's."""
    published = wanted.published[size]
    found = [run for run in runs if run["spec"]["batch_size"] == size]
    rates = sorted({published.rate, *(run["spec"]["effective_learning_rate"] for run in found)})
    cells = {rate: [r["result"] for r in found if r["spec"]["effective_learning_rate"] == rate] for rate in rates}
    is_whole = all(len(cells.get(rate, ())) == wanted.num_seeds for rate in wanted.rates[size])
    best = min(rates, key=lambda rate: _for_order(kept(wanted, cells[rate], "test_metric"))) if is_whole else None
    rows = []
    for rate, results in cells.items():
        ours = _cell(wanted, results, is_best=rate == best)
        theirs = (published.test, published.train) if rate == published.rate else ("", "")
        rows.append((f"{size:,}", f"{rate:g}", *ours, *theirs))
    return rows


def _cell(wanted: PaperTable, results: Sequence[Run], *, is_best: bool) -> tuple[str, ...]:
    """Return the columns of a learning rate; a cell with fewer runs than seeds has no best ones."""
    if not results:
        return ("not run", "–") if _keeps_all(wanted) else ("not run", "–", "–")
    everything = _text(wanted, _values(results, "test_metric"))
    if len(results) < wanted.num_seeds:
        num = f" ({len(results)} runs)"
        train = _text(wanted, _values(results, "train_metric")) + num
        return (everything + num, train) if _keeps_all(wanted) else ("–", everything + num, train)
    test, train = (_text(wanted, kept(wanted, results, name)) for name in ("test_metric", "train_metric"))
    shown = f"**{test}**" if is_best else test
    return (shown, train) if _keeps_all(wanted) else (shown, everything, train)


def kept(wanted: PaperTable, results: Sequence[Run], quantity: str) -> list[float]:
    """Return a quantity of the runs with the lowest test error; NaN for those that diverged."""
    errors, values = _values(results, "test_metric"), _values(results, quantity)
    return [values[index] for index in best_k_of_n(errors, num_kept=wanted.num_kept, direction=Direction.MINIMISE)]


def trend(wanted: PaperTable, runs: Sequence[Run]) -> str:
    """Return how the errors change from one batch size to the next at the paper's learning rates, seed by seed."""
    by_size = {size: _by_seed(wanted, size, runs) for size in wanted.published}
    whole = [size for size, results in by_size.items() if len(results) == wanted.num_seeds]
    steps = [
        f"from B = {low:,} to {high:,} test {_change(wanted, by_size[low], by_size[high], 'test_metric')}, "
        f"train {_change(wanted, by_size[low], by_size[high], 'train_metric')}"
        for low, high in itertools.pairwise(whole)
    ]
    found = f"Change at the paper's ε_eff, all {wanted.num_seeds} seeds, paired, 95 % interval: {'; '.join(steps)}."
    return found if steps else ""


def _by_seed(wanted: PaperTable, size: int, runs: Sequence[Run]) -> list[Run]:
    cell = size, wanted.published[size].rate
    found = [r for r in runs if (r["spec"]["batch_size"], r["spec"]["effective_learning_rate"]) == cell]
    return [run["result"] for run in sorted(found, key=lambda run: run["spec"]["seed"])]


def _change(wanted: PaperTable, before: Sequence[Run], after: Sequence[Run], quantity: str) -> str:
    pairs = zip(_values(before, quantity), _values(after, quantity), strict=True)
    interval = t_interval([new - old for old, new in pairs])
    return signed_interval(interval.estimate, (interval.low, interval.high), decimals=wanted.decimals)


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
    num_wanted = wanted.num_seeds * sum(map(len, wanted.rates.values()))
    return (
        f"{wanted.measure}, mean ± standard deviation; {num_finished} of the table's {num_wanted} runs finished; "
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
