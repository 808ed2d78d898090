"""Does a diagnosis agree with the full sweep, at a small fraction of its cost?

Run:     python benchmarks/diagnose_accuracy.py --json benchmarks/results/diagnose_quickstart.json
         python benchmarks/diagnose_accuracy.py --task autoencoder_mnist --data DATA --device cuda --json FILE
         python benchmarks/diagnose_accuracy.py --write docs/diagnose.md
Cost:    ten diagnoses of the given minutes
Expect:  recommended learning rates and boundaries within a factor of two of the sweep in at least nine of ten seeds

The quickstart's optima are those of results/quickstart/quickstart.json: 20 epochs, with and without momentum, five
seeds at every learning rate. The compute of both is counted in training examples. For the autoencoder the published
optimum is ε_eff = 0.08 at B = 64.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
from pathlib import Path
from typing import Any

import isotherm as it
from isotherm.bench.machine import commit, machine
from isotherm.diagnose import DiagnoseOptions, Diagnosis, diagnose
from isotherm.running.runner import default_workers
from isotherm.tasks.task import Task
from pages.blocks import Page
from pages.results import NOT_MEASURED, ROOT, load

SWEEP = ROOT / "results" / "quickstart" / "quickstart.json"
BATCH_SIZES = (8, 16, 32, 64, 128, 256)
FACTOR = 2.0
# Published optima: task -> batch size, effective learning rate.
PUBLISHED = {"autoencoder_mnist": (64, 0.08)}


def sweep_of(content: dict[str, Any], momentum: float) -> dict[str, Any]:
    """Return the quickstart's sweep at constant epochs with a momentum."""
    (found,) = [s for s in content["sweeps"] if s["name"] == "constant_epochs" and s["momentum"] == momentum]
    return dict(found)


def examples_of_sweep(content: dict[str, Any]) -> int:
    """Return the number of training examples that all runs of the quickstart processed."""
    grids = [grid for sweep in content["sweeps"] for grid in sweep["grids"]]
    return sum(grid["num_runs"] * grid["num_steps"] * grid["batch_size"] for grid in grids)


def quickstart_task() -> Task:
    """Return the task as the quickstart trains it."""
    return dataclasses.replace(it.get_task("mlp_mnist1d"), l2=5e-4)


def compared(diagnosis: Diagnosis, content: dict[str, Any]) -> dict[str, Any]:
    """Return a diagnosis next to the sweep: ratios of learning rates and boundaries, for both momenta."""
    row: dict[str, Any] = {
        "seconds": diagnosis.cost.seconds,
        "num_examples": diagnosis.cost.num_examples,
        "num_runs": diagnosis.cost.num_runs,
        "recommended": diagnosis.recommended,
        "missing": list(diagnosis.missing),
        "temperature": None
        if diagnosis.isotherm.temperature is None
        else dataclasses.asdict(diagnosis.isotherm.temperature),
    }
    rates, kinks = {}, {}
    for momentum in (0.0, 0.9):
        sweep = sweep_of(content, momentum)
        optima = {grid["batch_size"]: grid["optimal_effective_learning_rate"] for grid in sweep["grids"]}
        chosen = {c.batch_size: c.rates[momentum].estimate for c in diagnosis.choices if momentum in c.rates}
        rates[momentum] = {size: chosen[size] / optima[size] for size in BATCH_SIZES if size in chosen}
        border = diagnosis.boundary(momentum)
        kinks[momentum] = None if border is None else border.estimate / sweep["regimes"]["kink_batch_size"]
    row["rate_factors"], row["boundary_factors"] = rates, kinks
    row["rates_agree"] = all(
        len(found) == len(BATCH_SIZES) and all(1 / FACTOR <= factor <= FACTOR for factor in found.values())
        for found in rates.values()
    )
    row["boundaries_agree"] = all(k is not None and 1 / FACTOR <= k <= FACTOR for k in kinks.values())
    return row


def quickstart(*, minutes: float, num_seeds: int, workers: int, path: Path | None) -> dict[str, Any]:
    """Diagnose the quickstart's task with several seeds."""
    content = json.loads(SWEEP.read_text())
    total = examples_of_sweep(content)
    result: dict[str, Any] = {
        "task": "mlp_mnist1d, L2 5e-4",
        "minutes": minutes,
        "sweep_examples": total,
        "sweep_seconds": content["seconds"],
        "sweep_kinks": [sweep_of(content, m)["regimes"]["kink_batch_size"] for m in (0.0, 0.9)],
        "rows": [],
    }
    for seed in range(num_seeds):
        found = diagnose(quickstart_task(), DiagnoseOptions(minutes=minutes, seed=seed, workers=workers))
        row = {"seed": seed, **compared(found, content), "part_of_sweep": found.cost.num_examples / total}
        result["rows"].append(row)
        worst = max((abs(math.log2(f)) for fs in row["rate_factors"].values() for f in fs.values()), default=math.inf)
        kinks = ", ".join("none" if k is None else f"{k:.2f}" for k in row["boundary_factors"].values())
        print(
            f"seed {seed}: rates within a factor {2**worst:.2f}, boundaries {kinks}; {row['seconds']:.0f} s, "
            f"{row['part_of_sweep']:.3f} of the sweep's examples",
            flush=True,
        )
        _write(path, result)
    for name in ("rates_agree", "boundaries_agree"):
        print(f"{name}: {sum(row[name] for row in result['rows'])} of {num_seeds}")
    return result


def published(name: str, *, data: Path | None, device: str, minutes: float, num_seeds: int, path: Path | None) -> None:
    """Diagnose a task of the paper and compare with its optimum."""
    size, optimum = PUBLISHED[name]
    result: dict[str, Any] = {"task": name, "minutes": minutes, "batch_size": size, "published": optimum, "rows": []}
    task = it.get_task(name, data=data)
    for seed in range(num_seeds):
        found = diagnose(task, DiagnoseOptions(minutes=minutes, seed=seed, device=device, batch_size=size))
        choice = next((c for c in found.choices if c.batch_size == size), None)
        rates = {} if choice is None else {m: dataclasses.asdict(i) for m, i in choice.rates.items()}
        row = {"seed": seed, "rates": rates, "diagnosis": found.to_json()}
        result["rows"].append(row)
        print(f"seed {seed}: {rates}; {found.cost.seconds:.0f} s; published {optimum}", flush=True)
        _write(path, result, device)


# -- the page --------------------------------------------------------------------------------------------------------


def block(content: dict[str, Any] | None, of_paper: dict[str, Any] | None) -> str:
    """Return the page's text on accuracy, from the available result files."""
    parts = [NOT_MEASURED if content is None else _quickstart_text(content)]
    if of_paper is not None:
        parts.append(_published_text(of_paper))
    return "\n\n".join(parts)


def _quickstart_text(content: dict[str, Any]) -> str:
    rows, n = content["rows"], len(content["rows"])
    seconds = [row["seconds"] for row in rows]
    part = statistics.mean(row["part_of_sweep"] for row in rows)
    lines = [
        f"On the quickstart's task ({content['task']}), {n} seeds, each given {60 * content['minutes']:g} s on "
        f"{content['machine']['cores']} cores of an {content['machine']['cpu']} (commit {content['commit']}): the "
        "recommended ε_eff is within a factor of two of the full sweep's optimum at all of B = 8 … 256, with and "
        f"without momentum, in **{sum(row['rates_agree'] for row in rows)} of {n}** seeds, and both boundaries B\\* "
        f"within a factor of two of the sweep's kinks in **{sum(row['boundaries_agree'] for row in rows)} of {n}**. "
        f"Its runs processed {100 * part:.1f} % of the sweep's examples; a diagnosis took {min(seconds):.0f} to "
        f"{max(seconds):.0f} s, the sweep {content['sweep_seconds']:.0f} s on a machine of the same kind.",
        "",
        "| seed | temperature | worst ratio of ε_eff, SGD | momentum 0.9 | B\\* / kink, SGD | momentum 0.9 | s |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        worst = [_worst(row["rate_factors"][m]) for m in ("0.0", "0.9")]
        borders = ["–" if k is None else f"{k:.2f}" for k in row["boundary_factors"].values()]
        t = row["temperature"]
        words = "–" if t is None else f"{t['estimate']:.4f} [{t['low']:.4f}, {t['high']:.4f}]"
        lines.append(
            f"| {row['seed']} | {words} | {' | '.join(worst)} | {' | '.join(borders)} | {row['seconds']:.0f} |"
        )
    kinks = " and ".join(f"{kink:.0f}" for kink in content["sweep_kinks"])
    lines += ["", f"The sweep's temperature is 1/32 = 0.0312 on a grid of factors of two; its kinks are {kinks}."]
    return "\n".join(lines)


def _worst(factors: dict[str, float]) -> str:
    if not factors:
        return "–"
    size, factor = max(factors.items(), key=lambda item: abs(math.log2(item[1])))
    return f"{factor:.2f} (B = {size})"


def _published_text(content: dict[str, Any]) -> str:
    found = []
    for row in content["rows"]:
        rate = row["rates"].get("0.9")
        found.append("none" if rate is None else f"{rate['estimate']:.3g} [{rate['low']:.3g}, {rate['high']:.3g}]")
    where = content["machine"]["gpu"] or content["machine"]["cpu"]
    return (
        f"On `{content['task']}` ({where}, {content['minutes']:g} min, n = {len(found)}, commit {content['commit']}) "
        f"the recommended ε_eff at B = {content['batch_size']} is {'; '.join(found)}; the paper's optimum is "
        f"{content['published']:g}."
    )


def accuracy_block() -> str:
    """Return the block of the page."""
    return block(load("diagnose_quickstart"), load("diagnose_autoencoder"))


PAGE = Page(name="diagnose", blocks={"accuracy": accuracy_block})


def _write(path: Path | None, content: dict[str, Any], device: str = "cpu") -> None:
    if path is not None:
        everything = {"machine": machine(device), "commit": commit(), **content}
        path.write_text(json.dumps(everything, indent=1))


def main() -> None:
    """Measure or write, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="quickstart", choices=["quickstart", *PUBLISHED])
    parser.add_argument("--minutes", type=float, default=0.5)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=Path, help="write the results into this page instead of measuring")
    options = parser.parse_args()
    if options.write is not None:
        PAGE.write(options.write)
        return
    if options.task == "quickstart":
        workers = options.workers or default_workers("cpu")
        quickstart(minutes=options.minutes, num_seeds=options.seeds, workers=workers, path=options.json)
    else:
        published(
            options.task,
            data=options.data,
            device=options.device,
            minutes=options.minutes,
            num_seeds=options.seeds,
            path=options.json,
        )


if __name__ == "__main__":
    main()
