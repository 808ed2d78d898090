"""How the optimal learning rate grows with the batch size: SGD, AdamW and Muon on the embedded task, at equal steps.

    python benchmarks/optimizer_exponents.py [--store FILE]      # minutes on one core; writes benchmarks/results
    python benchmarks/optimizer_exponents.py --page              # writes the table of docs/optimizers.md

AdamW and Muon are run with betas that are the same at every batch size, and with betas whose half-life in examples is.
With --store what was run before is not run again.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import isotherm as it
from isotherm.core.json import json_text
from pages.blocks import Page
from pages.results import NOT_MEASURED, RESULTS, load

FILE = RESULTS / "optimizer_exponents.json"
PAGE = Path(__file__).parents[1] / "docs" / "optimizers.md"
BATCH_SIZES = (8, 32, 128, 512)
NUM_STEPS = 500
NUM_SEEDS = 3
REFERENCE = 32  # the batch size at which scaled betas are the usual ones
WEIGHT_DECAY = 0.01

OPTIMIZERS: dict[str, it.SGD | it.AdamW | it.Muon] = {
    "SGD momentum 0.9": it.SGD(momentum=0.9),
    "AdamW fixed betas": it.AdamW(weight_decay=WEIGHT_DECAY),
    "AdamW scaled betas": it.AdamW(weight_decay=WEIGHT_DECAY, reference_batch_size=REFERENCE),
    "Muon fixed betas": it.Muon(weight_decay=WEIGHT_DECAY),
    "Muon scaled betas": it.Muon(weight_decay=WEIGHT_DECAY, reference_batch_size=REFERENCE),
}


def main() -> None:
    """Measure and write the result file, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("optimizer_exponents.sqlite"))
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    if given.page:
        Page(name="optimizers", blocks={"exponents": block}).write(PAGE)
        return
    rows = []
    for name in OPTIMIZERS:
        rows.append(measured(name, given.store))
        print(rows[-1]["words"], flush=True)
    FILE.write_text(json_text(content_of(rows)))


def content_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the result file holds."""
    return {
        "command": "python benchmarks/optimizer_exponents.py",
        "hardware": "one of two CPU cores, float32",
        "task": "mlp_mnist1d",
        "num_steps": NUM_STEPS,
        "num_seeds": NUM_SEEDS,
        "batch_sizes": list(BATCH_SIZES),
        "reference_batch_size": REFERENCE,
        "rows": rows,
    }


def sweep_of(name: str) -> it.Sweep:
    """Return the sweep of an optimiser; its grids are extended where the optimum is not inside."""
    optimizer = OPTIMIZERS[name]
    rates: dict[str, Any] = {"learning_rates": it.powers_of_two(-9, -4)}
    if isinstance(optimizer, it.SGD):
        rates = {"effective_learning_rates": it.IsothermGrid(temperature=2**-5, ceiling=8.0)}
    return it.Sweep(
        name=name,
        task=it.get_task("mlp_mnist1d"),
        batch_sizes=BATCH_SIZES,
        budget=it.Budget.steps(NUM_STEPS),
        optimizer=optimizer,
        num_seeds=NUM_SEEDS,
        tune_on="test",
        num_evaluations=0,
        resolution="paper",
        max_extensions=4,
        **rates,
    )


def measured(name: str, store: Path) -> dict[str, Any]:
    """Return the exponent of an optimiser, with its interval, and the optimum of every batch size."""
    results = it.run(sweep_of(name), store=store)
    found = it.analyse(results)
    (law,) = found.regimes
    (sweep,) = found.sweeps
    return {
        "name": name,
        "num_runs": sum(grid.grid.num_runs for grid in sweep.grids),
        "exponent": law.slope.estimate,
        "interval": [law.slope.low, law.slope.high],
        "kink": law.kink_words,
        "shows_kink": law.shows_kink,
        "words": f"{name}: {law}",
        "verdicts": [{"claim": verdict.claim, "state": verdict.state} for verdict in found.verdicts],
        "grids": [
            {
                "batch_size": tuned.axes.batch_size,
                "learning_rate": tuned.learning_rate,
                "rate": tuned.rate,
                "interval": None if tuned.optimum is None else list(tuned.optimum.interval),
                "edge": str(tuned.edge),
                "test_accuracy": None if tuned.test is None else tuned.test.mean,
                "standard_deviation": None if tuned.test is None else tuned.test.standard_deviation,
            }
            for tuned in sweep.grids
        ],
    }


def block() -> str:
    """Return the table of the result file."""
    content = load(FILE.stem)
    return NOT_MEASURED if content is None else table(content["rows"])


def table(rows: list[Mapping[str, Any]]) -> str:
    """Return the table of the page: exponents, the verdicts on both rules and the kink, every batch size's optimum."""
    sizes = " | ".join(f"ε at B = {size}" for size in BATCH_SIZES)
    claims = "ε ∝ B | ε ∝ √B | rise ends at a kink | lines with a kink"
    lines = [
        f"| optimizer | runs | exponent of ε against B | {claims} | {sizes} |",
        "|---|---|---|---|---|---|---|" + "---|" * len(BATCH_SIZES),
    ]
    for row in rows:
        low, high = row["interval"]
        optima = " | ".join(_optimum(grid) for grid in row["grids"])
        exponent = f"{row['exponent']:.2f} [{low:.2f}, {high:.2f}]"
        lines.append(f"| {row['name']} | {row['num_runs']} | {exponent} | {_states(row)} | {_share(row)} | {optima} |")
    return "\n".join(lines)


def _states(row: Mapping[str, Any]) -> str:
    """Return the verdicts on ε ∝ B, on ε ∝ √B, which is not asked of SGD, and on the kink, with its place if seen."""
    claims = {
        "B": "is proportional to the batch size",
        "root": "is proportional to the square root of the batch size",
        "kink": "ends at a kink, above which the optimal learning rate no longer rises",
    }
    found = {name: v["state"] for v in row["verdicts"] for name, end in claims.items() if v["claim"].endswith(end)}
    if row["shows_kink"]:
        found["kink"] = f"{found['kink']}: {row['kink']}"
    return " | ".join(found.get(name, "–") for name in claims)


def _share(row: Mapping[str, Any]) -> str:
    """Return which part of the broken lines that fit the optima have a kink within the batch sizes."""
    share = re.search(r"(\d+) ?% of the lines that fit", row["kink"])
    return "–" if share is None else f"{share[1]} %"


def _optimum(grid: Mapping[str, Any]) -> str:
    accuracy = f"{100 * grid['test_accuracy']:.1f} %"
    return f"{grid['learning_rate']:.3g} ({accuracy}){'' if grid['edge'] == 'interior' else ', ' + grid['edge']}"


if __name__ == "__main__":
    main()
