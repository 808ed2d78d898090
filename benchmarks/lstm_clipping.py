"""Is the √B law of the LSTM's learning rate due to clipping? Train its optima with three kinds of clipping.

    python benchmarks/lstm_clipping.py run STORE 16 64 256 --data FOLDER      # trains what is missing, on a GPU
    python benchmarks/lstm_clipping.py export STORE ... --commit 3dfdbee      # adds to results/lstm_clipping

The paper's LSTM clips gradients to a norm of 5. Where every gradient is clipped and most of it is noise, its norm falls
as 1/√B, so that clipping multiplies the learning rate by √B: a constant temperature then needs ε ∝ √B where it needs
ε ∝ B without clipping. With the threshold 5·√(64/B) a constant fraction of the noise is cut at every batch size.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import isotherm as it
from calibration import Printed
from isotherm.core.json import json_text
from isotherm.running.store import Store
from pages import clipping
from paper_table import add_known, merged, new_rows, rows_of


def main() -> None:
    """Train or export, as the command line says."""
    options = _parser().parse_args()
    earlier = clipping.rows()
    if options.command == "run":
        study = study_of(options.batch_sizes, options.kinds, data=options.data, num_steps=options.steps)
        add_known(options.store, earlier, study)
        progress = Printed(" ".join(options.kinds))
        seconds = options.checkpoint_seconds
        it.run_study(study, store=options.store, device=options.device, checkpoint_seconds=seconds, progress=progress)
        return
    rows = []
    for path in options.stores:
        with Store.read(path) as store:
            rows += new_rows(earlier, rows_of(store.runs(), commit=options.commit))
    everything = merged(earlier, rows)
    clipping.FILE.parent.mkdir(parents=True, exist_ok=True)
    sizes = " ".join(str(size) for size in sorted({row["spec"]["batch_size"] for row in everything}))
    command = f"python benchmarks/lstm_clipping.py run STORE {sizes} --data FOLDER"
    clipping.FILE.write_text(json_text({"command": command, "num_runs": len(everything), "runs": everything}))
    print(f"{len(rows)} runs exported, {len(everything)} in {clipping.FILE.name}")


def study_of(
    batch_sizes: Sequence[int], kinds: Sequence[str], *, data: Path | None, num_steps: int | None = None
) -> it.Study:
    """Return these kinds of clipping as a study; a number of updates only tries the script."""
    task = it.get_task("lstm_ptb", data=data)
    budget = it.Budget.epochs(clipping.NUM_EPOCHS) if num_steps is None else it.Budget.steps(num_steps)
    sweeps = [
        it.Sweep(
            task=task,
            batch_sizes=[size],
            effective_learning_rates=clipping.learning_rates(kind, size),
            budget=budget,
            momentum=0.9,
            clip_norm=clipping.threshold(kind, size),
            num_seeds=clipping.NUM_SEEDS,
            tune_on="validation",
            num_evaluations=2,
            max_extensions=0,
            resolution="paper",
            name=f"{kind}, B = {size}",
        )
        for size in batch_sizes
        for kind in kinds
    ]
    return it.Study(name="lstm_clipping", sweeps=tuple(sweeps))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Train the LSTM with three kinds of clipping, or export the runs.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train what the store lacks")
    run.add_argument("store", type=Path)
    run.add_argument("batch_sizes", type=int, nargs="+")
    run.add_argument("--kinds", nargs="+", choices=clipping.KINDS, default=list(clipping.KINDS))
    run.add_argument("--data", type=Path, required=True)
    run.add_argument("--device", default="cuda")
    run.add_argument("--checkpoint-seconds", type=float, default=30.0)
    run.add_argument("--steps", type=int, help="fewer updates, to try the script")
    export = commands.add_parser("export", help="add the runs of stores to the result file")
    export.add_argument("stores", type=Path, nargs="+")
    export.add_argument("--commit", required=True, help="that trained them")
    return parser


if __name__ == "__main__":
    main()
