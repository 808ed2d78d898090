"""The `isotherm` command itself."""

from __future__ import annotations

import pytest

from helpers_cli import invoke

COMMANDS = ("quickstart", "plan", "run", "status", "report", "diagnose", "theory", "bench", "data")
DATA_COMMANDS = ("list", "verify", "fetch")


def test_version_and_help() -> None:
    code, text = invoke("--version")
    assert code == 0
    assert text.startswith("isotherm 0.")
    code, text = invoke("--help")
    for command in COMMANDS:
        assert command in text


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS), *(["data", name] for name in DATA_COMMANDS)])
def test_help_shows_no_python_types(command: list[str]) -> None:
    code, text = invoke(*command, "--help")
    assert code == 0
    assert "--help" in text
    for kind in ("<bool>", "<str>", "<int>", "<float>", "<list", "<path>"):
        assert kind not in text.lower()
