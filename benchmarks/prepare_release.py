"""Make README and metadata fit for a package index: links and images that lead somewhere from outside the repository.

    python benchmarks/prepare_release.py --repository https://example.org/isotherm --tag v0.1.0

Changes README.md and pyproject.toml in place; done by the workflow that publishes, and not committed.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"(!?)\[([^\]\[]*)\]\((?!https?://|mailto:|#)([^)\s]+)\)")


def absolute_links(text: str, *, repository: str, tag: str) -> str:
    """Return Markdown whose relative links lead to a repository's pages, and its images to their files.

    >>> absolute_links("[a](docs/a.md) ![b](b.png)", repository="https://example.org/x", tag="v1")
    '[a](https://example.org/x/blob/v1/docs/a.md) ![b](https://example.org/x/raw/v1/b.png)'
    """
    base = repository.rstrip("/")

    def replaced(found: re.Match[str]) -> str:
        kind = "raw" if found[1] else "blob"
        return f"{found[1]}[{found[2]}]({base}/{kind}/{tag}/{found[3]})"

    return _LINK.sub(replaced, text)


def with_addresses(pyproject: str, *, repository: str) -> str:
    """Return a pyproject.toml with the project's addresses.

    Raises:
        ValueError: It has addresses already.
    """
    if "[project.urls]" in pyproject:
        raise ValueError("pyproject.toml has [project.urls] already; it was prepared before")
    base = repository.rstrip("/")
    urls = {
        "Repository": base,
        "Documentation": f"{base}/tree/main/docs",
        "Changelog": f"{base}/blob/main/CHANGELOG.md",
        "Issues": f"{base}/issues",
    }
    lines = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    return pyproject.replace("[project.scripts]", f"[project.urls]\n{lines}\n[project.scripts]")


def main() -> None:
    """Change the two files."""
    parser = argparse.ArgumentParser(description="Make README and metadata fit for a package index.")
    parser.add_argument("--repository", required=True, help="the address of the repository's page")
    parser.add_argument("--tag", required=True, help="that is released")
    options = parser.parse_args()
    readme, pyproject = ROOT / "README.md", ROOT / "pyproject.toml"
    changed = with_addresses(pyproject.read_text(), repository=options.repository)
    readme.write_text(absolute_links(readme.read_text(), repository=options.repository, tag=options.tag))
    pyproject.write_text(changed)


if __name__ == "__main__":
    main()
