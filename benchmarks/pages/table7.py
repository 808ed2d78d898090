"""Table 7 of the paper beside the runs of results/table7."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isotherm.core.records import Direction
from isotherm.core.statistics import best_k_of_n
from pages.results import ROOT, load
from pages.text import paragraph, table
from pages.values import Value

FOLDER = ROOT / "results" / "table7"
NUM_KEPT = 5
# Test and training squared error, best 5 of 7, ε_eff = 0.08 at every batch size.
PUBLISHED = {
    64: ("2.91 ± 0.01", "2.017 ± 0.003"),
    256: ("2.95 ± 0.01", "2.010 ± 0.005"),
    1024: ("2.96 ± 0.01", "2.005 ± 0.011"),
    4096: ("2.98 ± 0.01", "2.018 ± 0.008"),
}

Run = dict[str, Any]


def block() -> str:
    """Return the table: every learning rate that was run, the best of each batch size in bold."""
    content = load("table7", FOLDER)
    assert content is not None, "results/table7/table7.json is missing"
    runs: list[Run] = content["runs"]
    rows = [row for size in PUBLISHED for row in _rows(size, [r for r in runs if r["spec"]["batch_size"] == size])]
    header = ("B", "ε_eff", "test, best 5 of 7", "test, all 7", "train, best 5 of 7", "paper, test", "paper, train")
    return f"{table(header, rows)}\n\n{paragraph(_origin(content))}"


def _rows(size: int, runs: Sequence[Run]) -> list[tuple[str, ...]]:
    published = PUBLISHED[size]
    if not runs:
        return [(f"{size:,}", "–", "not run", "–", "–", *published)]
    rates = sorted({run["spec"]["effective_learning_rate"] for run in runs})
    cells = {rate: [r["result"] for r in runs if r["spec"]["effective_learning_rate"] == rate] for rate in rates}
    best = min(rates, key=lambda rate: _kept(cells[rate], "test_metric").mean)
    rows = []
    for rate, results in cells.items():
        test, train = (_kept(results, quantity).text(3, with_num=False) for quantity in ("test_metric", "train_metric"))
        everything = Value.of([result["test_metric"] for result in results]).text(3, with_num=False)
        shown = f"**{test}**" if rate == best else test
        rows.append((f"{size:,}", f"{rate:g}", shown, everything, train, *(published if rate == 0.08 else ("", ""))))
    return rows


def _kept(results: Sequence[Run], quantity: str) -> Value:
    """Return a quantity of the runs with the lowest test error."""
    errors = [result["test_metric"] for result in results]
    kept = best_k_of_n(errors, num_kept=NUM_KEPT, direction=Direction.MINIMISE)
    return Value.of([results[index][quantity] for index in kept])


def _origin(content: dict[str, Any]) -> str:
    provenances = [run["provenance"] for run in content["runs"]]
    devices = sorted({p["device"].removeprefix("cuda: ") for p in provenances})
    releases = sorted({p["torch"] for p in provenances})
    num_finished = sum(run["result"]["outcome"] == "finished" for run in content["runs"])
    return (
        f"Squared error per image, mean ± standard deviation; {num_finished} of {content['num_runs']} runs finished; "
        f"{', '.join(devices)}, torch {', '.join(releases)}, mixed precision, commit {content['commit']}: "
        f"`{content['command']}`. Rows: `results/table7/table7.json`."
    )
