"""Every command of `isotherm` with its arguments and options, read from the commands."""

from __future__ import annotations

from typing import Any

import typer.main

from isotherm.cli.main import app
from pages.text import paragraph, table


def commands() -> dict[str, Any]:
    """Return every command by its full name, those of groups included."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        for inner, one in getattr(command, "commands", {"": command}).items():
            found[f"{name} {inner}".strip()] = one
    return found


def commands_block() -> str:
    """Return a section for every command."""
    return "\n\n".join(_section(name, command) for name, command in commands().items())


def _section(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    parts = [f"## isotherm {name}", f"```\n{_usage(name, arguments)}\n```", paragraph(command.help)]
    panels: dict[str, list[tuple[str, str]]] = {"": [(f"`{p.metavar}`", _text(p)) for p in arguments]}
    for option in command.params:
        if option.param_type_name == "option":
            panels.setdefault(option.rich_help_panel or "", []).append((_names(option), _text(option)))
    for panel, rows in panels.items():
        header = ("argument or option", "what it does") if not panel else (panel[0].lower() + panel[1:], "what it does")
        parts.append(table(header, rows))
    return "\n\n".join(parts)


def _usage(name: str, arguments: list[Any]) -> str:
    words = [f"isotherm {name}"]
    for argument in arguments:
        word = argument.metavar + ("..." if argument.nargs == -1 else "")
        words.append(word if argument.required else f"[{word}]")
    return " ".join([*words, "[OPTIONS]"])


def _names(option: Any) -> str:
    names = ", ".join(option.opts)
    return f"`{names}`" if option.is_flag else f"`{names} {option.metavar}`"


def _text(parameter: Any) -> str:
    """Return what a parameter does, with a default that its text leaves to be shown beside it."""
    text = parameter.help.replace("<", "&lt;").replace("|", "\\|")
    default = parameter.default
    if default is None or default is False or parameter.param_type_name == "argument":
        return text
    return f"{text.removesuffix('.')}; default: {f'{default:g}' if isinstance(default, float) else default}."
