"""Finding the series that a claim is about, and draws from the mean of a few runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

from isotherm.analysis.analysis import Analysis
from isotherm.analysis.family import FamilyFit
from isotherm.analysis.series import Pair, Series, pairs_of
from isotherm.analysis.verdicts.claim import Claim, Excess
from isotherm.analysis.verdicts.draws import interval_text
from isotherm.analysis.verdicts.margins import TOLERATED_RISE, metric_margin
from isotherm.analysis.verdicts.obstacles import Obstacle
from isotherm.analysis.verdicts.remedies import finish, wider_grids
from isotherm.core.statistics import Floats, percentile_limits
from isotherm.sweep.plan import SweepPlan

Test = Callable[[str, Analysis], Claim]
HALF_STEP = 0.5  # octaves; the paper's learning rates stand a factor of two apart, so it knows an optimum no better
NUM_DRAWS = 4000


def series_named(analysis: Analysis, name: str, momentum: float = 0.9) -> list[Series]:
    """Return the series of the sweeps of a name and momentum, in the plan's order."""
    return [s for sweep in analysis.sweeps if sweep.plan.name == name for s in sweep.series if s.momentum == momentum]


def plan_named(analysis: Analysis, name: str, momentum: float = 0.9) -> SweepPlan:
    """Return the plan of a name and momentum."""
    return next(p for p in analysis.plan.sweeps if p.name == name and momentum in p.momenta)


def pair_named(analysis: Analysis, name: str) -> Pair | None:
    """Return plain SGD and momentum of a name; None where one of them has no law yet."""
    return next(iter(pairs_of([*series_named(analysis, name, 0.0), *series_named(analysis, name)])), None)


def unfinished(text: str, plan: SweepPlan) -> Claim:
    """Return a claim about what has no optimum yet."""
    return Claim.blocked(text, plan, Obstacle(words="too few grids have an optimum yet", remedy=finish()))


def without_optimum(text: str, plan: SweepPlan) -> Claim:
    """Return a claim about grids of which one has no stable optimum."""
    return Claim.blocked(text, plan, Obstacle(words="a grid has no stable optimum", remedy=wider_grids(plan)))


def fit_of(s: Series, quantity: str) -> FamilyFit | None:
    """Return the fit of the test metric or of the training objective."""
    return s.test_fit if quantity == "test" else s.train_fit


def losses_of(s: Series, fit: FamilyFit, quantity: str) -> Floats:
    """Return draws of what grows where training gets worse, shape (num_draws, num_grids)."""
    return np.asarray(-s.plan.metric_direction.sign * fit.heights if quantity == "test" else fit.heights)


def margin_of(s: Series, fits: Sequence[FamilyFit], quantity: str) -> float:
    """Return the difference that is too small to matter; of the training objective, a tenth of it."""
    heights = [fit.heights for fit in fits]
    if quantity == "test":
        return metric_margin(s.plan.metric_bounds, heights)
    return TOLERATED_RISE * float(np.median([np.median(np.abs(drawn)) for drawn in heights]))


def scale_of(s: Series, quantity: str) -> float:
    """Return the factor by which a quantity is shown."""
    return s.scale if quantity == "test" else 1.0


def within(draws: Floats, margin: float) -> tuple[Excess, Excess]:
    """Return what shows that a difference is smaller than a margin both ways."""
    return Excess(draws=draws, limit=-margin), Excess(draws=-draws, limit=-margin)


def beyond(draws: Floats, margin: float, *, num_tried: int = 1) -> tuple[tuple[Excess], tuple[Excess]]:
    """Return what shows that a difference is larger than a margin, one way or the other."""
    tried = 2 * num_tried
    return (
        (Excess(draws=draws, limit=margin, num_tried=tried),),
        (Excess(draws=-draws, limit=margin, num_tried=tried),),
    )


def interval_words(draws: Floats, *, sign: bool = False) -> str:
    """Return median and 95 % interval, with the digits that its width supports.

    >>> interval_words(np.array([1.0, 1.5, 2.0])), interval_words(np.array([-100.0, 20.0, 500.0]), sign=True)
    ('1.50 [1.00, 2.00]', '+20 [-100, +500]')
    """
    low, high = percentile_limits(draws)
    width = max(high - low, 1e-12)
    return interval_text(draws, digits=min(6, max(0, 2 - math.ceil(math.log10(width)))), sign=sign)


def t_draws(values: Sequence[float]) -> Floats:
    """Return draws of the mean that a few values estimate: Student's t about theirs.

    >>> draws = t_draws([1.0, 2.0, 3.0])
    >>> round(float(np.median(draws)), 6), len(draws)
    (2.0, 4000)
    """
    mean = math.fsum(values) / len(values)
    spread = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    levels = (np.arange(NUM_DRAWS) + 0.5) / NUM_DRAWS
    return np.asarray(mean + max(spread, 1e-12) * stats.t.ppf(levels, len(values) - 1))
