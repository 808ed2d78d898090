"""Parts of a study that know nothing of each other while they train, as indexed jobs of Kubernetes or plain ssh do it.

A run belongs to the part that its key says, so parts are disjoint and complete whatever round a study is in, and
whoever asks. A part runs its share of the present round and ends: the next round depends on the results of all. So the
parts' stores are merged, and the parts run again, knowing the merged results, until none has anything left to do. A
part that begins from older results than the others repeats nothing that is not its own; at worst it ends early.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from isotherm.core.records import Outcome, RunResult, RunSpec
from isotherm.errors import UserError
from isotherm.running.store import Store
from isotherm.sweep.rounds import Round


@dataclass(frozen=True, slots=True)
class Part:
    """The share of one of several processes in the runs of a study.

    Args:
        number: of this part, from 1.
        count: of the parts.
    """

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise UserError(f"part {self} does not exist; number the parts from 1, e.g. 1/{max(1, self.count)}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the part that a user names.

        >>> Part.parse("2/8")
        Part(number=2, count=8)
        """
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip())
        if found is None:
            raise UserError(f"part {text!r} is not of the form i/n; give e.g. 2/8 for the second of eight parts")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def has(self, key: str) -> bool:
        """Tell whether a run belongs to this part."""
        return int(key[:16], 16) % self.count == self.number - 1

    def of_round(self, round_: Round) -> Round | None:
        """Return this part's share of a round; None if it has none."""
        specs = tuple(spec for spec in round_.specs if self.has(spec.key))
        return dataclasses.replace(round_, specs=specs) if specs else None


def runs_of(stores: Sequence[str | Path]) -> Iterator[tuple[RunSpec, RunResult]]:
    """Yield the runs that stores hold, with their results; failed runs are to be tried again and left out."""
    for path in stores:
        with Store.read(path) as store:
            yield from ((r.spec, r.result) for r in store.runs() if r.result.outcome is not Outcome.FAILED)
