"""Write docs/api.md's reference of public names.

    python benchmarks/api_reference.py

Reads the package itself; everything outside the block `<!-- api: names -->` is written by hand.
"""

from __future__ import annotations

from pages.blocks import Page
from pages.python_api import names_block
from pages.results import ROOT

DOCUMENT = ROOT / "docs" / "api.md"
PAGE = Page(name="api", blocks={"names": names_block})


def main() -> None:
    """Write the block."""
    PAGE.write(DOCUMENT)
    print(f"wrote {DOCUMENT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
