"""How the optimal learning rate grows with the batch size: SGD, AdamW and Muon at equal steps.

    python benchmarks/optimizer_exponents.py [--store FILE] [--network mlp gpt]      # writes benchmarks/results
    python benchmarks/optimizer_exponents.py --network wrn --optimizer NAME... --store FILE --device cuda --data FOLDER
    python benchmarks/optimizer_exponents.py --show STORE...                         # what stores hold so far
    python benchmarks/optimizer_exponents.py --network wrn --export STORE... --commit COMMIT
    python benchmarks/optimizer_exponents.py --page              # writes the tables of docs/optimizers.md

The embedded MLP, a small transformer on text, and WRN-16-4 on CIFAR-10, which needs a GPU and the data. AdamW and Muon
are run with betas that are the same at every batch size, and with betas whose half-life in examples is. With --store
what was run before is not run again. With --optimizer, --minutes or --steps runs are stored alone, and --export makes
the result file of stores, as far as they go.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import isotherm as it
from isotherm.bench.machine import commit, cpu_name
from isotherm.core.budget import BudgetUnit
from isotherm.core.json import json_text
from isotherm.core.rates import tidy
from isotherm.core.records import CurvePoint, RunSpec
from isotherm.running.store import StoredRun
from isotherm.running.stored import stored_studies
from isotherm.sweep.rounds import Round
from pages.blocks import Page
from pages.results import NOT_MEASURED, RESULTS, load
from pages.text import paragraph

PAGE = Path(__file__).parents[1] / "docs" / "optimizers.md"
REFERENCE = 32  # the batch size at which scaled betas are the usual ones
WEIGHT_DECAY = 0.01


def _same_at_every_size(batch_size: int) -> tuple[float, ...]:
    return it.powers_of_two(-9, -4)


def _around_root(batch_size: int) -> tuple[float, ...]:
    """Return three learning rates around 0.001 at B = 64 and √B times as much at others."""
    centre = 0.001 * (batch_size / 64) ** 0.5
    return tuple(tidy(centre * 4.0**k) for k in (-1, 0, 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """A network, and the sweeps over it.

    `isotherm` is the grid of SGD, and `rates` returns that of AdamW and Muon at a batch size: where they begin.
    `num_confirm` is that of the sweep; without, accuracies are those by which learning rates were chosen.
    """

    task: str
    options: Mapping[str, Any]
    batch_sizes: tuple[int, ...]
    budget: it.Budget
    num_seeds: int
    isotherm: it.IsothermGrid
    rates: Callable[[int], tuple[float, ...]] = _same_at_every_size
    max_extensions: int = 4
    num_confirm: int | None = None

    @property
    def file(self) -> Path:
        """The result file."""
        return RESULTS / f"optimizer_exponents_{self.task}.json"


NETWORKS = {
    "mlp": Network(
        task="mlp_mnist1d",
        options={},
        batch_sizes=(8, 16, 32, 64, 128, 256, 512),
        budget=it.Budget.steps(1000),
        num_seeds=5,
        isotherm=it.IsothermGrid(temperature=2**-5, ceiling=8.0),
    ),
    "gpt": Network(
        task="gpt_text",
        options={"context": 16},
        batch_sizes=(8, 16, 32, 64, 128),
        budget=it.Budget.steps(300),
        num_seeds=3,
        isotherm=it.IsothermGrid(temperature=2**-4, ceiling=8.0),
    ),
    # Few runs, as each takes seconds of a GPU: every run counts towards the optimum.
    "wrn": Network(
        task="wrn16x4_cifar10",
        options={},
        batch_sizes=(64, 256, 1024),
        budget=it.Budget.epochs(20),
        num_seeds=2,
        isotherm=it.IsothermGrid(temperature=2**-6, ceiling=8.0, num_below=1, num_above=1, ratio=4.0),
        rates=_around_root,
        max_extensions=2,
        num_confirm=0,
    ),
}
# Those that need neither a GPU nor data.
ON_CPU = ("mlp", "gpt")

OPTIMIZERS: dict[str, it.SGD | it.AdamW | it.Muon] = {
    "SGD momentum 0.9": it.SGD(momentum=0.9),
    "AdamW fixed betas": it.AdamW(weight_decay=WEIGHT_DECAY),
    "AdamW scaled betas": it.AdamW(weight_decay=WEIGHT_DECAY, reference_batch_size=REFERENCE),
    "Muon fixed betas": it.Muon(weight_decay=WEIGHT_DECAY),
    "Muon scaled betas": it.Muon(weight_decay=WEIGHT_DECAY, reference_batch_size=REFERENCE),
}


def main() -> None:
    """Measure and write the result files, store runs, or write what stores hold, or the page."""
    given = _arguments()
    try:
        if given.page:
            blocks = {f"exponents_{name}": functools.partial(block, name) for name in NETWORKS}
            Page(name="optimizers", blocks=blocks).write(PAGE)
        elif given.show:
            for store in given.show:
                print("\n".join(shown(store)), flush=True)
        elif given.export:
            for name in given.network:
                content = exported(given.export, name, measured_at=given.commit)
                (given.output or NETWORKS[name].file).write_text(json_text(content))
        else:
            _run(given)
    except it.UserError as error:
        sys.exit(f"error: {error}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("optimizer_exponents.sqlite"))
    parser.add_argument("--network", nargs="+", choices=list(NETWORKS), default=list(ON_CPU))
    parser.add_argument("--optimizer", nargs="+", choices=list(OPTIMIZERS), help="rows to run; all by default")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--data", type=Path, help="the folder of the data sets")
    parser.add_argument("--minutes", type=float, help="stop after this time; the same call goes on from there")
    parser.add_argument("--steps", type=int, help="updates of a run, in place of the network's, to try it")
    parser.add_argument("--workers", type=int, help="processes; by default 2 on a CPU, 1 on a GPU")
    parser.add_argument("--fleet-size", type=int, help="runs per fleet; chosen automatically by default")
    parser.add_argument("--show", nargs="+", type=Path, metavar="STORE", help="print what stores hold")
    parser.add_argument("--export", nargs="+", type=Path, metavar="STORE", help="write the result file from stores")
    parser.add_argument("--commit", help="with --export: the commit at which the runs were made")
    parser.add_argument("--output", type=Path, help="with --export: the file, by default in benchmarks/results")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    if given.export and (given.commit is None or len(given.network) > 1):
        parser.error("--export needs --commit, which stores do not hold, and one --network")
    return given


def _run(given: argparse.Namespace) -> None:
    """Run sweeps; write a result file where all rows of a network are run to their end."""
    is_part = given.optimizer is not None or given.minutes is not None or given.steps is not None
    for name in given.network:
        network = NETWORKS[name]
        if given.steps is not None:
            network = dataclasses.replace(network, budget=it.Budget.steps(given.steps))
        found = []
        for optimizer in given.optimizer or OPTIMIZERS:
            results = it.run_study(
                study_of(optimizer, network, data=given.data),
                store=given.store,
                device=given.device,
                workers=given.workers or (2 if given.device == "cpu" else 1),
                fleet_size=given.fleet_size,
                minutes=given.minutes,
                progress=True if sys.stdout.isatty() else Log(),
            )
            found.append((optimizer, joined(results)))
            if is_part:  # analysed by --export, where no time is short
                print("\n".join(found[-1][1].lines()), flush=True)
        if not is_part:
            rows = [row_of(optimizer, results) for optimizer, results in found]
            content = content_of(rows, [results for _, results in found], name, hardware=_hardware(given.device))
            network.file.write_text(json_text(content))
            print("\n".join(row["words"] for row in rows))


class Log:
    """Prints a line for every fleet, for where there is no terminal."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def round_started(self, round_: Round) -> None:
        """Say which runs are missing."""
        self.noted(f"{round_}: {len(round_.specs)} runs")

    def fleet_started(self, specs: Sequence[RunSpec]) -> None:
        """Say which runs are trained."""
        rates = ", ".join(f"{rate:.3g}" for rate in dict.fromkeys(spec.effective_learning_rate for spec in specs))
        self.noted(f"training {len(specs)} runs at B = {specs[0].batch_size}, learning rate {rates}")

    def advanced(self, work: float) -> None:
        """Say nothing."""

    def evaluated(self, spec: RunSpec, point: CurvePoint) -> None:
        """Say nothing."""

    def runs_done(self, runs: Sequence[StoredRun]) -> None:
        """Say how the runs ended."""
        ends = ", ".join(f"{run.result.outcome} {run.result.test_metric}" for run in runs)
        self.noted(f"stored: {ends}")

    def noted(self, sentence: str) -> None:
        """Print a sentence with the time since the start."""
        print(f"{time.monotonic() - self._start:6.1f} s  {sentence}", flush=True)


def _hardware(device: str) -> str:
    """Return what this machine trains with."""
    if device == "cpu":
        return f"{cpu_name()}, float32"
    import torch

    return f"{torch.cuda.get_device_name()}, mixed precision"


def study_of(name: str, network: Network, *, data: Path | None = None) -> it.Study:
    """Return the sweeps of an optimiser, one for all batch sizes whose grids begin alike."""
    optimizer = OPTIMIZERS[name]
    given = it.get_task(network.task, data=data)
    task = given.with_options(model=network.options) if network.options else given
    grids: dict[tuple[float, ...] | it.IsothermGrid, list[int]] = {}
    for batch_size in network.batch_sizes:
        is_sgd = isinstance(optimizer, it.SGD)
        grids.setdefault(network.isotherm if is_sgd else network.rates(batch_size), []).append(batch_size)
    sweeps = [
        it.Sweep(
            name=f"{network.task} {name}",
            task=task,
            batch_sizes=batch_sizes,
            budget=network.budget,
            optimizer=optimizer,
            num_seeds=network.num_seeds,
            num_confirm=network.num_confirm,
            tune_on="test",
            num_evaluations=0,
            max_extensions=network.max_extensions,
            **{"effective_learning_rates" if isinstance(grid, it.IsothermGrid) else "learning_rates": grid},
        )
        for grid, batch_sizes in grids.items()
    ]
    return it.Study(name=f"{network.task} {name}", sweeps=tuple(sweeps))


def joined(results: it.StudyResults) -> it.Results:
    """Return sweeps that differ in their batch sizes and grids as one; their runs are the same."""
    plans = results.plan.sweeps
    plan = dataclasses.replace(
        plans[0],
        batch_sizes=tuple(size for one in plans for size in one.batch_sizes),
        learning_rates=tuple(rates for one in plans for rates in one.learning_rates),
    )
    alike = {dataclasses.replace(one, batch_sizes=(), learning_rates=()) for one in (plan, *plans)}
    assert len(alike) == 1
    return it.Results(plan=plan, by_key=results.by_key, provenance=results.provenance)


def shown(store: Path) -> list[str]:
    """Return what a store holds: the runs of every row, and the optimum of every batch size so far."""
    return [line for results in stored_studies(store) for line in ("", *joined(results).lines())]


def exported(stores: Sequence[Path], name: str, *, measured_at: str) -> dict[str, Any]:
    """Return what the result file of a network holds, from stores with a row or several each.

    Raises:
        UserError: they hold no row of the network, or one of them twice.
    """
    network = NETWORKS[name]
    found: dict[str, it.Results] = {}
    for store in stores:
        for results in stored_studies(store):
            row = results.plan.name.removeprefix(f"{network.task} ")
            if row in found:
                raise it.UserError(f"{store} holds {row!r}, which an earlier store holds too; merge them into one")
            if row in OPTIMIZERS:
                found[row] = joined(results)
    if not found:
        raise it.UserError(f"no store holds a row of {network.task}; give stores of --network {name}")
    for row in OPTIMIZERS.keys() - found:
        print(f"no store holds {row}: the file has no row of it", file=sys.stderr)
    rows = [row_of(row, found[row]) for row in OPTIMIZERS if row in found]
    origins = [origin for one in found.values() for origin in one.as_study().provenance_of_runs()]
    machines = {f"{one['device'].removeprefix('cuda: ')}, torch {one['torch']}" for one in origins}
    precisions = {one.plan.precision for one in found.values()}
    hardware = f"{' and '.join(sorted(machines))}, {' and '.join(sorted(precisions))} precision"
    return content_of(rows, list(found.values()), name, hardware=hardware, measured_at=measured_at)


def content_of(
    rows: list[dict[str, Any]],
    found: Sequence[it.Results],
    name: str,
    *,
    hardware: str,
    measured_at: str | None = None,
) -> dict[str, Any]:
    """Return what the result file of a network holds."""
    plan = found[0].plan
    if len({(one.plan.budgets, one.plan.seeds, one.plan.batch_sizes) for one in found}) > 1:
        raise it.UserError("the rows differ in updates, seeds or batch sizes; give stores of one kind")
    (budget,) = plan.budgets
    return {
        "command": f"python benchmarks/optimizer_exponents.py --network {name}",
        "hardware": hardware,
        "commit": measured_at or commit(),
        "task": plan.task,
        ("num_steps" if budget.unit is BudgetUnit.STEPS else "num_epochs"): budget.amount,
        "num_seeds": len(plan.seeds),
        "batch_sizes": list(plan.batch_sizes),
        "reference_batch_size": REFERENCE,
        "rows": rows,
    }


def row_of(name: str, results: it.Results) -> dict[str, Any]:
    """Return the exponent of an optimiser, with its interval, and the optimum of every batch size.

    The exponent is None where the runs do not determine one, which `words` then says.
    """
    found = it.analyse(results)
    law = next(iter(found.regimes), None)
    (sweep,) = found.sweeps
    at_end = ", ".join(map(str, law.at_end)) if law is not None else ""
    doubt = f"the best learning rate is the lowest or highest one tried at B = {at_end}" if at_end else ""
    if law is None:
        doubt = "fewer than three batch sizes have an optimum"
    is_found = law is not None and not doubt
    return {
        "name": name,
        "num_runs": sum(grid.grid.num_runs for grid in sweep.grids),
        "exponent": law.slope.estimate if law is not None and is_found else None,
        "interval": [law.slope.low, law.slope.high] if law is not None and is_found else None,
        "kink": doubt if law is None else law.kink_words,
        "shows_kink": law is not None and law.shows_kink,
        "words": f"{name}: {law}" if is_found else f"{name}: not determined ({doubt})",
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
        f"{_length(content)}, {content['num_seeds']} seeds at every learning rate, {num_runs:,} runs; "
        f"{content['hardware']}, commit {content['commit']}: `{content['command']}`, "
        f"benchmarks/results/{NETWORKS[name].file.name}. Exponents with 95 % intervals."
    )


def _length(content: Mapping[str, Any]) -> str:
    """Return how long a run is."""
    return f"{content['num_steps']:,} updates" if "num_steps" in content else f"{content['num_epochs']:g} epochs"


def table(rows: list[Mapping[str, Any]], network: Network) -> str:
    """Return the table of the page: exponents, the verdicts on both rules and the kink, every batch size's optimum."""
    sizes = " | ".join(f"ε at B = {size}" for size in network.batch_sizes)
    claims = "ε ∝ B | ε ∝ √B | rise ends at a kink | lines with a kink"
    lines = [
        f"| optimizer | runs | exponent of ε against B | {claims} | {sizes} |",
        "|---|---|---|---|---|---|---|" + "---|" * len(network.batch_sizes),
    ]
    for row in rows:
        optima = " | ".join(_optimum(grid, network) for grid in row["grids"])
        lines.append(
            f"| {row['name']} | {row['num_runs']} | {_exponent(row)} | {_states(row)} | {_share(row)} | {optima} |"
        )
    return "\n".join(lines)


def _exponent(row: Mapping[str, Any]) -> str:
    """Return the exponent with its interval, or why it is not determined."""
    if row["exponent"] is None:
        return str(row["words"]).removeprefix(f"{row['name']}: ")
    low, high = row["interval"]
    return f"{row['exponent']:.2f} [{low:.2f}, {high:.2f}]"


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
    if metric is None:
        return str(grid["edge"])
    shown = f"{metric:.2f}" if network.task == "gpt_text" else f"{100 * metric:.1f} %"
    return f"{grid['learning_rate']:.3g} ({shown}){'' if grid['edge'] == 'interior' else ', ' + grid['edge']}"


if __name__ == "__main__":
    main()
