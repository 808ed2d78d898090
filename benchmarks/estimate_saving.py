"""What it saves to estimate a grid at a small budget, and what it costs: on the embedded task, with and without.

    python benchmarks/estimate_saving.py [--repeats 3]      # minutes on one core; writes benchmarks/results

Every repeat has seeds of its own. The sweep without an estimate is run first and the others share its runs, so that
they differ in the protocol alone.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from typing import Any

import isotherm as it
from isotherm.core.json import json_text
from isotherm.running.store import Store
from pages.results import RESULTS

FILE = RESULTS / "estimate_saving.json"
BATCH_SIZES = (32, 256)
NUM_EPOCHS = 20
NUM_SEEDS = 5
ESTIMATES = (None, 1, 2, 5)  # epochs


def main() -> None:
    """Measure, and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    rows: list[dict[str, Any]] = []
    for repeat in range(repeats):
        rows += measured(repeat)
        print(f"repeat {repeat + 1} of {repeats} is done", flush=True)
    content = {
        "command": f"python benchmarks/estimate_saving.py --repeats {repeats}",
        "task": "mlp_mnist1d",
        "epochs": NUM_EPOCHS,
        "num_seeds": NUM_SEEDS,
        "rows": rows,
    }
    FILE.write_text(json_text(content))
    for epochs in ESTIMATES[1:]:
        print(line(rows, epochs))


def measured(repeat: int) -> list[dict[str, Any]]:
    """Return a row for every estimate and batch size: examples, optimum and accuracy beside those without estimate."""
    rows: list[dict[str, Any]] = []
    with Store.in_memory() as store:
        for epochs in ESTIMATES:
            results = it.run(sweep_of(epochs, repeat), store=store)
            for grid in results.grids():
                estimating = [g for g in results.estimating_grids() if g.axes.batch_size == grid.axes.batch_size]
                best = grid.optimum()
                accuracy = grid.at_optimum("test_metric")
                assert best is not None
                assert accuracy is not None
                rows.append(
                    {
                        "repeat": repeat,
                        "estimate_at": epochs,
                        "batch_size": grid.axes.batch_size,
                        "num_examples": sum(g.num_runs * g.num_steps * g.axes.batch_size for g in (grid, *estimating)),
                        "effective_learning_rate": best.effective_learning_rate,
                        "is_at_edge": best.at_edge,
                        "test_accuracy": accuracy.mean,
                        "standard_error": accuracy.standard_error,
                    }
                )
    return rows


def sweep_of(epochs: float | None, repeat: int) -> it.Sweep:
    """Return the sweep, estimated at so many epochs or not at all."""
    return it.Sweep(
        name=f"estimate_{epochs}",
        task=it.get_task("mlp_mnist1d"),
        batch_sizes=BATCH_SIZES,
        effective_learning_rates=it.powers_of_two(-6, 4),
        budget=it.Budget.epochs(NUM_EPOCHS),
        estimate_at=None if epochs is None else it.Budget.epochs(epochs),
        num_seeds=NUM_SEEDS,
        first_seed=1000 * repeat,
        num_evaluations=0,
    )


def line(rows: Sequence[dict[str, Any]], epochs: float | None) -> str:
    """Return what one estimate saved and lost, over all repeats and batch sizes, in a sentence."""
    plain = {(row["repeat"], row["batch_size"]): row for row in rows if row["estimate_at"] is None}
    pairs = [(row, plain[row["repeat"], row["batch_size"]]) for row in rows if row["estimate_at"] == epochs]
    spent = sum(row["num_examples"] for row, _ in pairs) / sum(other["num_examples"] for _, other in pairs)
    lost = [100 * (other["test_accuracy"] - row["test_accuracy"]) for row, other in pairs]
    octaves = [abs(math.log2(r["effective_learning_rate"] / o["effective_learning_rate"])) for r, o in pairs]
    return (
        f"estimated at {epochs} epochs: {1 - spent:.0%} fewer examples; the optimum moves by {max(octaves):.2g} "
        f"octaves at most; {statistics.mean(lost):+.2f} ± {statistics.stdev(lost):.2f} points lost "
        f"(mean and standard deviation over {len(pairs)} grids)"
    )


if __name__ == "__main__":
    main()
