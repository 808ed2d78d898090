"""How the optimal learning rate follows the batch size: proportionality, and the kink at which it ends."""

from __future__ import annotations

import itertools

import numpy as np

from isotherm.analysis.family import FamilyFit
from isotherm.analysis.regimes import Regimes
from isotherm.analysis.series import Series
from isotherm.analysis.verdicts.claim import Claim, Excess
from isotherm.analysis.verdicts.draws import interval_text, limits_of_kink, shortfalls
from isotherm.analysis.verdicts.margins import LEVEL, NO_KINK, PROPORTIONAL
from isotherm.analysis.verdicts.obstacles import obstacle


def proportional(s: Series) -> Claim:
    """Return the claim that the optimum is proportional to the batch size, up to the kink."""
    text = f"{s.label}: at small batches the optimal effective learning rate is proportional to the batch size"
    blocked = obstacle([s], [lambda g: g.optimum])
    if blocked is not None or s.fit is None:
        return Claim.blocked(text, s.plan, blocked)
    low, high = PROPORTIONAL
    slopes, departures = s.fit.slopes, _departures(s.fit)
    departs = any(one.p <= LEVEL for one in departures)
    return Claim(
        text=text,
        evidence="; ".join([_law(s.fit), *([_temperatures(s, s.fit)] if departs else [])]),
        plan=s.plan,
        holds=() if departs else (Excess(draws=slopes, limit=low), Excess(draws=-slopes, limit=-high)),
        fails=(
            (Excess(draws=-slopes, limit=-low, num_tried=2),),
            (Excess(draws=slopes, limit=high, num_tried=2),),
            *((one,) for one in departures),
        ),
    )


def kink(s: Series) -> Claim:
    """Return the claim that the rise ends at a kink."""
    text = f"{s.label}: proportionality ends at a kink, above which the optimal learning rate no longer rises"
    blocked = obstacle([s], [lambda g: g.optimum], least_sizes=4)
    if blocked is not None or s.fit is None:
        return Claim.blocked(text, s.plan, blocked)
    rises = Excess(draws=s.fit.slopes, limit=0.0)
    short = shortfalls(s.fit)
    below = f"the last optimum is {interval_text(short, digits=1)} octaves below the line"
    return Claim(
        text=text,
        evidence=f"{_kink_words(s.fit, s.law)}; {below}",
        plan=s.plan,
        holds=(rises, Excess(draws=short, limit=0.0)),
        fails=((rises, Excess(draws=-short, limit=-NO_KINK)),),
    )


def _law(fit: FamilyFit) -> str:
    low, high = PROPORTIONAL
    return f"ε_eff* ∝ B^{interval_text(fit.slopes)}, proportional within [{low:g}, {high:g}]"


def _kink_words(fit: FamilyFit, law: Regimes | None) -> str:
    low, high = limits_of_kink(fit)
    if not np.isfinite(high):
        part = np.mean(~np.isnan(fit.kinks))
        return f"kink not seen below B = {fit.batch_sizes[-1]} ({part:.0%} of draws show one)"
    seen = law.kink if law is not None else None
    estimate = 2.0 ** float(np.nanmedian(fit.kinks)) if seen is None else seen.estimate
    return f"kink at B ≈ {estimate:.0f} [{low:.0f}, {high:.0f}]"


def _departures(fit: FamilyFit) -> list[Excess]:
    """Return how far two optima below the kink are from one temperature: slopes between them beyond the margin.

    A slope of 1 through all of them can be an accident.
    """
    x = np.log2(fit.batch_sizes)
    below = [k for k, size in enumerate(fit.batch_sizes) if size <= limits_of_kink(fit)[0]]
    pairs = list(itertools.combinations(below, 2)) if len(below) > 2 else []
    found = []
    for a, b in pairs:
        slopes = (fit.optima[:, b] - fit.optima[:, a]) / (x[b] - x[a])
        tried = 4 * len(pairs)
        found.append(Excess(draws=-slopes, limit=-PROPORTIONAL[0], num_tried=tried))
        found.append(Excess(draws=slopes, limit=PROPORTIONAL[1], num_tried=tried))
    return found


def _temperatures(s: Series, fit: FamilyFit) -> str:
    below = [g for g in s.grids if g.axes.batch_size <= limits_of_kink(fit)[0]]
    found = ", ".join(f"{g.axes.batch_size}: {g.temperature:.2g}" for g in below)
    return f"no one temperature fits all batch sizes: ε_eff*/B = {found}"
