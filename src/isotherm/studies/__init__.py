"""The built-in studies by name: each file holds one, as a function that returns a `Study`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from isotherm.studies import noisy_labels, quickstart  # the modules
from isotherm.sweep.study import Study

# Each takes the data folder; None as in `get_task`.
STUDIES: dict[str, Callable[[Path | None], Study]] = {
    "quickstart": quickstart.quickstart,
    "noisy_labels": noisy_labels.noisy_labels,
}
