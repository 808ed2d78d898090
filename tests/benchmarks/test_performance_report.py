"""The page on speed says what the result files say."""

from __future__ import annotations

from pathlib import Path

import pytest

import performance_report as report
from helpers_performance import empty_results
from pages.performance import numerics


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_results(tmp_path, monkeypatch)


def test_the_document_is_up_to_date() -> None:
    text = report.DOCUMENT.read_text()
    assert report.PAGE.filled(text) == text


def test_every_block_of_the_document_is_known() -> None:
    assert set(report.PAGE.names_in(report.DOCUMENT.read_text())) == set(report.PAGE.blocks)


def test_what_was_not_measured_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "CALIBRATION", folder)
    assert all(block() == "Not measured yet." for block in report.PAGE.blocks.values())
