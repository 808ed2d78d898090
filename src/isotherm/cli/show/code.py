"""Lines of code in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from isotherm.cli.common import escaped


def print_code(code: Sequence[str], console: Console) -> None:
    """Print lines to paste: not indented, and not broken where the terminal is narrow."""
    for line in ("", *code) if code else ():
        console.print(f"[cyan]{escaped(line)}[/]", highlight=False, soft_wrap=True)
