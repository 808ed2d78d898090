"""What goes wrong for a user, as opposed to what is wrong with Isotherm.

Every message names the value given, the reason it cannot be used, and the remedy. The command line prints it
and exits with a non-zero code; anything else that escapes is a defect and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Self


class UserError(ValueError):
    """Something the user gave cannot be used; the message says what, why, and what to do.

    Args:
        reason: what cannot be used and why; with what to do, where no caller has other advice.
        advice: what to do, for those who called this function themselves.

    >>> error = UserError("batch_size=0 is no batch", advice="use at least 1")
    >>> str(error), error.reason
    ('batch_size=0 is no batch; use at least 1', 'batch_size=0 is no batch')
    >>> str(error.within("task 'mine'"))
    "task 'mine': batch_size=0 is no batch; use at least 1"
    """

    def __init__(self, reason: str, *, advice: str | None = None) -> None:
        super().__init__(reason if advice is None else f"{reason}; {advice}")
        self.reason, self.advice = reason, advice

    def within(self, where: str) -> Self:
        """Return an error of the same kind that says where it arose."""
        return type(self)(f"{where}: {self.reason}", advice=self.advice)


class OutOfTimeError(UserError):
    """A call was given so little time that it came to nothing."""


class UnseenWarning(UserWarning):
    """A run depends on something that is no part of its key; the message says on what, where, and what to do."""


class StoreError(UserError):
    """A store cannot be opened, read or written."""


# What others call things.
_SYNONYMS = {
    "lr": ("learning_rate", "effective_learning_rate", "effective_learning_rates"),
    "lrs": ("learning_rates", "effective_learning_rates"),
    "learning_rate": ("learning_rates", "effective_learning_rate", "effective_learning_rates"),
    "optimiser": ("optimizer",),
    "bs": ("batch_size", "batch_sizes"),
    "iterations": ("steps",),
    "iters": ("steps",),
    "updates": ("steps",),
    "weight_decay": ("l2",),
    "wd": ("l2",),
    "seed": ("first_seed", "num_seeds", "seeds"),
    "gpu": ("device",),
    "cuda": ("device",),
    "out": ("output",),
    "crossentropy": ("cross_entropy",),
    "binary_cross_entropy": ("bce",),
}


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant; None if there is none like it.

    >>> closest("momentun", ["momentum", "l2"]), closest("lr", ["effective_learning_rates", "l2"])
    ('momentum', 'effective_learning_rates')
    >>> closest("bce_loss", ["bce", "mse"]), closest("zzz", ["bce", "mse"])
    ('bce', None)
    """
    names = sorted(known)
    meant = [synonym for synonym in _SYNONYMS.get(name.lower().replace("-", "_"), ()) if synonym in names]
    within = [other for other in names if len(other) > 2 and (other in name or (len(name) > 2 and name in other))]
    return next(iter([*meant, *difflib.get_close_matches(name, names, n=1), *within]), None)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the remedy for an unknown name: the nearest known one, then all of them.

    >>> nearest("momentun", ["momentum", "l2"])
    "did you mean 'momentum'? Known: l2, momentum"
    >>> nearest("zzz", ["momentum", "l2"])
    'known: l2, momentum'
    """
    names = sorted(known)
    close, listing = closest(name, names), ", ".join(names)
    return f"did you mean {close!r}? Known: {listing}" if close else f"known: {listing}"
