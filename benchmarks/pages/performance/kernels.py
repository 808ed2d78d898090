"""Results of benchmarks/kernels.py: the ghost batch norm kernels alone."""

from __future__ import annotations

from typing import Any

from pages.performance.bench import bench_row
from pages.performance.profiles import AE
from pages.results import NOT_MEASURED, load
from pages.text import paragraph, percent, table


def moved_bytes(content: dict[str, Any], batch_size: int) -> float:
    """Return the bytes that the kernels of a network's layers move in one update, from which its floor is computed."""
    rows = [row for row in content["rows"] if row["batch_size"] == batch_size]
    milliseconds = sum(row["num_layers"] * (row["floor_forward_ms"] + row["floor_backward_ms"]) for row in rows)
    return float(milliseconds / 1e3 * content["copy_bytes_per_second"])


def kernels_block() -> str:
    """Return the times of the ghost batch norm kernels over a network's layers, and their errors."""
    content = load("kernels_h200")
    if content is None:
        return NOT_MEASURED
    measured = bench_row(AE)
    lines = []
    for batch_size in sorted({row["batch_size"] for row in content["rows"]}):
        rows = [row for row in content["rows"] if row["batch_size"] == batch_size]
        times = {
            key: sum(row["num_layers"] * row[f"{key}_ms"] for row in rows)
            for key in ("forward", "backward", "floor_forward", "floor_backward")
        }
        ours, floor = times["forward"] + times["backward"], times["floor_forward"] + times["floor_backward"]
        rate = moved_bytes(content, batch_size) / (1e-3 * ours)
        lines.append(
            (
                f"{batch_size:,}",
                str(sum(row["num_layers"] for row in rows)),
                *(f"{times[key]:.2f}" for key in ("forward", "floor_forward", "backward", "floor_backward")),
                percent(floor / ours),
                f"{rate / 1e12:.1f}",
                "–" if measured is None else percent(rate / measured["copy_bytes_per_second"]),
            )
        )
    header = (
        "B",
        "layers",
        "forward, ms",
        "floor",
        "backward, ms",
        "floor",
        "of the floor",
        "TB/s",
        "of the bench copy",
    )
    largest = {name: max(row["errors"][name] for row in content["rows"]) for name in content["rows"][0]["errors"]}
    num_wrong = sum(bool(row["wrong"]) for row in content["rows"])
    halves = max(largest["y"], largest["dx"])
    sums = max(value for name, value in largest.items() if name not in ("y", "dx"))
    slow_copy = f"{content['copy_bytes_per_second'] / 1e12:.2f} TB/s"
    caution = (
        ""
        if measured is None
        else f""" The copy of this script moves {slow_copy}, that of `isotherm bench`
        {measured["copy_bytes_per_second"] / 1e12:.2f} on the same kind of GPU, so this floor is too easy; go by the
        last column. A copy replayed from a CUDA graph, as in this script, is slower."""
    )
    remark = f"""All normalisations of WRN-16-4 in one update of one run, {content["device"]}, torch {content["torch"]},
        commit {content["commit"]}. The floor is the kernels' memory traffic at copy speed.{caution}
        Inductor's kernels were not timed separately."""
    errors = f"""Largest errors against float64, relative to the largest value: {halves:.1e} in values rounded to
        bfloat16 (one rounding is at most {2**-8:.1e} of a value), {sums:.1e} in means, variances and gradients of
        weight and bias. {num_wrong} of {len(content["rows"])} cases exceed their tolerance."""
    return f"{table(header, lines)}\n\n{paragraph(remark)}\n\n{paragraph(errors)}"
