"""Train cells of the paper's table 7, the autoencoder at 156,250 updates, and export them.

    python benchmarks/table7.py run STORE 64 256 --data FOLDER         # trains what is missing, on a GPU
    python benchmarks/table7.py export STORE ... --commit 3dfdbee      # writes results/table7/table7.json

Every batch size has the learning rates 0.04, 0.08 and 0.16 and seven seeds; the paper keeps the best five.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from isotherm.core.json import json_text
from isotherm.running.store import Store, StoredRun
from pages.results import ROOT

FILE = ROOT / "results" / "table7" / "table7.json"
RATES = (0.04, 0.08, 0.16)
NUM_SEEDS, NUM_KEPT, NUM_STEPS = 7, 5, 156_250


def train(store: Path, batch_sizes: Sequence[int], *, data: Path) -> None:
    """Train what the store lacks."""
    import isotherm as it

    sweep = it.Sweep(
        task=it.get_task("autoencoder_mnist", data=data),
        batch_sizes=list(batch_sizes),
        effective_learning_rates=RATES,
        budget=it.Budget.steps(NUM_STEPS),
        momentum=0.9,
        num_seeds=NUM_SEEDS,
        num_kept=NUM_KEPT,
        tune_on="test",
        max_extensions=0,
        name="table7",
        precision="mixed",
    )
    it.run(sweep, store=store, device="cuda")


def exported(runs: Sequence[StoredRun], *, commit: str, command: str) -> dict[str, object]:
    """Return runs as a result file: specification, result and provenance of each, in the order of the table."""
    ordered = sorted(runs, key=lambda run: (run.spec.batch_size, run.spec.effective_learning_rate, run.spec.seed))
    rows = [{"spec": r.spec.to_json(), "result": r.result.to_json(), "provenance": r.provenance} for r in ordered]
    return {"commit": commit, "command": command, "num_runs": len(rows), "runs": rows}


def main() -> None:
    """Train or export."""
    parser = argparse.ArgumentParser(description="Train cells of table 7, or export them.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("store", type=Path)
    run.add_argument("batch_sizes", type=int, nargs="+")
    run.add_argument("--data", type=Path, required=True)
    export = commands.add_parser("export")
    export.add_argument("stores", type=Path, nargs="+")
    export.add_argument("--commit", required=True)
    options = parser.parse_args()
    if options.command == "run":
        train(options.store, options.batch_sizes, data=options.data)
        return
    runs: dict[str, StoredRun] = {}
    for path in options.stores:
        with Store.read(path) as store:
            runs |= {stored.spec.key: stored for stored in store.runs()}
    sizes = sorted({stored.spec.batch_size for stored in runs.values()})
    command = f"python benchmarks/table7.py run STORE {' '.join(map(str, sizes))} --data FOLDER"
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json_text(exported(list(runs.values()), commit=options.commit, command=command)))
    print(f"wrote {len(runs)} runs to {FILE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
