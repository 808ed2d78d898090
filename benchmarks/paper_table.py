"""Train the runs of a table of the paper, and export them; `table6.py` and `table7.py` are its commands."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import isotherm as it
from calibration import Printed
from isotherm.core.json import json_text
from isotherm.core.records import Outcome, RunResult, RunSpec
from isotherm.running.store import Store, StoredRun
from pages.paper import PaperTable
from pages.results import ROOT

# A row of a result file: specification, result, provenance and commit of a run.
Row = dict[str, Any]


def main(table: PaperTable) -> None:
    """Train or export, as the command line says."""
    options = _parser(table).parse_args()
    if options.command == "run":
        rates = {size: tuple(options.rates or table.rates[size]) for size in options.batch_sizes}
        part = dataclasses.replace(table, rates=rates, num_seeds=options.seeds or table.num_seeds)
        study = study_of(part, options.batch_sizes, data=options.data, num_steps=options.steps)
        known = [row for row in _earlier(table) if row["spec"]["batch_size"] in options.batch_sizes]
        add_known(options.store, known, study)
        progress = Printed(" ".join(str(size) for size in options.batch_sizes))
        seconds = options.checkpoint_seconds
        it.run_study(study, store=options.store, device=options.device, checkpoint_seconds=seconds, progress=progress)
        return
    earlier = _earlier(table)
    rows = rows_of([run for path in options.stores for run in _stored(path)], commit=options.commit)
    rows = new_rows(earlier, rows)
    content = exported(table, merged(earlier, rows))
    table.file.parent.mkdir(parents=True, exist_ok=True)
    table.file.write_text(json_text(content))
    print(f"{len(rows)} runs exported, {content['num_runs']} in {table.file.relative_to(ROOT)}")


def study_of(
    table: PaperTable, batch_sizes: Sequence[int], *, data: Path | None, num_steps: int | None = None
) -> it.Study:
    """Return these batch sizes of a table as a study; another number of updates only tries the script."""
    task = it.get_task(table.task, data=data)
    sweeps = [
        it.Sweep(
            task=task,
            batch_sizes=[size],
            effective_learning_rates=table.rates[size],
            budget=it.Budget.steps(num_steps or table.num_steps),
            momentum=0.9,
            num_seeds=table.num_seeds,
            num_kept=min(table.num_seeds, table.num_kept),
            tune_on="test",
            max_extensions=0,
            resolution="paper",
            name=f"B = {size}",
            precision="mixed",
        )
        for size in batch_sizes
    ]
    return it.Study(name=table.name, sweeps=tuple(sweeps))


def add_known(path: Path, rows: Sequence[Row], study: it.Study) -> None:
    """Put runs of the result file into a study's store, so that they are not trained again."""
    with Store.write(path) as store:
        for identity in study.prepare().identities.values():
            store.put_identity(identity)
        store.put([_run_of(row) for row in rows])


def rows_of(runs: Iterable[StoredRun], *, commit: str) -> list[Row]:
    """Return the rows of runs that a commit trained; those that failed are to be trained again."""
    return [
        {"commit": commit, "spec": r.spec.to_json(), "result": r.result.to_json(), "provenance": r.provenance}
        for r in runs
        if r.result.outcome is not Outcome.FAILED
    ]


def new_rows(earlier: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Return the rows that are not in the result file already, under whatever commit."""

    def without_commit(row: Row) -> str:
        return json_text({name: value for name, value in row.items() if name != "commit"})

    known = {without_commit(row) for row in earlier}
    return [row for row in rows if without_commit(row) not in known]


def merged(earlier: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Return all rows in the order of the table, each with its own commit; a run trained again replaces its row."""
    by_key = {RunSpec.from_json(row["spec"]).key: row for row in (*earlier, *rows)}
    names = ("batch_size", "effective_learning_rate", "seed")
    return sorted(by_key.values(), key=lambda row: [row["spec"][name] for name in names])


def exported(table: PaperTable, rows: Sequence[Row]) -> dict[str, object]:
    """Return a result file.

    Raises:
        ValueError: A run is not of this table.
    """
    for row in rows:
        spec = row["spec"]
        if spec["num_steps"] != table.num_steps or not _has_cell(table, spec):
            raise ValueError(
                f"a run at B = {spec['batch_size']} and ε_eff = {spec['effective_learning_rate']} with "
                f"{spec['num_steps']:,} updates is not of {table.name}; export stores that its script has trained"
            )
    sizes = " ".join(str(size) for size in sorted({row["spec"]["batch_size"] for row in rows}))
    command = f"python benchmarks/{table.name}.py run STORE {sizes} --data FOLDER"
    return {"command": command, "num_runs": len(rows), "runs": list(rows)}


def _has_cell(table: PaperTable, spec: dict[str, Any]) -> bool:
    rates = table.rates.get(spec["batch_size"], ())
    return spec["effective_learning_rate"] in rates and spec["seed"] < table.num_seeds


def _run_of(row: Row) -> StoredRun:
    spec, result = RunSpec.from_json(row["spec"]), RunResult.from_json(row["result"])
    return StoredRun(spec=spec, result=result, provenance=row["provenance"])


def _earlier(table: PaperTable) -> list[Row]:
    """Return the rows of the result file; none if there is no file yet."""
    return list(json.loads(table.file.read_text())["runs"]) if table.file.exists() else []


def _stored(path: Path) -> list[StoredRun]:
    with Store.read(path) as store:
        return list(store.runs())


def _parser(table: PaperTable) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=f"Train cells of table {table.number}, or export them.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train what the store lacks")
    run.add_argument("store", type=Path)
    run.add_argument("batch_sizes", type=int, nargs="+", choices=list(table.rates))
    run.add_argument("--data", type=Path, required=True)
    run.add_argument("--device", default="cuda")
    run.add_argument("--rates", type=float, nargs="+", help="only these learning rates of the table")
    run.add_argument("--seeds", type=int, help="fewer seeds than the table has")
    run.add_argument("--checkpoint-seconds", type=float, default=30.0)
    run.add_argument("--steps", type=int, help="fewer updates, to try the script")
    export = commands.add_parser("export", help="add the runs of stores to the result file")
    export.add_argument("stores", type=Path, nargs="+")
    export.add_argument("--commit", required=True, help="that trained them")
    return parser
