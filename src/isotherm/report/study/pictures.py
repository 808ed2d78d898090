"""Figures that stand on the page as pictures: drawn once with matplotlib, and written as data too."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from isotherm.report.axes import DOTS_PER_INCH, METADATA, PANEL_HEIGHT, PANEL_WIDTH, RC, Format, finish
from isotherm.report.files import write_atomically

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Picture:
    """A figure with its numbers.

    Args:
        name: of the files.
        title: on the page.
        caption: what is shown, of how many runs.
        num_panels: side by side.
        draw: draws into so many axes.
        table: the CSV file into which `rows` go; pictures may share one.
        rows: the numbers drawn.
    """

    name: str
    title: str
    caption: str
    num_panels: int
    draw: Callable[[Sequence[Axes]], None]
    table: str
    rows: tuple[Row, ...]
    _drawn: dict[Format, bytes] = field(default_factory=dict, init=False, repr=False)

    def figure(self) -> Figure:
        """Return the drawn figure."""
        layout = ConstrainedLayoutEngine(w_pad=0.06, wspace=0.04)
        figure = Figure(figsize=(1.15 * PANEL_WIDTH * self.num_panels, 1.1 * PANEL_HEIGHT), layout=layout)
        axes = [figure.add_subplot(1, self.num_panels, index + 1) for index in range(self.num_panels)]
        self.draw(axes)
        for panel, letter in zip(axes, "abcdefgh", strict=False):
            finish(panel, letter)
        return figure

    def content(self, name: Format) -> bytes:
        """Return the picture in a format; equal numbers give equal bytes."""
        if name not in self._drawn:  # the page and a file of its own show the same
            stream = io.BytesIO()
            with matplotlib.rc_context(RC):
                self.figure().savefig(stream, format=name, dpi=DOTS_PER_INCH, metadata=METADATA[name])
            self._drawn[name] = stream.getvalue()
        return self._drawn[name]

    def keep(self, contents: Mapping[Format, bytes]) -> None:
        """Keep what was drawn in another process."""
        self._drawn.update(contents)

    @property
    def source(self) -> str:
        """The picture as the source of an image on a page."""
        return f"data:image/png;base64,{base64.b64encode(self.content('png')).decode()}"


def write_picture_tables(pictures: Sequence[Picture], folder: str | Path) -> list[Path]:
    """Write the numbers of all pictures and return the files; a missing quantity is an empty field."""
    tables: dict[str, list[Row]] = {}
    for picture in pictures:
        tables.setdefault(picture.table, []).extend(picture.rows)
    return [write_atomically(Path(folder) / name, _csv(rows)) for name, rows in tables.items() if rows]


def _csv(rows: Sequence[Row]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
