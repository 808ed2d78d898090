"""Blocks are regenerated; everything around them stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages.blocks import Page

PAGE = Page(name="speed", blocks={"cpu": lambda: "fast", "gpu": lambda: "faster\n\nby far"})
OTHER = "<!-- other: cpu -->\nold\n<!-- end -->"
EMPTY = f"a\n<!-- speed: cpu -->\n<!-- end -->\nb\n{OTHER}\n<!-- speed: gpu -->\n<!-- end -->\n"
FILLED = EMPTY.replace("cpu -->\n<", "cpu -->\nfast\n<").replace("gpu -->\n<", "gpu -->\nfaster\n\nby far\n<")


@pytest.mark.parametrize("text", [EMPTY, FILLED, FILLED.replace("fast\n", "slow\n\n| x <!-- end --> |\n")])
def test_blocks_are_filled_whatever_they_held(text: str) -> None:
    assert PAGE.filled(text) == FILLED


def test_names_are_those_of_the_page() -> None:
    assert PAGE.names_in(EMPTY) == PAGE.names_in(FILLED) == ["cpu", "gpu"]


def test_a_file_is_written(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(EMPTY)
    PAGE.write(path)
    assert path.read_text() == FILLED


def test_an_unknown_block_is_an_error() -> None:
    with pytest.raises(KeyError, match="tpu"):
        PAGE.filled("<!-- speed: tpu -->\n<!-- end -->\n")


@pytest.mark.parametrize("text", ["nothing\n", "<!-- other: cpu -->\n<!-- end -->\n", "<!-- speed: cpu -->\nno end\n"])
def test_a_file_without_a_block_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "page.md"
    path.write_text(text)
    with pytest.raises(ValueError, match="has no block of the page 'speed'"):
        PAGE.write(path)
    assert path.read_text() == text
