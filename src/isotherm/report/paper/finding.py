"""What was found for an object of the paper at one scale, computed once for terminal, files and pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isotherm.analysis.analysis import Analysis, analyse
from isotherm.analysis.verdicts import Verdict
from isotherm.studies.paper.definition import PaperObject, Scale
from isotherm.studies.paper.judged import command, differences, judge, runs_words, state_words
from isotherm.studies.paper.shipped import Record
from isotherm.sweep.protocol import Edge
from isotherm.sweep.results import StudyResults

UNFINISHED = "…"  # after numbers of a grid that lacks runs


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Finding:
    """An object at one scale: its analysis, None where nothing is trained, and the verdicts on its claims.

    `origin` says where the rows are.
    """

    wanted: PaperObject
    scale: Scale
    analysis: Analysis | None
    verdicts: tuple[Verdict, ...]
    origin: str = ""

    @property
    def num_words(self) -> str:
        """How many runs there are."""
        return "nothing is trained" if self.analysis is None else runs_words(self.analysis.results)

    @property
    def state(self) -> str:
        """One line: scale, runs and claims."""
        return f"{self.scale}: {self.num_words}; {state_words(self.verdicts)}"

    @property
    def caption(self) -> str:
        """What was trained and how it differs from the paper, and how many runs the numbers come from."""
        note = self.wanted.scales[self.scale].note
        if self.analysis is None:
            return note
        note = " ".join(filter(None, (note, differences(self.wanted, self.scale, self.analysis.results))))
        plans = self.analysis.plan.sweeps
        seeds = sorted({len(plan.seeds) for plan in plans})
        kept = sorted({plan.num_kept for plan in plans})
        noun = "seed" if seeds == [1] else "seeds"
        best = "" if kept == seeds else f"best {_either(kept)} of "
        chosen = f"{best}n = {_either(seeds)} {noun}"
        grids = [tuned for sweep in self.analysis.sweeps for tuned in sweep.grids if tuned.test is not None]
        missing = any(tuned.edge is Edge.INCOMPLETE for tuned in grids)
        dots = f" {UNFINISHED}: runs of the row are missing, and its optimum may move." if missing else ""
        return (
            f"Scale {self.scale}: {note[0].lower()}{note[1:]} Mean ± standard deviation, {chosen} per learning rate; "
            f"{self.num_words}.{dots}"
        )


def find(
    wanted: PaperObject,
    scale: Scale,
    results: StudyResults | None,
    *,
    origin: str = "",
    run: Sequence[str] | None = None,
) -> Finding:
    """Return what results say of an object; None are needed for one that trains nothing."""
    words = command(wanted, scale) if run is None else run
    analysis = None if results is None else analyse(results, run=words)
    return Finding(
        wanted=wanted,
        scale=scale,
        analysis=analysis,
        verdicts=tuple(judge(wanted, analysis, run=words)),
        origin=origin,
    )


def find_record(record: Record) -> Finding:
    """Return what the rows of a record say."""
    return find(record.wanted, record.scale, record.results, origin=origin_words(record))


def origin_words(record: Record) -> str:
    """Return where the rows of a record are, and which commits trained them."""
    commits = f", commit {', '.join(record.commits)}" if record.commits else ""
    return f"{record.path}{commits}"


def _either(numbers: Sequence[int]) -> str:
    return " or ".join(map(str, numbers))
