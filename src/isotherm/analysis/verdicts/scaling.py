"""How the optimal learning rate follows the batch size: proportionality, and the kink at which it ends."""

from __future__ import annotations

import itertools

import numpy as np

from isotherm.analysis.family import FamilyFit
from isotherm.analysis.regimes import Regimes
from isotherm.analysis.series import Series
from isotherm.analysis.verdicts.claim import Claim, Excess
from isotherm.analysis.verdicts.draws import interval_text, limits_of_kink, shortfalls
from isotherm.analysis.verdicts.margins import LEVEL, NO_KINK, PROPORTIONAL, ROOT
from isotherm.analysis.verdicts.obstacles import obstacle
from isotherm.core.optimizers import has_temperature

# Powers of the batch size to which the optimum may be proportional, and the slopes that count as such.
_LIMITS: dict[float, tuple[float, float]] = {1.0: PROPORTIONAL, 0.5: ROOT}


def proportional(s: Series, *, power: float = 1.0) -> Claim:
    """Return the claim that the optimum is proportional to the batch size, or to its square root, up to the kink."""
    rate = "effective learning rate" if has_temperature(s.method) else "learning rate"
    what = "the batch size" if power == 1 else "the square root of the batch size"
    text = f"{s.label}: at small batches the optimal {rate} is proportional to {what}"
    blocked = obstacle([s], [lambda g: g.optimum])
    if blocked is not None or s.fit is None:
        return Claim.blocked(text, s.plan, blocked)
    low, high = limits = _LIMITS[power]
    slopes, departures = s.fit.slopes, _departures(s.fit, limits)
    departs = any(one.p <= LEVEL for one in departures)
    return Claim(
        text=text,
        evidence="; ".join([_law(s, s.fit, limits), *([_ratios(s, s.fit, power)] if departs else [])]),
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
    rise = "proportionality" if has_temperature(s.method) else "the rise"
    text = f"{s.label}: {rise} ends at a kink, above which the optimal learning rate no longer rises"
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


def _law(s: Series, fit: FamilyFit, limits: tuple[float, float]) -> str:
    low, high = limits
    return f"{_symbol(s)} ∝ B^{interval_text(fit.slopes)}, proportional within [{low:g}, {high:g}]"


def _symbol(s: Series) -> str:
    return "ε_eff*" if has_temperature(s.method) else "ε*"


def _kink_words(fit: FamilyFit, law: Regimes | None) -> str:
    low, high = limits_of_kink(fit)
    if not np.isfinite(high):
        part = np.mean(~np.isnan(fit.kinks))
        return f"kink not seen below B = {fit.batch_sizes[-1]} ({part:.0%} of draws show one)"
    seen = law.kink if law is not None else None
    estimate = 2.0 ** float(np.nanmedian(fit.kinks)) if seen is None else seen.estimate
    return f"kink at B ≈ {estimate:.0f} [{low:.0f}, {high:.0f}]"


def _departures(fit: FamilyFit, limits: tuple[float, float]) -> list[Excess]:
    """Return how far two optima below the kink are from the law: slopes between them beyond the margin.

    The right slope through all of them can be an accident.
    """
    x = np.log2(fit.batch_sizes)
    below = [k for k, size in enumerate(fit.batch_sizes) if size <= limits_of_kink(fit)[0]]
    pairs = list(itertools.combinations(below, 2)) if len(below) > 2 else []
    found = []
    for a, b in pairs:
        slopes = (fit.optima[:, b] - fit.optima[:, a]) / (x[b] - x[a])
        tried = 4 * len(pairs)
        found.append(Excess(draws=-slopes, limit=-limits[0], num_tried=tried))
        found.append(Excess(draws=slopes, limit=limits[1], num_tried=tried))
    return found


def _ratios(s: Series, fit: FamilyFit, power: float) -> str:
    below = [g for g in s.grids if g.axes.batch_size <= limits_of_kink(fit)[0]]
    if not has_temperature(s.method):
        ratio = f"{_symbol(s)}/{'B' if power == 1 else '√B'}"
        values = ", ".join(f"{g.axes.batch_size}: {g.rate_over(power):.2g}" for g in below)
        return f"no one ratio fits all batch sizes: {ratio} = {values}"
    found = ", ".join(f"{g.axes.batch_size}: {g.temperature:.2g}" for g in below)
    return f"no one temperature fits all batch sizes: ε_eff*/B = {found}"
