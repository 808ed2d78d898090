"""`isotherm watch`: a live page of a store."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isotherm.cli.command import command
from isotherm.cli.common import errors, escaped
from isotherm.cli.options import StoreArgument
from isotherm.errors import UserError

if TYPE_CHECKING:
    from isotherm.report.watch.live import Live


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchOptions:
    """The options of `isotherm watch`."""

    store: StoreArgument
    compare: Annotated[
        str | None, typer.Option("--compare", metavar="STORE", help="Show a second store beside the first.")
    ] = None
    study: Annotated[
        str | None, typer.Option("--study", metavar="NAME", help="Study of the store; default: the one run last.")
    ] = None
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FILE", help="Write the page into one HTML file instead of serving it."),
    ] = None
    host: Annotated[
        str,
        typer.Option("--host", metavar="ADDRESS", help="Address to serve on; any but this machine's asks for a token."),
    ] = "127.0.0.1"
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="Port to serve on; 0 takes a free one.")
    ] = 8737
    price: Annotated[
        float | None,
        typer.Option("--price", metavar="AMOUNT", min=0, help="Price of an hour of training, to show the cost left."),
    ] = None
    fit_seconds: Annotated[
        float, typer.Option("--fit-seconds", metavar="SECONDS", min=1, help="Least time between two fits.")
    ] = 15.0


@command(WatchOptions)
def watch(options: WatchOptions) -> None:
    """Show a store as a live page on this machine, while a sweep runs or afterwards; it only reads."""
    lives = _lives(options)
    if options.export is not None:
        _export(lives, options.export)
    else:
        _serve(lives, options)


def _lives(options: WatchOptions) -> list[Live]:
    from isotherm.cli.stores import store_path
    from isotherm.report.watch.live import Live

    paths = [store_path(name) for name in (options.store, options.compare) if name is not None]
    lives = [
        Live(
            path=path,
            study=options.study if place == 0 else None,
            price=options.price,
            fit_seconds=options.fit_seconds,
        )
        for place, path in enumerate(paths)
    ]
    for live in lives:
        live.check()
    return lives


def _export(lives: list[Live], path: Path) -> None:
    from isotherm.report.files import require_writable
    from isotherm.report.watch.page import write_frozen

    require_writable(path)
    for live in lives:
        live.read()
        live.fit()
    written = write_frozen(lives, path)
    errors().print(f"Written to {escaped(str(written))}", highlight=False, soft_wrap=True)


def _serve(lives: list[Live], options: WatchOptions) -> None:
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"the live page needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed; "
            'install with: pip install "isotherm[watch]", or write the page into a file with --export page.html'
        )
    from isotherm.report.watch.serving import serve

    def tell(address: str) -> None:
        errors().print(f"Watching {escaped(str(lives[0].path))} at {escaped(address)}", highlight=False, soft_wrap=True)
        errors().print("Ctrl-C ends the page; the sweep goes on.", highlight=False)

    serve(lives, host=options.host, port=options.port, tell=tell)
