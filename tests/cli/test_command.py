"""A record becomes the options of a command, and comes back filled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from isotherm.cli.command import command
from isotherm.cli.common import EXIT_INTERRUPTED, EXIT_USER
from isotherm.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    """A record inside another."""

    size: Annotated[int, typer.Option("--size")] = 3
    names: Annotated[list[str] | None, typer.Option("--name")] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer:
    """A record with an argument, an option and a record."""

    what: Annotated[str, typer.Argument()]
    inner: Inner
    is_loud: Annotated[bool, typer.Option("--loud")] = False


def told(*arguments: str) -> tuple[int, list[Outer], str]:
    """Return exit code, the records a command got, and its output."""
    got: list[Outer] = []
    app = typer.Typer()

    @app.command()
    @command(Outer)
    def say(options: Outer) -> None:
        """Say something."""
        got.append(options)
        if options.what == "bad":
            raise UserError("it is [bad]; say something else")
        if options.what == "stop":
            raise KeyboardInterrupt
        if options.what == "full":
            raise OSError(28, "No space left on device", "a.txt")
        if options.what == "defect":
            raise RuntimeError("a defect")

    result = CliRunner().invoke(app, list(arguments))
    if isinstance(result.exception, RuntimeError):
        raise result.exception
    return result.exit_code, got, " ".join(result.output.split())


def test_defaults_and_what_is_given_reach_the_record() -> None:
    assert told("hello")[1] == [Outer(what="hello", inner=Inner())]
    code, got, _ = told("hello", "--size", "5", "--name", "a", "--name", "b", "--loud")
    assert code == 0
    assert got == [Outer(what="hello", inner=Inner(size=5, names=["a", "b"]), is_loud=True)]


def test_help_is_the_docstring_with_the_options_of_both_records() -> None:
    code, got, text = told("--help")
    assert (code, got) == (0, [])
    for part in ("Say something.", "--size", "--name", "--loud", "what"):
        assert part in text


def test_what_a_user_can_mend_is_a_sentence_and_a_code() -> None:
    code, _, text = told("bad")
    assert (code, text) == (EXIT_USER, "error: it is [bad]; say something else")
    code, _, text = told("stop")
    assert code == EXIT_INTERRUPTED
    assert "the same command resumes from there" in text
    code, _, text = told("full")
    assert code == EXIT_USER
    assert "error: a.txt cannot be written: No space left on device; the store is intact" in text


def test_a_defect_keeps_its_traceback() -> None:
    with pytest.raises(RuntimeError, match="a defect"):
        told("defect")


def test_a_missing_argument_is_refused() -> None:
    code, got, text = told()
    assert (code, got) == (2, [])
    assert "Missing argument" in text
