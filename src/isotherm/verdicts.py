"""Verdicts: the paper's claims, each computed from results and able to come out the other way."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A claim, whether these results support it, and the numbers that say so."""

    claim: str
    holds: bool
    evidence: str
