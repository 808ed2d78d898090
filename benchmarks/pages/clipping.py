"""The LSTM's optimal learning rate against the batch size with three kinds of clipping."""

from __future__ import annotations

import json
import math
from typing import Any

from pages.results import ROOT

FILE = ROOT / "results" / "lstm_clipping" / "lstm_clipping.json"
# The paper trains for 40 epochs; a tenth of that keeps the question and fits.
NUM_EPOCHS = 4
NUM_SEEDS = 3
KINDS = ("fixed", "scaled", "none")

Row = dict[str, Any]


def threshold(kind: str, batch_size: int) -> float:
    """Return the norm to which gradients are clipped.

    >>> [threshold(kind, 256) for kind in KINDS]
    [5.0, 2.5, inf]
    """
    return {"fixed": 5.0, "scaled": 5.0 * math.sqrt(64 / batch_size), "none": math.inf}[kind]


def learning_rates(kind: str, batch_size: int) -> tuple[float, ...]:
    """Return effective learning rates a factor of two apart, wide enough for ε ∝ √B and ε ∝ B alike.

    >>> learning_rates("fixed", 64)
    (0.7, 1.4, 2.8, 5.6, 11.2)
    >>> learning_rates("none", 64)
    (0.0875, 0.175, 0.35, 0.7, 1.4)
    """
    centre = {16: 1.0, 32: 1.7, 64: 2.8, 128: 4.7, 256: 8.0}[batch_size] / (8 if kind == "none" else 1)
    return tuple(centre * 2.0**power for power in (-2, -1, 0, 1, 2))


def rows() -> list[Row]:
    """Return the runs so far."""
    return list(json.loads(FILE.read_text())["runs"]) if FILE.exists() else []
