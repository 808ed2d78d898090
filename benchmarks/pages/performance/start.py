"""Seconds to the first update of a short sweep on a GPU, before and after changes."""

from __future__ import annotations

import statistics

from pages.results import NOT_MEASURED, load
from pages.text import paragraph, table


def start_block() -> str:
    """Return how long fleets took to their first update, in the order of the measurements."""
    content = load("start_h200")
    if content is None:
        return NOT_MEASURED
    lines = []
    for row in content["rows"]:
        seconds, target = row["seconds"], row["target"]
        middle = statistics.median(seconds)
        shown = f"**{middle:.1f}**" + (f" ({', '.join(f'{s:.1f}' for s in seconds)})" if len(seconds) > 1 else "")
        state = "reached" if middle <= target else "not reached"
        what = f"{row['label'].partition(':')[0]}, {row['num_runs']} runs, B = {row['batch_size']:,}"
        lines.append((row["what"], what, row["built_before"], shown, f"{target:g} s, {state}", row["commit"]))
    head = ("", "fleet", "built before", "seconds to the first update", "target", "commit")
    machine = content["machine"]
    remark = f"""{machine["gpu"]}, {machine["cpu"]}, {machine["cores"]} cores, torch {machine["torch"]}, Triton
        {machine["triton"]}: `{content["command"]}`. Imports and data are loaded before. n = 1, or 2 where two numbers
        stand: {content["note"]}."""
    return f"{table(head, lines)}\n\n{paragraph(remark)}"
