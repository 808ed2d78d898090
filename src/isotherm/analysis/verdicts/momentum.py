"""Momentum against plain SGD, below and above the kink of plain SGD."""

from __future__ import annotations

from isotherm.analysis.series import Pair, Series
from isotherm.analysis.verdicts.claim import Claim, Excess
from isotherm.analysis.verdicts.draws import (
    independent,
    interval_text,
    limits_of_kink,
    mean_over_sizes,
    shortfalls,
    widened,
)
from isotherm.analysis.verdicts.margins import metric_margin
from isotherm.analysis.verdicts.obstacles import Obstacle, obstacle
from isotherm.analysis.verdicts.remedies import more_batch_sizes
from isotherm.core.statistics import Floats, percentile_limits

_SHOWN_AT = 0.05  # the sides are told apart by a kink shown at this level


def momentum_claims(pair: Pair) -> list[Claim]:
    """Return the claims that momentum does not help below the kink, and helps above it."""
    return [_no_help_below(pair), _help_above(pair)]


def _no_help_below(pair: Pair) -> Claim:
    text = f"{pair.plain.budget}: below the kink of plain SGD momentum does not help"
    blocked = _obstacle(pair, above=False)
    if blocked is not None:
        return Claim.blocked(text, pair.plain.plan, blocked)
    gains, margin, words = _gains(pair, above=False)
    worse = "; momentum is worse there" if percentile_limits(gains)[1] < 0 else ""
    return Claim(
        text=text,
        evidence=f"{words}{worse}",
        plan=pair.plain.plan,
        holds=(Excess(draws=gains, limit=-margin), Excess(draws=-gains, limit=-margin)),
        fails=((Excess(draws=gains, limit=margin),), (Excess(draws=-gains, limit=margin),)),
    )


def _help_above(pair: Pair) -> Claim:
    text = f"{pair.plain.budget}: above the kink of plain SGD momentum helps"
    blocked = _obstacle(pair, above=True)
    if blocked is not None:
        return Claim.blocked(text, pair.plain.plan, blocked)
    gains, margin, words = _gains(pair, above=True)
    return Claim(
        text=text,
        evidence=words,
        plan=pair.plain.plan,
        holds=(Excess(draws=gains, limit=0.0),),
        fails=((Excess(draws=-gains, limit=-margin),),),
    )


def _obstacle(pair: Pair, *, above: bool) -> Obstacle | None:
    plan = pair.plain.plan
    needed = [lambda g: g.optimum if g.test_optimum is not None else None]
    found = obstacle([pair.plain, pair.heavy], needed, heights=lambda g: g.optimum, least_sizes=4)
    if found is not None:
        return found
    if pair.plain.fit is None or Excess(draws=shortfalls(pair.plain.fit), limit=0.0).p > _SHOWN_AT:
        return Obstacle(words="plain SGD shows no kink here", remedy=more_batch_sizes(plan))
    if not _sizes(pair, above=above):
        side = "above" if above else "below"
        remedy = more_batch_sizes(plan, smaller=not above, larger=above)
        return Obstacle(words=f"no batch size lies clearly {side} the kink", remedy=remedy)
    return None


def _sizes(pair: Pair, *, above: bool) -> list[int]:
    """Return the common batch sizes on one side of the kink of plain SGD, clear of its 95 % interval."""
    assert pair.plain.fit is not None
    low, high = limits_of_kink(pair.plain.fit)
    common = {g.axes.batch_size for g in pair.plain.grids} & {g.axes.batch_size for g in pair.heavy.grids}
    return sorted(size for size in common if (size >= high if above else size <= low))


def _gains(pair: Pair, *, above: bool) -> tuple[Floats, float, str]:
    """Return draws of the mean gain over the batch sizes of a side, the margin, and both in words."""
    plain, heavy = pair.plain, pair.heavy
    assert plain.test_fit is not None
    assert heavy.test_fit is not None
    sizes = _sizes(pair, above=above)
    values = [heavy.test_values(), plain.test_values()]
    means = [
        mean_over_sizes(fit, drawn, [fit.batch_sizes.index(size) for size in sizes])
        for fit, drawn in zip((heavy.test_fit, plain.test_fit), values, strict=True)
    ]
    gains = widened(plain.plan.metric_direction.sign * (means[0] - independent(means[1], seed=1)))
    margin = metric_margin(plain.plan.metric_bounds, values)
    scale, unit = plain.scale, unit_of(plain)
    words = (
        f"mean gain on the test set{at_tuned(plain)} {interval_text(scale * gains, sign=True)} {unit} over B = "
        f"{', '.join(map(str, sizes))}; margin {scale * margin:.2g} {unit}"
    )
    return gains, margin, words


def at_tuned(s: Series) -> str:
    """Return the words that follow the test metric where its learning rates were not chosen on the test set."""
    chosen_on = {"validation": "on the validation set", "train": "on the training set", "test": "by the test loss"}
    return "" if s.tuned_on_test else f", at learning rates chosen {chosen_on[s.plan.tune_on]},"


def unit_of(s: Series) -> str:
    """Return the unit in which differences of the test metric are told."""
    return "points" if s.is_percent else s.plan.metric.replace("_", " ")
