"""Which parameters L2 covers, decided here for training, theory and timing alike. No torch here."""

from __future__ import annotations

from typing import Literal, Protocol

L2Scope = Literal["weights", "all"]


class HasDimensions(Protocol):
    """A parameter, whichever library it comes from."""

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        ...


def is_penalised(parameter: HasDimensions, *, scope: L2Scope) -> bool:
    """Tell whether L2 covers a parameter: weights are what has at least two dimensions, not biases and scales."""
    return scope == "all" or parameter.ndim >= 2
