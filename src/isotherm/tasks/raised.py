"""What a user's own code raised, in one line."""

from __future__ import annotations

import traceback
from pathlib import Path


def raised(error: BaseException) -> str:
    """Return an error's type and message, and the last line of the user's own code on the way to it.

    The error itself stays the cause of ours, so Python shows the whole traceback.
    """
    from isotherm.tasks.identity.origin import is_library_file  # whose package reports errors by this function

    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_library_file(frame.filename)]
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {message_of(error)}{place}"


def message_of(error: BaseException) -> str:
    """Return an error's message, also where its own `__str__` raises."""
    try:
        return str(error).strip()
    except Exception:
        return "(its message cannot be shown)"
