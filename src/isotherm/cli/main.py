"""The `isotherm` command: its commands, and how it starts and ends."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Annotated

import typer

from isotherm.cli.bench import bench
from isotherm.cli.command import Command, Group
from isotherm.cli.common import EXITS_BY_SIGNAL, errors
from isotherm.cli.consoles import take_any_text
from isotherm.cli.data import app as data_app
from isotherm.cli.diagnose import diagnose
from isotherm.cli.merge import merge
from isotherm.cli.plan import plan
from isotherm.cli.quickstart import quickstart
from isotherm.cli.report import report
from isotherm.cli.reproduce import reproduce
from isotherm.cli.run import run
from isotherm.cli.status import status
from isotherm.cli.theory import theory
from isotherm.cli.watch import watch
from isotherm.core.visible import printable
from isotherm.version import __version__

app = typer.Typer(
    name="isotherm",
    cls=Group,
    help="Choose learning rate and batch size by measurement: SGD, AdamW, Muon.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _command in (quickstart, plan, run, merge, status, watch, report, reproduce, diagnose, theory, bench):
    app.command(cls=Command)(_command)
app.add_typer(data_app)


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(f"isotherm {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the `isotherm` command."""
    take_any_text()
    _log_to_terminal()
    try:
        app(prog_name="isotherm")
    except SystemExit as leaving:
        if not isinstance(leaving.code, int) or leaving.code not in EXITS_BY_SIGNAL:
            raise
        # An interrupt that passed through generated code makes Python end by the signal whatever is caught later.
        with contextlib.suppress(OSError):  # the terminal may be gone
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(leaving.code)


class _OncePerText(logging.Filter):
    """Lets every text through once, fit for a terminal; the fleets of a study have the same things to say."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a line is new."""
        record.msg, record.args = printable(record.getMessage()), ()
        is_new = record.msg not in self._seen
        self._seen.add(record.msg)
        return is_new


def _log_to_terminal() -> None:
    from rich.highlighter import NullHighlighter
    from rich.logging import RichHandler

    # Rich's highlighter takes a time that grows with the square of a long word.
    handler = RichHandler(
        console=errors(), highlighter=NullHighlighter(), show_time=False, show_path=False, show_level=False
    )
    handler.addFilter(_OncePerText())
    logging.getLogger("isotherm").addHandler(handler)


if __name__ == "__main__":
    main()
