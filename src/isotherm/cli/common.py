"""What commands share: exit codes, one-sentence errors, and JSON."""

from __future__ import annotations

import contextlib
import errno
import functools
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from isotherm.cli.consoles import has_unicode
from isotherm.core.json import json_text
from isotherm.core.visible import printable
from isotherm.errors import UserError
from isotherm.report.files import open_descriptor, require_writable, write_json

P = ParamSpec("P")
R = TypeVar("R")

EXIT_USER = 2
EXIT_FAILED_RUNS = 3
EXIT_OUT_OF_TIME = 4
EXIT_INTERRUPTED = 130
EXITS_BY_SIGNAL = (129, EXIT_INTERRUPTED, 143)  # SIGHUP, SIGINT, SIGTERM
_NOT_WRITABLE = (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EPERM, errno.EDQUOT)


def guarded(function: Callable[P, R]) -> Callable[P, R]:
    """Turn errors that a user can fix into one sentence and an exit code."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except UserError as error:
            _print_error(str(error))
            raise typer.Exit(EXIT_USER) from error
        except KeyboardInterrupt as error:
            sentence = "Finished runs are in the store; the same command resumes from there."
            raise stopped(sentence, number=getattr(error, "number", signal.SIGINT)) from error
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                name = str(error.filename)
                _print_error(f"{name[:40]}... has {len(name):,} characters, too many for the name of a file")
                raise typer.Exit(EXIT_USER) from error
            if error.errno not in _NOT_WRITABLE:
                raise
            _print_error(
                f"{error.filename or 'a file'} cannot be written: {error.strerror}; the store is intact: free some "
                "space or choose another folder, and run again"
            )
            raise typer.Exit(EXIT_USER) from error

    return call


def stopped(sentence: str, *, number: int = signal.SIGINT) -> typer.Exit:
    """Say what an interrupt leaves behind, and return the exception that ends the command.

    Args:
        sentence: what is left.
        number: of the signal.
    """
    with contextlib.suppress(OSError):  # the terminal may be gone
        errors().print(f"[bold]stopped.[/] {escaped(sentence)}", highlight=False, soft_wrap=True)
    return typer.Exit(128 + number)


def _print_error(sentence: str) -> None:
    errors().print(f"[bold red]error:[/] {escaped(sentence)}", highlight=False, soft_wrap=True)


def console_for(json_path: Path | None) -> Console:
    """Return the console for display: standard output, or standard error if JSON goes to standard output."""
    return _console(stderr=is_standard_output(json_path))


def is_standard_output(path: Path | None) -> bool:
    """Return whether a path stands for standard output; what is there may be a pipe, which no file can replace."""
    return path is not None and (path == Path("-") or open_descriptor(path) == 1)


def errors() -> Console:
    """Return the console for errors."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    return _SafeConsole(stderr=stderr, emoji=False)  # a sweep may be called ":one:"


class _SafeConsole(Console):
    """Shows control characters of names and messages instead of sending them to the terminal."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as text to print."""
        return super().render_str(printable(text), **options)


def escaped(text: str) -> str:
    r"""Escape what Rich would read as markup.

    >>> print(escaped("grid[red] in runs[1]"))
    grid\[red] in runs[1]
    """
    return escape(text)


def print_notes(notes: Iterable[str], console: Console) -> None:
    """Print each note once."""
    for note in dict.fromkeys(notes):
        console.print(f"note: {escaped(note)}", highlight=False)


def print_written(paths: Iterable[Path | None], console: Console) -> None:
    """Say which files were written."""
    for path in paths:
        if path is not None and not is_standard_output(path):
            console.print(f"Written to {escaped(str(path))}", highlight=False, soft_wrap=True)


def check_json(path: Path | None) -> None:
    """Refuse a JSON path that cannot be written before hours are spent."""
    if path is None or is_standard_output(path):
        return
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(
            f"--json {path}: it is a folder, or its folder does not exist; name a file in an existing folder"
        )
    require_writable(path)


def give_json(path: Path | None, content: Any) -> None:
    """Write the content to the path of `--json`, if one was given."""
    if is_standard_output(path):
        sys.stdout.write(json_text(content, ascii_only=not has_unicode(sys.stdout)))
    elif path is not None:
        write_json(path, content)
