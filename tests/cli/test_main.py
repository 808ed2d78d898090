"""The `isotherm` command itself."""

from __future__ import annotations

from helpers_cli import (
    invoke,
)


def test_version_and_help() -> None:
    code, text = invoke("--version")
    assert code == 0
    assert text.startswith("isotherm 0.")
    code, text = invoke("--help")
    for command in ("quickstart", "plan", "run", "status", "report", "data"):
        assert command in text
