"""Result files, which may or may not exist."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results"
CALIBRATION = ROOT / "results" / "calibration"

# The text of a block without a result file.
NOT_MEASURED = "Not measured yet."

Row = dict[str, Any]


def load(name: str, folder: Path | None = None) -> dict[str, Any] | None:
    """Return the content of a result file, by default from `RESULTS`; None if it was not measured."""
    path = (folder or RESULTS) / f"{name}.json"
    if not path.exists():
        return None
    content: dict[str, Any] = json.loads(path.read_text())
    return content
