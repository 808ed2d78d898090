"""The reference of the Python interface is what the package says."""

from __future__ import annotations

import pytest

import isotherm as it
from api_reference import DOCUMENT, PAGE
from pages.python_api import names_block

NAMES = [name for name in it.__all__ if not name.startswith("__")]


def test_the_page_is_up_to_date() -> None:
    text = DOCUMENT.read_text()
    assert PAGE.names_in(text) == ["names"]
    assert PAGE.filled(text) == text, "run python benchmarks/api_reference.py"


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_explained(name: str) -> None:
    _, _, section = names_block().partition(f"## {name}\n")
    text = section.partition("\n## ")[0]
    words = [line for line in text.splitlines() if line and not line.startswith(("```", "-", "    ", ")"))]
    assert words, f"{name} has no docstring"


def test_arguments_and_defaults_are_shown() -> None:
    block = names_block()
    assert "    num_seeds: int = 5,\n" in block
    assert "- `num_seeds`: runs per cell" in block
    assert "effective_learning_rate(learning_rate: float, *, momentum: float = 0.0)" in block
    assert "One of `Direction.MAXIMISE`, `Direction.MINIMISE`." in block
