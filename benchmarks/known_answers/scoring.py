"""A diagnosis next to the full sweep: is its learning rate within a factor of two, and does its interval cover?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from isotherm.diagnose import Diagnosis

FACTOR = 2.0
# Learning rates tied over more than this factor in the sweep itself: any of them is right.
TIED = 4.0


def scored(found: Diagnosis, optima: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per optimiser with a recommendation, at its batch size.

    If the sweep does not have that batch size, the row is that of the nearest one it has.
    """
    rows = []
    for momentum, size in sorted(found.recommended.items()):
        known = {best["batch_size"]: best for best in optima if best["momentum"] == momentum}
        shown = [c for c in found.choices if c.batch_size in known]
        if shown:
            choice = min(shown, key=lambda c: abs(math.log2(c.batch_size / size)))
            rate = choice.rates[momentum]
            row = {
                "momentum": momentum,
                "recommended": size,
                "batch_size": choice.batch_size,
                "rate": rate.estimate,
                "low": rate.low,
                "high": rate.high,
            }
            rows.append(judged(row, known[choice.batch_size]))
    return rows


def judged(row: dict[str, Any], best: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its distance from the best learning rate of its batch size."""
    return {
        **row,
        "octaves": octaves_off(row["rate"], best),
        "covers": row["low"] <= best["high"] and best["low"] <= row["high"],
        "lost": lost(row["rate"], best),
    }


def octaves_off(rate: float, best: dict[str, Any]) -> float:
    """Return how far a learning rate is from the best one, in octaves; none of those tied for the best is off."""
    if best["high"] > TIED * best["low"]:
        return math.log2(rate / min(max(rate, best["low"]), best["high"]))
    return math.log2(rate / best["rate"])


def lost(rate: float, best: dict[str, Any]) -> float | None:
    """Return what the metric loses at a learning rate, in its own units; None beyond the sweep's learning rates."""
    points = [(math.log2(r), v) for r, v in zip(best["rates"], best["means"], strict=True) if v is not None]
    points = [(x, v) for x, v in points if math.isfinite(v)]
    x = math.log2(rate)
    for (a, left), (b, right) in itertools.pairwise(points):
        if a <= x <= b:
            return abs(best["value"] - (left + (right - left) * (x - a) / (b - a)))
    return None


def is_right(rows: Sequence[dict[str, Any]]) -> bool:
    """Tell whether every optimiser's learning rate is within a factor of two of the sweep's."""
    return len(rows) == 2 and all(abs(row["octaves"]) <= math.log2(FACTOR) + 1e-9 for row in rows)


def is_wrong(rows: Sequence[dict[str, Any]]) -> bool:
    """Tell whether an answer is confidently wrong: off by more than a factor of two, outside its own interval."""
    return any(abs(row["octaves"]) > math.log2(FACTOR) and not row["covers"] for row in rows)
