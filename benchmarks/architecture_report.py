"""Draw the rooms of the package and write their tables into docs/architecture.md.

    python benchmarks/architecture_report.py

Reads the imports of src/isotherm; writes docs/figures/rooms.png and the blocks of docs/architecture.md.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from pages.blocks import Page
from pages.results import ROOT
from pages.rooms import ROOMS, num_users, rooms_block, sizes_block

DOCUMENT = ROOT / "docs" / "architecture.md"
FIGURE = ROOT / "docs" / "figures" / "rooms.png"
PAGE = Page(name="architecture", blocks={"rooms": rooms_block, "sizes": sizes_block})
# Everything may use these; they would only widen the picture.
_EVERYWHERE = ("errors", "version", "__main__")


def draw(path: Path) -> None:
    """Draw a matrix with a dot where the room of a row imports from the room of a column; size counts the files."""
    shown = [room for room in ROOMS if room not in _EVERYWHERE]
    users = num_users()
    figure, axes = plt.subplots(figsize=(6.4, 6.0))
    axes.fill_between([-0.5, len(shown) - 0.5], [-0.5, len(shown) - 0.5], [-0.5, -0.5], color="#eeeeee", lw=0)
    for row, room in enumerate(shown):
        for column, other in enumerate(shown):
            if num := users.get((room, other), 0):
                axes.scatter(column, row, s=26 + 7 * num, color="#0072B2" if column < row else "#D55E00", zorder=2)
                axes.text(column, row, str(num), ha="center", va="center", fontsize=6.5, color="white", zorder=3)
    axes.set(xlim=(-0.5, len(shown) - 0.5), ylim=(len(shown) - 0.5, -0.5))
    axes.set_xticks(range(len(shown)), shown, rotation=60, ha="left", fontsize=9)
    axes.set_yticks(range(len(shown)), shown, fontsize=9)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_xlabel(
        "number of files in the room on the left that import from the room on top; grey is forbidden", fontsize=9
    )
    axes.spines[:].set_visible(False)
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)


def main() -> None:
    """Write the figure and the tables."""
    draw(FIGURE)
    PAGE.write(DOCUMENT)
    print(f"wrote {FIGURE.relative_to(ROOT)} and the tables of {DOCUMENT.name}")


if __name__ == "__main__":
    main()
