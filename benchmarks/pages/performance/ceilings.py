"""Results of benchmarks/ceilings.py: large matmuls of several kinds of numbers."""

from __future__ import annotations

from pages.results import NOT_MEASURED, load
from pages.text import paragraph, table


def ceilings_block() -> str:
    """Return the speeds of large matmuls, briefly and sustained."""
    content = load("ceilings_h200")
    if content is None:
        return NOT_MEASURED
    sizes = sorted({row["size"] for row in content["rows"]})
    speeds = {(row["numbers"], row["size"]): row for row in content["rows"]}
    lines = [
        (numbers, *(_both(speeds[numbers, size]) for size in sizes))
        for numbers in dict.fromkeys(row["numbers"] for row in content["rows"])
    ]
    machine = content["machine"]
    remark = f"""TFLOP/s of one bfloat16 matmul: fastest of five windows of 0.02 s / sustained over
        {content["seconds"]:g} s; one measurement each, {machine["gpu"]}, torch {machine["torch"]}, commit
        {content["commit"]}, [benchmarks/ceilings.py](../benchmarks/ceilings.py){_in_brackets(content.get("note"))}."""
    header = ("numbers", *(f"{size:,}" for size in sizes))
    return f"{table(header, lines)}\n\n{paragraph(remark)}"


def _in_brackets(note: str | None) -> str:
    return f" ({note})" if note else ""


def _both(row: dict[str, float]) -> str:
    return " / ".join(f"{row[f'{kind}_flop_per_second'] / 1e12:.0f}" for kind in ("shortest", "sustained"))
