"""The built-in studies by name: each file holds one, as a function that returns a `Study`.

The names are known without PyTorch; a study is imported when it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isotherm.sweep.study import Study


def _quickstart(data: Path | None) -> Study:
    from isotherm.studies.quickstart import quickstart

    return quickstart(data)


def _noisy_labels(data: Path | None) -> Study:
    from isotherm.studies.noisy_labels import noisy_labels

    return noisy_labels(data)


# Each takes the data folder; None as in `get_task`.
STUDIES: dict[str, Callable[[Path | None], Study]] = {"quickstart": _quickstart, "noisy_labels": _noisy_labels}
