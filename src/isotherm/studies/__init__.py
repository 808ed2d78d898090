"""The built-in studies by name: each file holds one, as a function that returns a `Study`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from isotherm.studies import quickstart  # the module
from isotherm.sweep.study import Study

# Each takes the data folder; None as in `get_task`.
STUDIES: dict[str, Callable[[Path | None], Study]] = {"quickstart": quickstart.quickstart}
