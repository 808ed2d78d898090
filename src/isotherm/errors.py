"""What goes wrong for a user, as opposed to what is wrong with Isotherm.

Every message names the value given, the reason it cannot be used, and the remedy. The command line prints it
and exits with a non-zero code; anything else that escapes is a defect and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something the user gave cannot be used; the message says what, why, and what to do."""


class UnseenWarning(UserWarning):
    """A run depends on something that is no part of its key; the message says on what, where, and what to do."""


class StoreError(UserError):
    """A store cannot be opened, read or written."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the remedy for an unknown name: the nearest known one, then all of them.

    >>> nearest("momentun", ["momentum", "l2"])
    "did you mean 'momentum'? Known: l2, momentum"
    >>> nearest("zzz", ["momentum", "l2"])
    'known: l2, momentum'
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    listing = ", ".join(names)
    return f"did you mean {close[0]!r}? Known: {listing}" if close else f"known: {listing}"
