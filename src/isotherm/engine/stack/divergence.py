"""Runs whose loss is no longer finite: noted with the update, and dropped from the stack when enough of them are.

Shape suffixes: M runs, K updates of a window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from isotherm.engine.checkpoint_file import State

# A new size needs a new trace, so a stack shrinks once this fraction of it has diverged.
SHRINK_FRACTION = 1 / 8


class Divergence:
    """Which runs are in the stack, and when those that diverged did.

    >>> divergence = Divergence(3)
    >>> divergence.note(torch.tensor([[1.0, torch.inf, 1.0], [1.0, torch.nan, 1.0]]), first=64)
    >>> divergence.steps, divergence.num_left, divergence.positions_to_keep()
    ({1: 64}, 2, [0, 2])
    """

    def __init__(self, num_runs: int) -> None:
        self._num_runs = num_runs
        self._index_M = list(range(num_runs))
        self._steps: dict[int, int] = {}

    @property
    def index_M(self) -> tuple[int, ...]:
        """Index of the run at every position of the stack; some of them may have diverged."""
        return tuple(self._index_M)

    @property
    def steps(self) -> Mapping[int, int]:
        """The update at which a run diverged, by the run's index."""
        return self._steps

    @property
    def num_left(self) -> int:
        """How many runs have not diverged."""
        return self._num_runs - len(self._steps)

    def note(self, losses_KM: Tensor, *, first: int) -> None:
        """Note the runs whose losses in a window are not finite.

        Args:
            losses_KM: of a window.
            first: number of its first update.
        """
        bad_KM = ~torch.isfinite(losses_KM)
        for position in bad_KM.any(dim=0).nonzero().flatten().tolist():
            offset = int(bad_KM[:, position].to(torch.int8).argmax())
            self._steps.setdefault(self._index_M[position], first + offset)

    def positions_to_keep(self) -> list[int] | None:
        """Return the positions that should stay in the stack; None while too few have diverged."""
        alive = [position for position, index in enumerate(self._index_M) if index not in self._steps]
        num_diverged = len(self._index_M) - len(alive)
        return None if num_diverged < max(1, SHRINK_FRACTION * len(self._index_M)) else alive

    def select(self, positions: Sequence[int]) -> None:
        """Keep only the runs at these positions."""
        self._index_M = [self._index_M[position] for position in positions]

    def saved(self) -> State:
        """Return it as a checkpoint holds it."""
        return {"runs": list(self._index_M), "diverged": [[index, step] for index, step in self._steps.items()]}

    def restore(self, saved: State) -> None:
        """Take what a checkpoint holds; the runs in the stack must be those of the checkpoint already."""
        assert saved["runs"] == self._index_M
        self._steps = dict(saved["diverged"])
