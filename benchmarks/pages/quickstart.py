"""What the result files of the quickstart and of `noisy_labels` say, as blocks of docs/quickstart.md and README.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isotherm.core.budget import Budget, BudgetUnit
from isotherm.report.wording import momentum_label, rate_text, spread_text
from pages.results import ROOT, load
from pages.text import paragraph, table

Content = dict[str, Any]
_MARKS = {"holds": "✓", "does not hold": "✗", "not determined": "?"}


def folder_of(study: str) -> Path:
    """Return where the results of a study are committed."""
    return ROOT / "results" / study


def content(study: str) -> Content:
    """Return the result file of a study."""
    found = load(study, folder_of(study))
    assert found is not None
    return found


def optima_block(found: Content) -> str:
    """Return one table per budget: what every batch size reaches, and at which learning rate."""
    by_name: dict[str, list[Content]] = {}
    for sweep in found["sweeps"]:
        by_name.setdefault(sweep["name"], []).append(sweep)
    return "\n\n".join(_optima_table(sweeps) for sweeps in by_name.values())


def verdicts_block(found: Content) -> str:
    """Return the verdicts with their evidence."""
    rows = [
        (f"{_MARKS[verdict['state']]} {verdict['state']}", verdict["claim"], _evidence(verdict))
        for verdict in found["verdicts"]
    ]
    return table(("verdict", "claim", "evidence"), rows)


def summary_block(found: Content) -> str:
    """Return in two sentences what it trains and how many of its claims hold."""
    states = [verdict["state"] for verdict in found["verdicts"]]
    counted = [f"{states.count(state)} {_plural(state, states.count(state))}" for state in _MARKS if state in states]
    return paragraph(
        f"The quickstart trains {found['counts']['finished'] + found['counts']['diverged']:,} runs and ends with a "
        f"recommendation, tables, {len(states)} verdicts and a report. Of the verdicts {_listed(counted)}."
    )


def _optima_table(sweeps: Sequence[Content]) -> str:
    budget = Budget(unit=BudgetUnit(sweeps[0]["budget"]["unit"]), amount=sweeps[0]["budget"]["amount"])
    sizes = sorted({grid["batch_size"] for sweep in sweeps for grid in sweep["grids"]})
    rows = []
    for sweep in sweeps:
        grids = {grid["batch_size"]: grid for grid in sweep["grids"]}
        label = momentum_label(sweep["momentum"])
        cells = {f"{label}, test accuracy %": _accuracy, f"{label}, optimal ε_eff": _rate}
        if len(sweeps) == 1:  # at equal steps, where grids grow for the training optimum too
            cells |= {"training loss there": _loss, "ε_eff of the least training loss + L2": _train_rate}
        for name, text in cells.items():
            rows.append((name, *(text(grids[size]) for size in sizes)))
    return table((f"{budget}, B =", *(f"{size:,}" for size in sizes)), rows)


def _accuracy(grid: Content) -> str:
    test = grid["test_accuracy"]
    values = (100 * test["mean"], 100 * test["standard_deviation"])
    return spread_text(*values, percent=True, num=test["num_kept"])


def _rate(grid: Content) -> str:
    return rate_text(grid["optimal_effective_learning_rate"])


def _loss(grid: Content) -> str:
    return f"{grid['train_loss']:.3g}"


def _train_rate(grid: Content) -> str:
    return ("at an end: " if grid["train_optimum_at_end"] else "") + rate_text(
        grid["train_optimal_effective_learning_rate"]
    )


def _evidence(verdict: Mapping[str, Any]) -> str:
    corrected = verdict["p_corrected"]
    p = "" if corrected is None else "p < 0.001" if corrected < 0.001 else f"p = {corrected:.2g}"
    return "; ".join(filter(None, (verdict["evidence"], p)))


def _plural(state: str, num: int) -> str:
    """Return a state as what `num` verdicts do.

    >>> _plural("holds", 2), _plural("does not hold", 2), _plural("not determined", 1)
    ('hold', 'do not hold', 'is not determined')
    """
    words = {"holds": ("holds", "hold"), "does not hold": ("does not hold", "do not hold")}
    return words.get(state, ("is not determined", "are not determined"))[num != 1]


def _listed(parts: Sequence[str]) -> str:
    """Return parts joined as in a sentence.

    >>> _listed(["7 hold", "3 are open"]), _listed(["a", "b", "c"])
    ('7 hold and 3 are open', 'a, b and c')
    """
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
