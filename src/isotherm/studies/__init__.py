"""Studies by name: each file holds one, as a function returning a `Study`."""

from __future__ import annotations

from collections.abc import Callable

from isotherm.studies import quickstart  # the module
from isotherm.sweep.study import Study

STUDIES: dict[str, Callable[[], Study]] = {"quickstart": quickstart.quickstart}
