"""Write the measured speeds into docs/performance.md and draw the growth of cost.

    python benchmarks/performance_report.py

Reads benchmarks/results/bench_*.json (`isotherm bench --json`) and growth_*.json (benchmarks/growth.py); writes every
block between the markers `<!-- performance: NAME -->` and `<!-- end -->`, and docs/figures/growth.png. Nobody types
those numbers.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import growth

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENT = ROOT / "docs" / "performance.md"
FIGURE = ROOT / "docs" / "figures" / "growth.png"
_BLOCK = re.compile(r"<!-- performance: (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def load(name: str) -> dict[str, Any] | None:
    """Return the content of a result file, None where it was not measured."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return None
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def number(value: float | None) -> str:
    """Return a speed for people.

    >>> number(54321.0), number(76.44), number(None)
    ('54,300', '76.4', '–')
    """
    if value is None:
        return "–"
    digits = 3 - len(str(int(abs(value))))
    rounded = round(value, digits)
    return f"{rounded:,.{max(0, digits)}f}"


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def bench_block(name: str) -> str:
    """Return ours, peers, goal and floor of every work of a machine."""
    content = load(name)
    if content is None:
        return "Not measured yet."
    peers = list(content["rows"][0]["peers"])
    header = ("work", "B", "runs", "unit", "Isotherm", *peers, "ratio", "goal", "reached", "floor", "of the floor")
    rows = []
    for row in content["rows"]:
        target = row.get("target") or {}
        fraction = row["fraction_of_floor"]
        rows.append(
            (
                row["work"],
                "–" if row["batch_size"] is None else f"{row['batch_size']:,}",
                f"{row['num_runs']:,}",
                row["unit"],
                _with_range(row),
                *(number(row["peers"].get(peer)) for peer in peers),
                "–" if row["ratio"] is None else f"{row['ratio']:.1f}",
                target.get("text", "–"),
                {True: "yes", False: "**no**", None: "–"}[target.get("reached")],
                number(row["floor"]),
                "–" if fraction is None else f"{100 * fraction:.0f} %",
            )
        )
    machine = content["machine"]
    where = ", ".join(str(machine[key]) for key in ("gpu", "cpu") if machine.get(key))
    remark = (
        f"{where}, {machine['cores']} cores, torch {machine['torch']}, commit {content['commit']}. Median of the "
        "windows, lowest and highest in brackets; ratio to the plain loop."
    )
    return f"{_table(header, rows)}\n\n{remark}"


def _with_range(row: dict[str, Any]) -> str:
    if row["ours"] is None:
        return "–"
    return f"**{number(row['ours'])}** [{number(row.get('lowest'))}, {number(row.get('highest'))}]"


def shrink_block() -> str:
    """Return what a fleet gains that loses half of its runs."""
    content = load("growth_cpu")
    if content is None:
        return "Not measured yet."
    found = content["shrink"]
    whole, half = found["seconds_whole"], found["seconds_half_diverged"]
    reached = "met" if found["ratio"] <= found["goal"] else "missed"
    return (
        f"{found['num_runs']} runs at B = {found['batch_size']}, {found['num_updates']:,} updates on one core: whole "
        f"{min(whole):.1f} to {max(whole):.1f} s, with every second run diverging at once {min(half):.1f} to "
        f"{max(half):.1f} s; median ratio {found['ratio']:.2f} (n = {len(whole)} pairs in turn; goal at most "
        f"{found['goal']}: **{reached}**)."
    )


def growth_block() -> str:
    """Return the speed of fleets by size."""
    content = load("growth_cpu")
    if content is None:
        return "Not measured yet."
    rows = content["growth"]
    sizes = sorted({row["num_runs"] for row in rows})
    batch_sizes = sorted({row["batch_size"] for row in rows})
    by_place = {(row["batch_size"], row["num_runs"]): row for row in rows}
    lines = []
    for size in sizes:
        cells = []
        for batch_size in batch_sizes:
            row = by_place.get((batch_size, size))
            text = number(None if row is None else row["run_updates_per_second"])
            cells.append(f"**{text}**" if row is not None and row["is_chosen"] else text)
        lines.append((f"{size:,}", *cells))
    table = _table(("runs in one fleet", *(f"B = {b}" for b in batch_sizes)), lines)
    machine = content["machine"]
    remark = (
        f"Run-updates per second, {content['where']} of {machine['cpu']}, torch {machine['torch']}, commit "
        f"{content['commit']}, median of {rows[0]['repeats']} windows; in bold the size that Isotherm chooses."
    )
    return f"{table}\n\n{remark}"


BLOCKS = {
    "cpu": lambda: bench_block("bench_cpu"),
    "h200": lambda: bench_block("bench_h200"),
    "shrink": shrink_block,
    "growth": growth_block,
}


def filled(text: str) -> str:
    """Return a document with its blocks as the results have them."""
    return _BLOCK.sub(lambda m: f"<!-- performance: {m[1]} -->\n{BLOCKS[m[1]]()}\n<!-- end -->", text)


def main() -> None:
    """Write the blocks and the figure."""
    DOCUMENT.write_text(filled(DOCUMENT.read_text()))
    content = load("growth_cpu")
    if content is not None:
        growth.draw(content, FIGURE)


if __name__ == "__main__":
    main()
