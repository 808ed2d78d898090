"""The reference of the command line is what the commands say, and every option says enough."""

from __future__ import annotations

from typing import Any

import pytest

from cli_reference import DOCUMENT, PAGE
from isotherm.cli.cell_options import MOMENTUM, CellSettings
from isotherm.running.runner import CHECKPOINT_SECONDS
from pages.command_line import commands, commands_block

PARAMETERS = [(name, parameter) for name, command in commands().items() for parameter in command.params]


def test_the_page_is_up_to_date() -> None:
    text = DOCUMENT.read_text()
    assert PAGE.names_in(text) == ["commands"]
    assert PAGE.filled(text) == text, "run python benchmarks/cli_reference.py"


def test_every_command_has_a_section() -> None:
    assert {"quickstart", "plan", "run", "status", "report", "diagnose", "theory", "bench"} < set(commands())
    for name in commands():
        assert f"## isotherm {name}\n" in commands_block()


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS, ids=lambda value: getattr(value, "name", value))
def test_every_option_says_in_a_sentence_what_it_does(name: str, parameter: Any) -> None:
    assert parameter.help[0].isupper()
    assert parameter.help.endswith(".")
    assert len(parameter.help) < 90
    assert getattr(parameter, "is_flag", False) or parameter.metavar
    assert name in commands()


def test_defaults_that_texts_name_are_those_that_hold() -> None:
    options = {parameter.name: parameter.help for parameter in commands()["run"].params}
    assert f"default: {CHECKPOINT_SECONDS:g};" in options["checkpoint_seconds"]
    assert f"default: {MOMENTUM:g};" in options["momentum"]
    for name in ("num_seeds", "first_seed", "num_evaluations"):
        default = CellSettings.__dataclass_fields__[name].default
        assert f"default: {default}" in options[name]
