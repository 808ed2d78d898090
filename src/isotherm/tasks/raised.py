"""What a user's own code raised, in one line."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

MOST_CHARACTERS = 2_000  # of a message: rows, pages and terminals show it


def raised(error: BaseException) -> str:
    """Return an error's type and message, and the last line of the user's own code on the way to it.

    The error itself stays the cause of ours, so Python shows the whole traceback.
    """
    from isotherm.tasks.identity.origin import is_library_file  # whose package reports errors by this function

    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_library_file(frame.filename)]
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {message_of(error)}{place}"


def message_of(error: BaseException) -> str:
    """Return an error's message, the middle of a long one left out; also where its own `__str__` raises.

    >>> message_of(ValueError("no " * 50_000))[990:1_040]
    'no no no n [147,999 characters left out] o no no n'
    """
    try:
        text = str(error).strip()
    except Exception:
        return "(its message cannot be shown)"
    left_out = len(text) - MOST_CHARACTERS
    if left_out <= 0:
        return text
    half = MOST_CHARACTERS // 2
    return f"{text[:half]} [{left_out:,} characters left out] {text[-half:]}"


class suppressed:
    """A context in which a model may raise anything; Ctrl-C alone passes."""

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Suppress what is raised."""
        return kind is not None and not issubclass(kind, KeyboardInterrupt)
