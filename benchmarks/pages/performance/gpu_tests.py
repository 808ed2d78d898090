"""Tests that were run on a GPU, which the CI machines do not have."""

from __future__ import annotations

from pages.results import NOT_MEASURED, load
from pages.text import paragraph, table


def gpu_tests_block() -> str:
    """Return how many tests passed, by commit."""
    content = load("gpu_tests_h200")
    if content is None:
        return NOT_MEASURED
    lines = [
        (
            row["what"],
            ", ".join(f"`{name.rpartition('/')[2]}`" for name in row["files"]),
            str(row["passed"]),
            f"**{row['failed']}**: {row['note']}" if row["failed"] else str(row["failed"]),
            row["commit"],
        )
        for row in content["rows"]
    ]
    notes = [f"{row['what']} at {row['commit']}: {row['note']}." for row in content["rows"] if not row["failed"]]
    machine = content["machine"]
    remark = f"""{machine["gpu"]}, torch {machine["torch"]}, Triton {machine["triton"]}.
        {" ".join(note for note in notes if not note.endswith(": ."))}"""
    return f"{table(('compared', 'tests', 'passed', 'failed', 'commit'), lines)}\n\n{paragraph(remark)}"
