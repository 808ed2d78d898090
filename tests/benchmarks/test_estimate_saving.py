from __future__ import annotations

from typing import Any

import estimate_saving
from isotherm.core.budget import Budget


def row(repeat: int, estimate: float | None, *, examples: int, rate: float, accuracy: float) -> dict[str, Any]:
    found = {"repeat": repeat, "estimate_at": estimate, "batch_size": 32, "num_examples": examples}
    return {**found, "effective_learning_rate": rate, "test_accuracy": accuracy}


def test_what_was_saved_and_lost_in_a_sentence() -> None:
    rows = [
        row(0, None, examples=100, rate=1.0, accuracy=0.75),
        row(1, None, examples=300, rate=1.0, accuracy=0.75),
        row(0, 2, examples=60, rate=1.0, accuracy=0.74),
        row(1, 2, examples=140, rate=0.5, accuracy=0.75),
    ]
    assert estimate_saving.line(rows, 2) == (
        "estimated at 2 epochs: 50% fewer examples; the optimum moves by 1 octaves at most; +0.50 ± 0.71 points lost "
        "(mean and standard deviation over 2 grids)"
    )


def test_the_sweeps_differ_in_the_estimate_alone() -> None:
    plain, estimated = (estimate_saving.sweep_of(epochs, 1) for epochs in (None, 2))
    assert (plain.estimate_at, estimated.estimate_at) == (None, Budget.epochs(2))
    assert plain.plan().seeds == estimated.plan().seeds == (1000, 1001, 1002, 1003, 1004)
