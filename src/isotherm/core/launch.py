"""What torchrun tells every process that it starts."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from isotherm.errors import UserError

TORCHRUN = "torchrun"  # the executor's name
_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """The position of this process among those that torchrun has started together.

    Args:
        rank: number of the process, from 0.
        local_rank: its number on its machine.
        num: of all processes.
        num_local: of those on this machine.
    """

    rank: int
    local_rank: int
    num: int
    num_local: int

    @classmethod
    def find(cls, environment: Mapping[str, str] | None = None) -> Self | None:
        """Return this process's position, None if torchrun has not started it.

        >>> Launch.find({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"})
        Launch(rank=3, local_rank=1, num=4, num_local=2)
        >>> Launch.find({"WORLD_SIZE": "2"})
        """
        given = os.environ if environment is None else environment
        found = [given.get(name, "") for name in _VARIABLES]
        if not all(text.isdecimal() for text in found):
            return None
        rank, local_rank, num = map(int, found)
        local = given.get("LOCAL_WORLD_SIZE", "")
        return cls(rank=rank, local_rank=local_rank, num=num, num_local=int(local) if local.isdecimal() else num)


def check_launch(executor: str | None) -> None:
    """Refuse an executor that does not suit the way in which this process was started."""
    launch = Launch.find()
    if executor == TORCHRUN and launch is None:
        raise UserError(
            "--executor torchrun shares every run among the processes that torchrun starts, and this process was "
            f"started without it: {torchrun_command(sys.argv)}"
        )
    if executor != TORCHRUN and launch is not None and launch.num > 1:
        raise UserError(
            f"torchrun has started {launch.num} processes (WORLD_SIZE={launch.num}), which would all train the same "
            "runs: add --executor torchrun to share every run among them, in Python executor='torchrun', or start "
            "isotherm without torchrun"
        )


def torchrun_command(arguments: Sequence[str]) -> str:
    """Return the command that starts the same program with two processes.

    Args:
        arguments: of this process, as in `sys.argv`.

    >>> torchrun_command(["/usr/bin/isotherm", "run", "study.toml", "--executor", "torchrun"])
    'torchrun --nproc-per-node 2 -m isotherm run study.toml --executor torchrun'
    >>> torchrun_command(["my script.py"])
    "torchrun --nproc-per-node 2 'my script.py'"
    """
    program, *others = arguments
    name = Path(program).name
    if name in ("isotherm", "__main__.py"):
        return shlex.join(["torchrun", "--nproc-per-node", "2", "-m", "isotherm", *others])
    if name.endswith(".py"):
        return shlex.join(["torchrun", "--nproc-per-node", "2", *arguments])
    return "torchrun --nproc-per-node 2 -m isotherm run STUDY --executor torchrun"


def follows(executor: str | None) -> bool:
    """Tell whether this process only computes for another, which alone prints and writes."""
    launch = Launch.find()
    return executor == TORCHRUN and launch is not None and launch.rank > 0
