"""Results of benchmarks/factored_update.py: gradients and updates of the autoencoder's matrices alone."""

from __future__ import annotations

from pages.performance.bench import bench_row
from pages.performance.profiles import AE
from pages.results import NOT_MEASURED, Row, load
from pages.text import paragraph, table


def factored_block() -> str:
    """Return the times of the kernel, of matmuls with a compiled update, and of the memory traffic at copy speed."""
    content, measured = load("factored_update_h200"), bench_row(AE)
    if content is None or measured is None:
        return NOT_MEASURED
    lines = []
    for row in content["rows"]:
        best = min(row["kernel"], key=lambda tried: float(tried["microseconds"]))
        num_bytes = row["floor_microseconds"] * content["copy_bytes_per_second"]
        lines.append(
            (
                f"{row['batch_size']:,}",
                f"{num_bytes / measured['copy_bytes_per_second']:.0f}",
                f"{row['products_and_compiled_update_microseconds']:.0f}",
                f"{row['kernel'][0]['microseconds']:.0f} ({_tile(row['kernel'][0])})",
                f"{best['microseconds']:.0f} ({_tile(best)})" if len(row["kernel"]) > 1 else "–",
                _streamed(row),
            )
        )
    header = (
        "B",
        "floor, µs",
        "matmuls and compiled update, µs",
        "kernel, µs (tile, warps)",
        "best of all tiles tried, µs",
        "streamed update, µs (stages, programs)",
    )
    if not any(row.get("streamed") for row in content["rows"]):
        header, lines = header[:-1], [line[:-1] for line in lines]
    worst = max(row["error_in_roundings"] for row in content["rows"])
    remark = f"""All matrices of the autoencoder in {content["num_runs"]} runs, {content["device"]}, torch
        {content["torch"]}, commit {content["commit"]}. The floor is 18 bytes per weight at the copy speed of
        `isotherm bench`. Velocities differ by at most {worst:.2f} of a rounding of the gradient."""
    return f"{table(header, lines)}\n\n{paragraph(remark)}"


def _streamed(row: Row) -> str:
    """Return the time of the setting in use, which comes first, and the best of all if that is another."""
    if not row.get("streamed"):
        return "–"
    first, best = row["streamed"][0], min(row["streamed"], key=lambda tried: float(tried["microseconds"]))
    return "; ".join(
        f"{tried['microseconds']:.0f} ({tried['num_stages']}, {tried['programs_at_once']})"
        for tried in ([first] if first is best else [first, best])
    )


def _tile(tried: Row) -> str:
    return f"{tried['tile']['rows']} × {tried['tile']['columns']}, {tried['tile']['num_warps']}"
