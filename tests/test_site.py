"""The documentation site: built strictly, every page in its contents, every link alive."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import site_hooks as hooks

ROOT = Path(__file__).parent.parent
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def listed() -> list[str]:
    """Return the pages in the site's contents, in order."""
    text = (ROOT / "mkdocs.yml").read_text()
    return re.findall(r"^ +- (\w+\.md)$", text[text.index("nav:\n") :], re.MULTILINE)


def test_every_page_is_in_the_contents() -> None:
    assert sorted(listed()) == sorted([*PAGES, "index.md"])


def test_the_settings_ask_for_a_strict_build_without_outside_requests() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert settings["strict"] is True
    assert settings["theme"]["font"] is False


def test_links_out_of_docs_lead_to_copies() -> None:
    text = "[study](../examples/study.toml), [tasks](tasks.md#data), [all](../results), [here](../README.md)"
    assert hooks.with_copies(text) == (
        "[study](files/examples/study.toml.txt), [tasks](tasks.md#data), all, [here](index.md)"
    )


def test_the_first_page_is_the_readme_with_links_from_docs() -> None:
    page = hooks.first_page()
    assert "](docs/" not in page
    assert "](cli.md)" in page
    assert "![" in page


@pytest.mark.slow
def test_it_builds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    first = (tmp_path / "site" / "index.html").read_text()
    assert "Which learning rate and which batch size" in first
    outside = {
        found for found in re.findall(r'(?:src|href)="(https?://[^"]+)"', first) if "squidfunk.github.io" not in found
    }
    assert not any(found.endswith((".js", ".css", ".woff2")) for found in outside)
    assert (tmp_path / "site" / "files" / "examples" / "study.toml.txt").exists()
