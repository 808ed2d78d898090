"""All claims of a study, judged together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isotherm.analysis.series import Pair, Series
from isotherm.analysis.verdicts.claim import Claim, Verdict, decided
from isotherm.analysis.verdicts.generalisation import higher_test_optimum, large_batches
from isotherm.analysis.verdicts.momentum import momentum_claims
from isotherm.analysis.verdicts.scaling import kink, proportional
from isotherm.core.budget import BudgetUnit
from isotherm.core.optimizers import has_temperature


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """The verdicts of a study, and among them the one on proportional scaling of every series; None where not asked."""

    verdicts: tuple[Verdict, ...]
    scaling: tuple[Verdict | None, ...]


def judge(series: Sequence[Series], pairs: Sequence[Pair], *, run: Sequence[str]) -> Judged:
    """Return a verdict on every claim of the paper that a study asks about: it takes at least two batch sizes.

    Args:
        series: of the study.
        pairs: of plain SGD and momentum among them.
        run: the command that runs the study as it is, word by word, for the remedies.
    """
    asked = [s for s in series if len(s.grids) > 1]
    claims: list[Claim] = []
    places: dict[int, int] = {}  # of the claims on proportional scaling
    for s in asked:
        places[id(s)] = len(claims)
        roots = [] if has_temperature(s.method) else [proportional(s, power=0.5)]
        claims += [proportional(s), *roots, kink(s)]
    for pair in pairs:
        claims += momentum_claims(pair)
    for s in asked:
        if s.budget.unit is BudgetUnit.STEPS:
            claims += [large_batches(s), higher_test_optimum(s)]
    verdicts = decided(claims, run=run)
    scaling = tuple(verdicts[places[id(s)]] if id(s) in places else None for s in series)
    return Judged(verdicts=tuple(verdicts), scaling=scaling)
