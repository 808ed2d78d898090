"""What the commands share: exit codes, sentences for what a user can mend, and JSON."""

from __future__ import annotations

import errno
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer
from rich.console import Console

from isotherm.core.json import json_text
from isotherm.errors import UserError
from isotherm.report.files import write_json

P = ParamSpec("P")
R = TypeVar("R")

EXIT_USER = 2
EXIT_FAILED_RUNS = 3
EXIT_INTERRUPTED = 130

JsonOption = Annotated[
    Path | None, typer.Option("--json", metavar="PATH", help="Write the results as JSON too; '-' for standard output.")
]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="FOLDER", help="Folder of the data sets; default: ISOTHERM_DATA, or the cache."),
]


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """Turn what a user can mend into one sentence and an exit code."""

    @functools.wraps(command)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except UserError as error:
            errors().print(f"[bold red]error:[/] {escaped(str(error))}", highlight=False, soft_wrap=True)
            raise typer.Exit(EXIT_USER) from error
        except KeyboardInterrupt as error:
            errors().print("[bold]stopped.[/] What was finished is in the store; the same command goes on from there.")
            raise typer.Exit(EXIT_INTERRUPTED) from error
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EPERM, errno.EDQUOT):
                raise
            errors().print(
                f"[bold red]error:[/] {escaped(str(error.filename or 'a file'))} cannot be written: {error.strerror}; "
                "what is in the store is intact: make room or choose another folder, and run again",
                soft_wrap=True,
            )
            raise typer.Exit(EXIT_USER) from error

    return call


def console_for(json_path: Path | None) -> Console:
    """Return where people read: standard output, or standard error where that carries JSON."""
    return Console(stderr=json_path == Path("-"))


def errors() -> Console:
    """Return where errors go."""
    return Console(stderr=True)


def escaped(text: str) -> str:
    """Return a text that may hold square brackets as Rich prints it unchanged."""
    return text.replace("[", r"\[")


def check_json(path: Path | None) -> None:
    """Refuse a JSON path that cannot be written before hours are spent."""
    if path is not None and path != Path("-") and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise UserError(
            f"--json {path}: it is a folder, or its folder does not exist; name a file in an existing folder"
        )


def give_json(path: Path | None, content: Any) -> None:
    """Write what `--json` asks for, if anything."""
    if path == Path("-"):
        sys.stdout.write(json_text(content))
    elif path is not None:
        write_json(path, content)
