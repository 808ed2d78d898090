"""What is logged reaches the terminal at once, whatever it looks like."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest

from isotherm.cli import main


@pytest.fixture
def _logging() -> Iterator[None]:
    logger = logging.getLogger("isotherm")
    before = list(logger.handlers)
    main._log_to_terminal()
    yield
    logger.handlers[:] = before


@pytest.mark.usefixtures("_logging")
def test_a_long_word_takes_no_long_time(capsys: pytest.CaptureFixture[str]) -> None:
    start = time.process_time()
    logging.getLogger("isotherm").warning("%s", "y" * 50_000)
    assert time.process_time() - start < 5.0, "a highlighter takes minutes"
    assert capsys.readouterr().err.count("y") == 50_000


@pytest.mark.usefixtures("_logging")
def test_markup_and_escapes_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("isotherm").warning("%s", "\x1b[31m [/x] :smile:")
    assert capsys.readouterr().err.split() == ["␛[31m", "[/x]", ":smile:"]
