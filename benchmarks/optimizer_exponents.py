"""How the optimal learning rate grows with the batch size: SGD, AdamW and Muon at equal steps.

    python benchmarks/optimizer_exponents.py [--store FILE] [--network mlp gpt]      # writes benchmarks/results
    python benchmarks/optimizer_exponents.py --page              # writes the tables of docs/optimizers.md

The embedded MLP, and a small transformer on text. AdamW and Muon are run with betas that are the same at every batch
size, and with betas whose half-life in examples is. With --store what was run before is not run again.
"""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import isotherm as it
from isotherm.bench.machine import commit, cpu_name
from isotherm.core.json import json_text
from pages.blocks import Page
from pages.results import NOT_MEASURED, RESULTS, load
from pages.text import paragraph

PAGE = Path(__file__).parents[1] / "docs" / "optimizers.md"
REFERENCE = 32  # the batch size at which scaled betas are the usual ones
WEIGHT_DECAY = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """A network, and the sweeps over it; `temperature` and `ceiling` are where the grids of SGD begin."""

    task: str
    options: Mapping[str, Any]
    batch_sizes: tuple[int, ...]
    num_steps: int
    num_seeds: int
    temperature: float
    ceiling: float

    @property
    def file(self) -> Path:
        """The result file."""
        return RESULTS / f"optimizer_exponents_{self.task}.json"


NETWORKS = {
    "mlp": Network(
        task="mlp_mnist1d",
        options={},
        batch_sizes=(8, 16, 32, 64, 128, 256, 512),
        num_steps=1000,
        num_seeds=5,
        temperature=2**-5,
        ceiling=8.0,
    ),
    "gpt": Network(
        task="gpt_text",
        options={"context": 16},
        batch_sizes=(8, 16, 32, 64, 128),
        num_steps=300,
        num_seeds=3,
        temperature=2**-4,
        ceiling=8.0,
    ),
}

OPTIMIZERS: dict[str, it.SGD | it.AdamW | it.Muon] = {
    "SGD momentum 0.9": it.SGD(momentum=0.9),
    "AdamW fixed betas": it.AdamW(weight_decay=WEIGHT_DECAY),
    "AdamW scaled betas": it.AdamW(weight_decay=WEIGHT_DECAY, reference_batch_size=REFERENCE),
    "Muon fixed betas": it.Muon(weight_decay=WEIGHT_DECAY),
    "Muon scaled betas": it.Muon(weight_decay=WEIGHT_DECAY, reference_batch_size=REFERENCE),
}


def main() -> None:
    """Measure and write the result files, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("optimizer_exponents.sqlite"))
    parser.add_argument("--network", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    if given.page:
        blocks = {f"exponents_{name}": functools.partial(block, name) for name in NETWORKS}
        Page(name="optimizers", blocks=blocks).write(PAGE)
        return
    for name in given.network:
        rows = []
        for optimizer in OPTIMIZERS:
            rows.append(measured(optimizer, given.store, NETWORKS[name], workers=given.workers))
            print(rows[-1]["words"], flush=True)
        NETWORKS[name].file.write_text(json_text(content_of(rows, name)))


def content_of(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return what the result file of a network holds."""
    network = NETWORKS[name]
    return {
        "command": f"python benchmarks/optimizer_exponents.py --network {name}",
        "hardware": f"{cpu_name()}, float32",
        "commit": commit(),
        "task": network.task,
        "num_steps": network.num_steps,
        "num_seeds": network.num_seeds,
        "batch_sizes": list(network.batch_sizes),
        "reference_batch_size": REFERENCE,
        "rows": rows,
    }


def sweep_of(name: str, network: Network) -> it.Sweep:
    """Return the sweep of an optimiser; its grids are extended and refined around their optima."""
    optimizer = OPTIMIZERS[name]
    rates: dict[str, Any] = {"learning_rates": it.powers_of_two(-9, -4)}
    if isinstance(optimizer, it.SGD):
        grid = it.IsothermGrid(temperature=network.temperature, ceiling=network.ceiling)
        rates = {"effective_learning_rates": grid}
    task = it.get_task(network.task)
    return it.Sweep(
        name=f"{network.task} {name}",
        task=task.with_options(model=network.options) if network.options else task,
        batch_sizes=network.batch_sizes,
        budget=it.Budget.steps(network.num_steps),
        optimizer=optimizer,
        num_seeds=network.num_seeds,
        tune_on="test",
        num_evaluations=0,
        max_extensions=4,
        **rates,
    )


def measured(name: str, store: Path, network: Network, *, workers: int) -> dict[str, Any]:
    """Return the exponent of an optimiser, with its interval, and the optimum of every batch size."""
    results = it.run(sweep_of(name, network), store=store, workers=workers)
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
                "test_metric": None if tuned.test is None else tuned.test.mean,
                "standard_deviation": None if tuned.test is None else tuned.test.standard_deviation,
            }
            for tuned in sweep.grids
        ],
    }


def block(name: str) -> str:
    """Return the table of a network's result file, and where it comes from."""
    content = load(NETWORKS[name].file.stem)
    if content is None:
        return NOT_MEASURED
    return f"{table(content['rows'], NETWORKS[name])}\n\n{origin(content, name)}"


def origin(content: Mapping[str, Any], name: str) -> str:
    """Return what was run, and where."""
    num_runs = sum(row["num_runs"] for row in content["rows"])
    return paragraph(
        f"{content['num_steps']:,} updates, {content['num_seeds']} seeds at every learning rate, {num_runs:,} runs; "
        f"{content['hardware']}, commit {content['commit']}: `{content['command']}`, "
        f"benchmarks/results/{NETWORKS[name].file.name}. Exponents with 95 % intervals."
    )


def table(rows: list[Mapping[str, Any]], network: Network) -> str:
    """Return the table of the page: exponents, the verdicts on both rules and the kink, every batch size's optimum."""
    sizes = " | ".join(f"ε at B = {size}" for size in network.batch_sizes)
    claims = "ε ∝ B | ε ∝ √B | rise ends at a kink | lines with a kink"
    lines = [
        f"| optimizer | runs | exponent of ε against B | {claims} | {sizes} |",
        "|---|---|---|---|---|---|---|" + "---|" * len(network.batch_sizes),
    ]
    for row in rows:
        low, high = row["interval"]
        optima = " | ".join(_optimum(grid, network) for grid in row["grids"])
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


def _optimum(grid: Mapping[str, Any], network: Network) -> str:
    metric = grid["test_metric"]
    shown = f"{100 * metric:.1f} %" if network.task == "mlp_mnist1d" else f"{metric:.2f}"
    return f"{grid['learning_rate']:.3g} ({shown}){'' if grid['edge'] == 'interior' else ', ' + grid['edge']}"


if __name__ == "__main__":
    main()
