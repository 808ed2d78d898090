"""Results of benchmarks/growth.py: speed by fleet size, and the gain from dropping diverged runs."""

from __future__ import annotations

from pages.results import NOT_MEASURED, load
from pages.text import number, paragraph, table


def shrink_block() -> str:
    """Return the time of a fleet that loses half of its runs."""
    content = load("growth_cpu")
    if content is None:
        return NOT_MEASURED
    found = content["shrink"]
    whole, half = found["seconds_whole"], found["seconds_half_diverged"]
    reached = "met" if found["ratio"] <= found["goal"] else "missed"
    return paragraph(
        f"{found['num_runs']} runs at B = {found['batch_size']}, {found['num_updates']:,} updates on one core: intact "
        f"{min(whole):.1f} to {max(whole):.1f} s, with every second run diverging immediately {min(half):.1f} to "
        f"{max(half):.1f} s; median ratio {found['ratio']:.2f} (n = {len(whole)} alternating pairs; target at most "
        f"{found['goal']}: **{reached}**)."
    )


def growth_block() -> str:
    """Return the speed of fleets by size."""
    content = load("growth_cpu")
    if content is None:
        return NOT_MEASURED
    rows = content["growth"]
    sizes = sorted({row["num_runs"] for row in rows})
    batch_sizes = sorted({row["batch_size"] for row in rows})
    by_cell = {(row["batch_size"], row["num_runs"]): row for row in rows}
    lines = []
    for size in sizes:
        cells = []
        for batch_size in batch_sizes:
            row = by_cell.get((batch_size, size))
            text = number(None if row is None else row["run_updates_per_second"])
            cells.append(f"**{text}**" if row is not None and row["is_chosen"] else text)
        lines.append((f"{size:,}", *cells))
    header = ("runs in one fleet", *(f"B = {b}" for b in batch_sizes))
    machine = content["machine"]
    remark = (
        f"Run-updates per second, {content['where']} of {machine['cpu']}, torch {machine['torch']}, commit "
        f"{content['commit']}, median of {rows[0]['repeats']} windows, the highest up to "
        f"{max(row['highest'] / row['lowest'] for row in rows):.1f} times the lowest; bold is the size that Isotherm "
        "chooses."
    )
    return f"{table(header, lines)}\n\n{paragraph(remark)}"
