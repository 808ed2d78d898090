"""Claims and verdicts: two probabilities per claim, one correction for all claims of a study.

A claim is tested both ways: `p_holds` is the probability that it is false, `p_fails` that it is true by more than the
margin, as far as the results tell. At most one of the two can be a false alarm, so Holm's correction over claims keeps
the chance of any wrong verdict in a study at 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy import special

from isotherm.analysis.verdicts.margins import LEVEL, POWER
from isotherm.analysis.verdicts.obstacles import Obstacle
from isotherm.analysis.verdicts.remedies import Remedy, more_seeds, wider_grids
from isotherm.core.one_screen import one_screen
from isotherm.core.statistics import Floats
from isotherm.sweep.plan import SweepPlan

MARKS = {True: "✓", False: "✗", None: "?"}
STATES = {True: "holds", False: "does not hold", None: "not determined"}
TAIL, TAIL_FREEDOM = 0.01, 8  # fewer draws do not show the tail of a probability


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A claim, whether these results support it, and the numbers that say so.

    `holds` is None where the results do not tell; `remedy` then says which runs would, `command` runs them. `p_holds`
    is the probability that the claim is false, `p_fails` that it is true by more than its margin, as far as these
    results tell; None where it could not be tested. `p_corrected` is the smaller of the two after Holm's correction
    over `num_verdicts_corrected` verdicts.
    """

    claim: str
    holds: bool | None
    evidence: str
    remedy: str = ""
    command: str = ""
    p_holds: float | None = None
    p_fails: float | None = None
    p_corrected: float | None = None
    num_verdicts_corrected: int = 0

    @property
    def state(self) -> str:
        """The verdict in words."""
        return STATES[self.holds]

    @property
    def mark(self) -> str:
        """The verdict as a sign, for those who cannot tell its colour."""
        return MARKS[self.holds]

    @property
    def p_words(self) -> str:
        """The corrected probability, and the correction; empty where there was no test."""
        if self.p_corrected is None:
            return ""
        verdicts = "one verdict" if self.num_verdicts_corrected == 1 else f"{self.num_verdicts_corrected} verdicts"
        return f"{p_text(self.p_corrected)}; Holm over {verdicts}"

    @property
    def remedy_words(self) -> str:
        """What to run where the verdict is open, with the command; else empty."""
        return f"{self.remedy}: {self.command}" if self.command else self.remedy

    def __str__(self) -> str:
        remedy = f"; to decide it, {self.remedy_words}" if self.remedy else ""
        p = f"; {self.p_words}" if self.p_words else ""
        return f"{self.state}: {self.claim} ({self.evidence}{p}{remedy})"

    def __repr__(self) -> str:
        return one_screen([f"{type(self).__name__}: {self}"])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Excess:
    """A quantity that is to exceed a limit, as draws, shape (num_draws,).

    `num_tried` is how many of its kind it was picked from.
    """

    draws: Floats
    limit: float
    num_tried: int = 1

    @property
    def p(self) -> float:
        """The probability that it does not, corrected for picking it."""
        return min(1.0, self.num_tried * tail_probability(self.draws, self.limit))

    def seeds_factor(self, level: float) -> float:
        """Return how many times as many seeds would show it at this level; infinite where it does not seem true."""
        distance = (float(np.mean(self.draws)) - self.limit) / max(float(np.std(self.draws)), 1e-12)
        needed = float(special.ndtri(POWER) - special.ndtri(level / self.num_tried))
        return (needed / distance) ** 2 if distance > 0 else math.inf


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Claim:
    """A claim about results of a plan, before the correction.

    It holds where everything in `holds` is shown, never if that is empty, and fails where everything in one of `fails`
    is shown. `obstacle` is what has to be removed before it can be tested.
    """

    text: str
    evidence: str
    plan: SweepPlan
    holds: tuple[Excess, ...] = ()
    fails: tuple[tuple[Excess, ...], ...] = ()
    obstacle: Remedy | None = None

    @classmethod
    def blocked(cls, text: str, plan: SweepPlan, found: Obstacle | None) -> Self:
        """Return a claim that cannot be tested, for a reason that was found, or because nothing could be fitted."""
        found = found or Obstacle(words="no curve could be fitted to these results", remedy=wider_grids(plan))
        return cls(text=text, evidence=f"cannot be judged: {found.words}", plan=plan, obstacle=found.remedy)

    @property
    def p_holds(self) -> float | None:
        """The probability that the claim is false."""
        return None if self.obstacle else max((one.p for one in self.holds), default=1.0)

    @property
    def p_fails(self) -> float | None:
        """The probability that the claim is true by more than its margin."""
        return None if self.obstacle else min(max(one.p for one in parts) for parts in self.fails)

    @property
    def p(self) -> float | None:
        """The smaller of the two."""
        return None if self.p_holds is None or self.p_fails is None else min(self.p_holds, self.p_fails)

    def remedy(self, level: float) -> Remedy:
        """Return what to run where the claim stays open at this level."""
        if self.obstacle is not None:
            return self.obstacle
        ways = [parts for parts in (self.holds, *self.fails) if parts]
        return more_seeds(self.plan, min(max(one.seeds_factor(level) for one in parts) for parts in ways))


def decided(claims: Sequence[Claim], *, run: Sequence[str]) -> list[Verdict]:
    """Return the verdicts on all claims of a study, by Holm's correction; claims that were not tested do not count.

    Args:
        claims: of the study.
        run: the command that runs the study as it is, word by word.
    """
    tested = [claim.p for claim in claims if claim.p is not None]
    corrected = iter(holm(tested))
    return [_verdict(claim, None if claim.p is None else next(corrected), len(tested), run) for claim in claims]


def tail_probability(draws: Floats, limit: float) -> float:
    """Return the probability of a value up to a limit: the part of draws there, below 1 % continued by a heavy tail.

    The tail is Student's with 8 degrees of freedom through median and 1 % quantile of the draws.

    >>> draws = special.ndtri(np.linspace(0.0005, 0.9995, 1000))
    >>> round(tail_probability(draws, -1.96), 3), 1e-6 < tail_probability(draws, -5.0) < 1e-3
    (0.025, True)
    """
    part = float(np.mean(draws <= limit))
    if part >= TAIL:
        return part
    middle, low = float(np.median(draws)), float(np.quantile(draws, TAIL))
    distance = -special.stdtrit(TAIL_FREEDOM, TAIL) * (middle - limit) / max(middle - low, 1e-300)
    return min(TAIL, max(float(special.stdtr(TAIL_FREEDOM, -distance)), 1e-12))


def holm(probabilities: Sequence[float]) -> list[float]:
    """Return probabilities after Holm's correction, in their order.

    >>> [round(p, 2) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(probabilities, kind="stable")
    factors = len(order) - np.arange(len(order))
    corrected = np.minimum(1.0, np.maximum.accumulate(np.asarray(probabilities)[order] * factors))
    return [float(corrected[position]) for position in np.argsort(order, kind="stable")]


def p_text(p: float) -> str:
    """Return a probability in words.

    >>> p_text(0.0004), p_text(0.0312), p_text(0.55)
    ('p < 0.001', 'p = 0.031', 'p = 0.55')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def _verdict(claim: Claim, corrected: float | None, num_tested: int, run: Sequence[str]) -> Verdict:
    holds = None
    if corrected is not None and corrected <= LEVEL:
        assert claim.p_holds is not None
        assert claim.p_fails is not None
        holds = claim.p_holds < claim.p_fails
    remedy = claim.remedy(LEVEL / max(1, num_tested)) if holds is None else None
    return Verdict(
        claim=claim.text,
        holds=holds,
        evidence=claim.evidence,
        remedy="" if remedy is None else remedy.words,
        command="" if remedy is None else remedy.command(run),
        p_holds=claim.p_holds,
        p_fails=claim.p_fails,
        p_corrected=corrected,
        num_verdicts_corrected=0 if corrected is None else num_tested,
    )
