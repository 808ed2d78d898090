"""The gallery shows every figure of the pages, and no figure lies about unused."""

from __future__ import annotations

import re

from gallery import DOCS, DOCUMENT, PAGE, figures_block


def test_the_page_is_up_to_date() -> None:
    text = DOCUMENT.read_text()
    assert PAGE.filled(text) == text, "run python benchmarks/gallery.py"


def test_every_figure_is_shown_once() -> None:
    shown = re.findall(r"\]\((figures/[^)]+)\)", figures_block())
    assert sorted(shown) == sorted(f"figures/{path.name}" for path in (DOCS / "figures").iterdir())
