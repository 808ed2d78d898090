"""Write the paper's objects, as far as they have been run, into docs/results.md and README.md.

python benchmarks/results_report.py
"""

from __future__ import annotations

from pages import clipping, paper_block, paper_objects
from pages.blocks import Page
from pages.paper import TABLE_6, TABLE_7
from pages.results import ROOT

DOCUMENTS = (ROOT / "docs" / "results.md", ROOT / "README.md")
PAGE = Page(
    name="results",
    blocks={
        "paper": paper_objects.contents_block,
        "objects": paper_objects.objects_block,
        "cells": paper_objects.cells_block,
        "table6": lambda: paper_block.block(TABLE_6),
        "clipping": clipping.block,
        "table7": lambda: paper_block.block(TABLE_7),
    },
)


def main() -> None:
    """Draw the figures, and write the blocks."""
    paper_objects.write_images()
    for document in DOCUMENTS:
        PAGE.write(document)
        print(f"wrote the blocks of {document.name}")


if __name__ == "__main__":
    main()
