"""Verdicts: the paper's claims, each computed from results and able to come out either way or to stay open."""

from isotherm.analysis.verdicts.claim import Verdict
from isotherm.analysis.verdicts.judged import Judged, judge

__all__ = ["Judged", "Verdict", "judge"]
