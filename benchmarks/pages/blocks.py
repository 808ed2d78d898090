"""Generated blocks of documents, between the markers `<!-- PAGE: NAME -->` and `<!-- end -->`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """The blocks that one script writes; its documents may hold any of them."""

    name: str
    blocks: Mapping[str, Callable[[], str]]

    def names_in(self, text: str) -> list[str]:
        """Return the names of this page's blocks in a document, in its order.

        >>> Page(name="speed", blocks={}).names_in("<!-- speed: cpu -->" + chr(10) + "<!-- end -->")
        ['cpu']
        """
        return [found[2] for found in self._pattern.finditer(text)]

    def block_in(self, text: str, name: str) -> str:
        """Return the text of a block as it stands in a document; empty where the document has none of the name."""
        found = (match for match in self._pattern.finditer(text) if match[2] == name)
        return next((m[0].removeprefix(m[1]).removesuffix(m[3]).rstrip("\n") for m in found), "")

    def filled(self, text: str) -> str:
        """Return a document with its blocks regenerated."""
        return self._pattern.sub(lambda found: f"{found[1]}{self.blocks[found[2]]()}\n{found[3]}", text)

    def write(self, path: Path) -> None:
        """Regenerate the blocks of a file.

        Raises:
            ValueError: The file has no block of this page.
        """
        text = path.read_text()
        if not self.names_in(text):
            raise ValueError(
                f"{path} has no block of the page {self.name!r}; "
                f"put `<!-- {self.name}: NAME -->` and `<!-- end -->` on lines of their own"
            )
        path.write_text(self.filled(text))

    @property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(rf"(<!-- {self.name}: (\w+) -->\n)(?:.*?\n)??(<!-- end -->)", re.DOTALL)
