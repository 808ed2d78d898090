"""The calibration page says what the result files say: no number is typed by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import calibration_report as report
from pages.calibration.comparison import readme_block
from pages.results import CALIBRATION


@pytest.mark.parametrize("document", report.DOCUMENTS, ids=lambda path: path.name)
def test_documents_are_as_generated(document: Path) -> None:
    text = document.read_text()
    assert report.PAGE.filled(text) == text, "run python benchmarks/calibration_report.py"


def test_every_block_is_in_a_document() -> None:
    together = "".join(path.read_text() for path in report.DOCUMENTS)
    for name in report.PAGE.blocks:
        assert together.count(f"<!-- calibration: {name} -->") == 1


def test_a_number_edited_by_hand_is_seen() -> None:
    text = report.DOCUMENTS[0].read_text()
    assert report.PAGE.filled(text.replace("2.940 ± 0.011", "2.910 ± 0.011")) == text


def test_empty_blocks_are_filled_and_what_lies_between_is_kept() -> None:
    empty = "a\n<!-- calibration: skip_init -->\n<!-- end -->\nb\n<!-- calibration: readme -->\n<!-- end -->\nc\n"
    found = report.PAGE.filled(empty)
    assert "\nb\n" in found
    assert report.PAGE.filled(found) == found
    assert readme_block() in found


def test_every_result_file_is_described_with_its_commit() -> None:
    lines = (CALIBRATION / "README.md").read_text().splitlines()
    for path in CALIBRATION.glob("*.json"):
        (line,) = (line for line in lines if line.startswith(f"| `{path.name}` |"))
        assert f"| {json.loads(path.read_text()).get('commit', 'in every row')} |" in line
