"""Streams that take any text: what their encoding lacks is written in ASCII."""

from __future__ import annotations

import codecs
import io
import sys
from typing import IO

from isotherm.core.one_screen import ascii_text

_ERRORS = "names_in_ascii"


def take_any_text(*streams: IO[str] | None) -> None:
    """Let text streams, by default standard output and error, write ε as eps where they have no ε.

    A console of Windows, a pipe in an old locale or `PYTHONIOENCODING=ascii` would otherwise end a command with a
    `UnicodeEncodeError`.
    """
    codecs.register_error(_ERRORS, _in_ascii)
    for stream in streams or (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not what a test or a notebook puts in its place
            stream.reconfigure(errors=_ERRORS)


def has_unicode(stream: IO[str]) -> bool:
    """Tell whether a stream takes every character as it is."""
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-").startswith("utf")


def _in_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return ascii_text(error.object[error.start : error.end]), error.end
