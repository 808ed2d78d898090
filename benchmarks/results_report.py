"""Write the paper's tables, as far as they have been run, into docs/results.md.

python benchmarks/results_report.py
"""

from __future__ import annotations

from pages import paper_block
from pages.blocks import Page
from pages.paper import TABLE_7
from pages.results import ROOT

DOCUMENT = ROOT / "docs" / "results.md"
PAGE = Page(name="results", blocks={"table7": lambda: paper_block.block(TABLE_7)})


def main() -> None:
    """Write the blocks."""
    PAGE.write(DOCUMENT)
    print(f"wrote the blocks of {DOCUMENT.name}")


if __name__ == "__main__":
    main()
