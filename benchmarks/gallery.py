"""Write docs/gallery.md: every figure of the pages, with the page that explains it.

python benchmarks/gallery.py
"""

from __future__ import annotations

import re
from pathlib import Path

from pages.blocks import Page
from pages.results import ROOT

DOCS = ROOT / "docs"
DOCUMENT = DOCS / "gallery.md"
_IMAGE = re.compile(r"!\[([^\]]+)\]\(((?:docs/)?figures/[^)]+)\)")


def figures_block() -> str:
    """Return every figure once, under the page that shows it first."""
    parts: list[str] = []
    seen: set[str] = set()
    for path in [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]:
        if path == DOCUMENT:
            continue
        found = [(caption, target.removeprefix("docs/")) for caption, target in _IMAGE.findall(path.read_text())]
        new = [(caption, target) for caption, target in found if target not in seen]
        seen |= {target for _, target in new}
        if new:
            parts.append(f"## {_title(path)}")
        parts += [f"![{caption}]({target})\n\n*{_sentence(caption)}* [More]({_link(path)})" for caption, target in new]
    return "\n\n".join(parts)


def _title(path: Path) -> str:
    return path.read_text().partition("\n")[0].lstrip("# ").strip()


def _sentence(caption: str) -> str:
    return caption if caption.endswith(".") else f"{caption}."


def _link(path: Path) -> str:
    return path.name if path.parent == DOCS else f"../{path.name}"


PAGE = Page(name="gallery", blocks={"figures": figures_block})


def main() -> None:
    """Write the block."""
    PAGE.write(DOCUMENT)
    print(f"wrote {DOCUMENT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
