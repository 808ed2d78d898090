"""What torchrun tells every process that it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from isotherm.errors import UserError

TORCHRUN = "torchrun"  # the executor's name
_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """The place of this process among those that torchrun has started together.

    Args:
        rank: number of the process, from 0.
        local_rank: its number on its machine.
        num: of all processes.
    """

    rank: int
    local_rank: int
    num: int

    @classmethod
    def find(cls, environment: Mapping[str, str] | None = None) -> Self | None:
        """Return this process's place, None if torchrun has not started it.

        >>> Launch.find({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"})
        Launch(rank=1, local_rank=1, num=2)
        >>> Launch.find({"WORLD_SIZE": "2"})
        """
        found = [(os.environ if environment is None else environment).get(name, "") for name in _VARIABLES]
        if not all(text.isdecimal() for text in found):
            return None
        rank, local_rank, num = map(int, found)
        return cls(rank=rank, local_rank=local_rank, num=num)


def check_launch(executor: str | None) -> None:
    """Refuse an executor that does not suit the way in which this process was started."""
    launch = Launch.find()
    if executor == TORCHRUN and launch is None:
        raise UserError(
            "--executor torchrun computes one run with the processes that torchrun starts, and this one was started "
            "without it: torchrun --nproc-per-node N -m isotherm run ... --executor torchrun"
        )
    if executor != TORCHRUN and launch is not None and launch.num > 1:
        raise UserError(
            f"torchrun has started {launch.num} processes (WORLD_SIZE={launch.num}), which would all train the same "
            "runs: add --executor torchrun to share every run among them, in Python executor='torchrun', or start "
            "isotherm without torchrun"
        )


def follows(executor: str | None) -> bool:
    """Tell whether this process only computes for another, which alone prints and writes."""
    launch = Launch.find()
    return executor == TORCHRUN and launch is not None and launch.rank > 0
