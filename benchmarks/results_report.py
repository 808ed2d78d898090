"""Write the paper's tables, as far as they have been run, into docs/results.md.

python benchmarks/results_report.py
"""

from __future__ import annotations

from pages import table7
from pages.blocks import Page
from pages.results import ROOT

DOCUMENT = ROOT / "docs" / "results.md"
PAGE = Page(name="results", blocks={"table7": table7.block})


def main() -> None:
    """Write the blocks."""
    PAGE.write(DOCUMENT)
    print(f"wrote the blocks of {DOCUMENT.name}")


if __name__ == "__main__":
    main()
