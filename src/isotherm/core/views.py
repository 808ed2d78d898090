"""How results are shown by rooms that come after them, such as a report that knows what an analysis is.

An object like `Results` has methods (`plot`, `report`) that need figures and pages, and no room imports a later one.
So the package's front door, `isotherm/__init__.py`, which knows every room, says by name which function does each of
these; they are loaded when called.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isotherm.core.shown_table import ShownTables

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

_PLACES: dict[str, str] = {}


def say_where(places: Mapping[str, str]) -> None:
    """Name the functions behind views, each as "module:function"."""
    _PLACES.update(places)


def view(name: str) -> Callable[..., Any]:
    """Return the function behind a view.

    >>> say_where({"half": "isotherm.core.rates:tidy"})
    >>> view("half").__name__
    'tidy'
    """
    module, _, function = _PLACES[name].partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


class Shown:
    """What results, analyses and diagnoses have in common for a console or a notebook."""

    __slots__ = ()

    def table(self) -> ShownTables:
        """Return what was found as a table that a console and a notebook show; `.rows` has it as plain values."""
        found: ShownTables = view("table")(self)
        return found

    def to_pandas(self, rows: str | None = None) -> DataFrame:
        """Return a `pandas.DataFrame`; needs pandas.

        Args:
            rows: "runs" for one row per run, "optima" for one per batch size, budget and momentum, "choices" for one
                per batch size of a diagnosis; by default the first that there is.
        """
        found: DataFrame = view("to_pandas")(self, rows)
        return found

    def plot(self, axes: Any = None, *, sweep: str | None = None) -> Figure:
        """Draw the main figure and return it, a `matplotlib.figure.Figure`.

        Args:
            axes: where to draw instead: three axes for a sweep, one for a diagnosis.
            sweep: the name of one sweep of several; by default the first.
        """
        found: Figure = view("plot")(self, axes, sweep=sweep)
        return found

    def report(self, path: str | Path) -> Any:
        """Write the report: of results a folder, of a diagnosis an HTML file; return what was written."""
        return view("report")(self, path)

    def _repr_html_(self) -> str:
        return str(view("html")(self))
