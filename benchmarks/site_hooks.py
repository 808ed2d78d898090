"""What the documentation site adds to docs/: the README as its first page, and the files that pages link to.

Read by `mkdocs build` (mkdocs.yml). Pages are written to be read in the repository as well, so that their links lead
out of docs/ to results, examples and sources; the site carries a copy of each such file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# Copies of files of the repository, below the site's root.
COPIES = "files"
_LINK = re.compile(r"\[(?P<text>[^\]\[]*)\]\((?P<target>(?!https?://|mailto:|#)[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the first page, and every file outside docs/ that a page links to."""
    files.append(File.generated(config, "index.md", content=first_page()))
    for path in sorted(linked_files()):
        files.append(File.generated(config, copy_of(path), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Lead the links of a page out of docs/ to the copies."""
    return with_copies(markdown)


def first_page() -> str:
    """Return the README with its links as they are from docs/."""
    text = (ROOT / "README.md").read_text()
    return _LINK.sub(lambda found: _link(found, _from_docs(ROOT / found["target"])), text)


def linked_files() -> set[Path]:
    """Return the files outside docs/ that its pages and the README link to."""
    texts = [first_page(), *(path.read_text() for path in DOCS.glob("*.md"))]
    targets = {(DOCS / found["target"]).resolve() for text in texts for found in _LINK.finditer(text)}
    return {path for path in targets if path.is_file() and not path.is_relative_to(DOCS)}


def with_copies(markdown: str) -> str:
    """Return a page whose links to files outside docs/ lead to their copies; those to folders are text."""

    def replaced(found: re.Match[str]) -> str:
        path = (DOCS / found["target"]).resolve()
        if path.is_relative_to(DOCS):
            return found[0]
        if path == ROOT / "README.md":
            return _link(found, "index.md")
        return found["text"] if path.is_dir() else f"[{found['text']}]({copy_of(path)})"

    return _LINK.sub(replaced, markdown)


def copy_of(path: Path) -> str:
    """Return where the site has a file of the repository, under a name that browsers show instead of saving."""
    name = f"{COPIES}/{path.relative_to(ROOT).as_posix()}"
    return f"{name}.txt" if path.suffix in ("", ".md", ".py", ".toml", ".yml", ".jinja") else name


def _link(found: re.Match[str], target: str) -> str:
    return f"[{found['text']}]({target}{found['anchor'] or ''})"


def _from_docs(path: Path) -> str:
    path = path.resolve()
    return path.relative_to(DOCS).as_posix() if path.is_relative_to(DOCS) else f"../{path.relative_to(ROOT).as_posix()}"
