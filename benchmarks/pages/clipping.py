"""The LSTM's optimal learning rate against the batch size with three kinds of clipping."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from pages.clipping_slopes import power
from pages.paper import TABLE_6
from pages.results import CALIBRATION, ROOT
from pages.text import paragraph, table

FILE = ROOT / "results" / "lstm_clipping" / "lstm_clipping.json"
# The paper trains for 40 epochs; a tenth of that keeps the question and fits.
NUM_EPOCHS = 4
NUM_SEEDS = 3
KINDS = ("fixed", "scaled", "none")
# Above every gradient of a run that trains. Unlike no threshold at all it lets runs of all kinds be one fleet, whose
# evaluation takes as long as its training.
NOTHING_CLIPPED = 1e9
# A run whose perplexity is above the number of words has learnt nothing, or blown up.
VOCABULARY = 10_000

Row = dict[str, Any]


def threshold(kind: str, batch_size: int) -> float:
    """Return the norm to which gradients are clipped.

    >>> [threshold(kind, 256) for kind in KINDS]
    [5.0, 2.5, 1000000000.0]
    """
    return {"fixed": 5.0, "scaled": 5.0 * math.sqrt(64 / batch_size), "none": NOTHING_CLIPPED}[kind]


def learning_rates(kind: str, batch_size: int) -> tuple[float, ...]:
    """Return effective learning rates a factor of two apart, wide enough for ε ∝ √B and ε ∝ B alike.

    >>> learning_rates("fixed", 64)
    (0.7, 1.4, 2.8, 5.6, 11.2)
    >>> learning_rates("none", 64)
    (0.0109375, 0.021875, 0.04375, 0.0875, 0.175)
    """
    centre = {16: 1.0, 32: 1.7, 64: 2.8, 128: 4.7, 256: 8.0}[batch_size] / (64 if kind == "none" else 1)
    return tuple(centre * 2.0**power for power in (-2, -1, 0, 1, 2))


def rows() -> list[Row]:
    """Return the runs so far."""
    return list(json.loads(FILE.read_text())["runs"]) if FILE.exists() else []


def block() -> str:
    """Return how many updates were clipped in table 6, and which runs trained without clipping."""
    clipped = [(f"{size:,}", f"{rate:g}", _percent(parts)) for size, rate, parts in _clipped_fractions()]
    trained = [(f"{size:,}", f"{rate:g}", *_counted(results)) for size, rate, results in _unclipped()]
    origin = (
        f"Mean over runs, their number in brackets. B = 16: `results/calibration/lstm_b16.json`; the others: "
        f"`results/{TABLE_6.name}/{TABLE_6.name}.json`."
    )
    return "\n\n".join(
        (
            table(("B", "ε_eff", f"updates clipped, {TABLE_6.num_steps:,} updates"), clipped),
            paragraph(origin),
            table(("B", "ε_eff", "runs without clipping", "learnt something", "test perplexity of those"), trained),
            paragraph(_origin()),
            *(paragraph(text) for text in (_powers(),) if text),
        )
    )


def rows_of_kind(kind: str) -> list[Row]:
    """Return the runs with a kind of clipping; at B = 64 the fixed threshold is the scaled one too."""
    return [row for row in rows() if row["spec"]["clip_norm"] == threshold(kind, row["spec"]["batch_size"])]


def _powers() -> str:
    """Return the powers of B with which the optima grow, of the kinds for which they are determined."""
    known = {kind: found for kind in KINDS if (found := power(rows_of_kind(kind))) is not None}
    told = [
        f"{kind} {interval.estimate:.2f} [{interval.low:.2f}, {interval.high:.2f}] ({num} seeds)"
        for kind, (interval, num) in known.items()
    ]
    return f"Power of B with which the optimal ε_eff grows, 95 % interval: {'; '.join(told)}." if told else ""


def _clipped_fractions() -> Iterator[tuple[int, float, list[float]]]:
    found: dict[tuple[int, float], list[float]] = {}
    calibration = json.loads((CALIBRATION / "lstm_b16.json").read_text())["runs"]
    for row in (*calibration, *json.loads(TABLE_6.file.read_text())["runs"]):
        cell = row["spec"]["batch_size"], row["spec"]["effective_learning_rate"]
        found.setdefault(cell, []).append(row["result"]["clipped_fraction"])
    yield from ((*cell, parts) for cell, parts in sorted(found.items()))


def _unclipped() -> Iterator[tuple[int, float, list[Row]]]:
    found: dict[tuple[int, float], list[Row]] = {}
    for row in rows():
        if row["spec"]["clip_norm"] in (None, NOTHING_CLIPPED):
            cell = row["spec"]["batch_size"], row["spec"]["effective_learning_rate"]
            found.setdefault(cell, []).append(row["result"])
    yield from ((*cell, results) for cell, results in sorted(found.items()))


def _counted(results: Sequence[Row]) -> tuple[str, str, str]:
    """Return the number of runs, how many learnt something, and their perplexities.

    >>> _counted([{"test_metric": 511.04}, {"test_metric": 1e82}, {"test_metric": None}])
    ('3', '1', '511')
    """
    values = [result["test_metric"] for result in results]
    learnt = [value for value in values if value is not None and value < VOCABULARY]
    return str(len(results)), str(len(learnt)), ", ".join(f"{value:.0f}" for value in learnt) or "–"


def _percent(parts: Sequence[float]) -> str:
    """Return a mean in percent and the number of runs.

    >>> _percent([0.5, 0.6])
    '55.0 % (2)'
    """
    return f"{100 * sum(parts) / len(parts):.1f} % ({len(parts)})"


def _origin() -> str:
    content = json.loads(FILE.read_text())
    devices = sorted({row["provenance"]["device"].removeprefix("cuda: ") for row in content["runs"]})
    commits = sorted({row["commit"] for row in content["runs"]})
    return (
        f"{NUM_EPOCHS} epochs; a run that diverged, or whose test perplexity is above the {VOCABULARY:,} words of the "
        f"vocabulary, has learnt nothing. {content['num_runs']} runs; {', '.join(devices)}, commit "
        f"{', '.join(commits)}: `{content['command']}`. Rows: `results/lstm_clipping/lstm_clipping.json`."
    )
