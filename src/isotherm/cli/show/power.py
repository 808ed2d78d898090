"""What a study can see, as a table with what it rests on, and as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from isotherm.analysis.power import binomial_error
from isotherm.analysis.sweep_power import SweepPower
from isotherm.analysis.verdicts.margins import POWER
from isotherm.cli.common import escaped
from isotherm.core.json import plain


def print_power(found: Sequence[SweepPower], test_sets: Sequence[int], *, console: Console) -> None:
    """Print the smallest difference and slope that each sweep shows, then where these numbers come from.

    Args:
        found: one entry per sweep.
        test_sets: numbers of test examples where the metric is an accuracy.
        console: where to print.
    """
    console.print(f"\n[bold]What it can see[/], with a power of {POWER:.0%}", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    wanted = [f"seeds for {one.wanted:g}" for one in found[:1] if one.wanted is not None]
    for column in ("sweep", "seeds", "noise", "difference", *wanted, "slope", "grid hides", "unit"):
        names = column in ("sweep", "unit")
        table.add_column(column, justify="left" if names else "right", no_wrap=names or " " not in column)
    for one in found:
        table.add_row(*map(escaped, _row(one)))
    console.print(table)
    for sentence in [*_sentences(found), *map(_test_set_words, test_sets)]:
        console.print(escaped(sentence), highlight=False)


def power_content(found: Sequence[SweepPower]) -> list[dict[str, Any]]:
    """Return the same as JSON values."""
    return [plain({**dataclasses.asdict(one), "words": one.words}) for one in found]


def _row(one: SweepPower) -> list[str]:
    seeds = f"{one.num_seeds} + {one.num_confirm}" if one.num_confirm else str(one.num_seeds)
    noise = None if one.noise is None else _scale(one) * one.noise.standard_deviation
    needed = [] if one.wanted is None else ["–" if one.seeds_needed is None else f"{one.seeds_needed:,}"]
    hidden = "?" if one.hidden is None else f"≤ {one.hidden:.2g}"
    unit = "SD" if one.noise is None else one.unit
    return [one.sweep, seeds, _amount(noise), _amount(one.smallest_difference), *needed, _slope(one), hidden, unit]


def _slope(one: SweepPower) -> str:
    if one.slope is None:
        return "–"
    deviation = one.slope.smallest_deviation
    return "?" if deviation is None else f"± {deviation:.2f}"


def _scale(one: SweepPower) -> float:
    return 100.0 if one.unit == "points" else 1.0


def _amount(value: float | None) -> str:
    return "?" if value is None else "none" if math.isinf(value) else f"{value:.2g}"


def _sentences(found: Sequence[SweepPower]) -> list[str]:
    """Return every sentence once, by topic; with the names of its sweeps where it is not about all of them."""
    about: dict[tuple[int, str], list[str]] = {}
    for one in found:
        for topic, sentence in enumerate(one.words):
            about.setdefault((topic, sentence), []).append(one.sweep)
    everyone = [one.sweep for one in found]
    return [
        sentence if names == everyone else f"{', '.join(dict.fromkeys(names))}: {sentence}"
        for (_, sentence), names in sorted(about.items(), key=lambda item: item[0][0])
    ]


def _test_set_words(num_test: int) -> str:
    return (
        f"For claims about new data, {num_test:,} test examples add an error of up to "
        f"{100 * binomial_error(num_test):.2g} points (binomial), however many seeds are run."
    )
