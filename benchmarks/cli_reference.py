"""Write docs/cli.md's reference of commands and options.

    python benchmarks/cli_reference.py

Reads the commands themselves; everything outside the block `<!-- cli: commands -->` is written by hand.
"""

from __future__ import annotations

from pages.blocks import Page
from pages.command_line import commands_block
from pages.results import ROOT

DOCUMENT = ROOT / "docs" / "cli.md"
PAGE = Page(name="cli", blocks={"commands": commands_block})


def main() -> None:
    """Write the block."""
    PAGE.write(DOCUMENT)
    print(f"wrote {DOCUMENT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
