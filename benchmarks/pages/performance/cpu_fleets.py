"""Results of benchmarks/cpu_fleets.py: fleets of several kinds of networks on one core, against the plain loop."""

from __future__ import annotations

from pages.results import NOT_MEASURED, Row, load
from pages.text import paragraph, table


def cpu_fleets_block() -> str:
    """Return the ratios of every network by fleet size, and where they were measured."""
    content = load("cpu_fleets")
    if content is None:
        return NOT_MEASURED
    sizes = sorted({int(size) for row in content["rows"] for size in row["ratios"]})
    header = ["network", "B", *(f"{size} run{'s' * (size > 1)}" for size in sizes)]
    rows = [
        (row["network"], str(row["batch_size"]), *(_ratio(row["ratios"].get(str(size))) for size in sizes))
        for row in content["rows"]
    ]
    return f"{table(header, rows)}\n\n{paragraph(_where(content))}"


def _ratio(found: float | None) -> str:
    return "–" if found is None else f"{found:.2f}"


def _where(content: Row) -> str:
    machine = content["machine"]
    where = f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}, commit {content['commit']}"
    low, high = (f"{load:.1f}" for load in content["load"])
    return f"{where}; {content['windows']} windows of each, at a load average of {low} to {high}."
