"""Results of benchmarks/convolutions.py: convolutions of many runs against cuDNN."""

from __future__ import annotations

from typing import Any

from pages.results import NOT_MEASURED, Row, load
from pages.text import paragraph, table

WAYS = ("forward", "input gradient", "weight gradient")


def convolutions_block() -> str:
    """Return times of every convolution of a network in three directions, and their sums."""
    content = load("convolutions_h200")
    if content is None:
        return NOT_MEASURED
    lines = []
    for case in dict.fromkeys(row["case"] for row in content["rows"]):
        rows = {row["way"]: row for row in content["rows"] if row["case"] == case}
        columns = [text for way in WAYS for text in _times(content, rows[way])]
        lines.append((str(rows["forward"]["num_layers"]), case, *columns))
    first = content["rows"][0]
    sums = {
        side: sum(row["num_layers"] * function(row) for row in content["rows"])
        for side, function in {
            "ours": lambda row: _best(content, row),
            "by run": lambda row: row["library_by_run_ms"],
            "as one": lambda row: row["library_as_one_ms"],
        }.items()
    }
    flop = sum(row["num_layers"] * row["flop"] for row in content["rows"])
    speeds = {side: f"{total:.1f} ms, {flop / 1e9 / total:.0f} TFLOP/s" for side, total in sums.items()}
    errors = {way: max(row["error"] for row in content["rows"] if row["way"] == way) for way in WAYS}
    num_wrong = sum(row["is_wrong"] for row in content["rows"])
    sides = ("ours", "by run", "as one")
    header = ("layers", "channels, filter, image / stride", *(f"{way}: {side}" for way in WAYS for side in sides))
    remark = f"""Microseconds for {first["num_runs"]} runs at B = {first["batch_size"]}, {content["device"]}, torch
        {content["torch"]}, commit {content["commit"]}. Ours: all runs at once, with the best of the tiles tried. By
        run: cuDNN, one run after another. As one: cuDNN for the same images as one batch with one set of filters, which
        does not train many runs but shows what the GPU can do. All layers of an update: ours {speeds["ours"]}; by run
        {speeds["by run"]}; as one {speeds["as one"]}. Residual adds and moments are left out. Largest errors against
        float64, relative to the largest value: {errors["forward"]:.0e} forward, {errors["input gradient"]:.0e} in input
        gradients (one rounding is at most {2**-8:.1e} of a value), {errors["weight gradient"]:.0e} in weight gradients,
        which are not rounded. {num_wrong} of {len(content["rows"])} exceed their tolerance."""
    return f"{table(header, lines)}\n\n{paragraph(remark)}"


def _times(content: dict[str, Any], row: Row) -> list[str]:
    times = _best(content, row), row["library_by_run_ms"], row["library_as_one_ms"]
    return [f"{1e3 * time:.0f}" for time in times]


def _best(content: dict[str, Any], row: Row) -> float:
    """Return the milliseconds of the best tile tried."""
    tried = [t["tried"][0]["ms"] for t in content["tuning"] if (t["case"], t["way"]) == (row["case"], row["way"])]
    return float(min([row["ms"], *tried]))
