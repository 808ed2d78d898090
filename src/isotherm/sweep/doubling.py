"""When a budget that doubles is large enough."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

from isotherm.core.budget import Until
from isotherm.core.records import Direction
from isotherm.sweep.protocol import Estimate


class StopReason(enum.StrEnum):
    """Why no larger budget is run."""

    TARGET = "the target is met"
    NO_GAIN = "doubling gains no more than the error"
    LARGEST = "the largest budget allowed still improved"
    NO_OPTIMUM = "no learning rate is stable"


def stop_reason(until: Until, estimates: Sequence[Estimate | None], direction: Direction) -> StopReason | None:
    """Return why the last of these budgets is the last one; None if it is to be doubled.

    A budget improves on the best before it if it is better by more than the standard error of the difference; single
    runs have none, and any gain counts.

    Args:
        until: when to stop.
        estimates: what is tuned at the optimum of every budget so far, rising; None where no learning rate is stable.
        direction: which way it improves.
    """
    last = estimates[-1]
    if last is None or not math.isfinite(last.mean):
        return StopReason.NO_OPTIMUM
    if until.target is not None and direction.sign * (last.mean - until.target) >= 0:
        return StopReason.TARGET
    gained = [_improves(estimates[:k], estimates[k], direction) for k in range(1, len(estimates))]
    if len(gained) >= until.patience and not any(gained[-until.patience :]):
        return StopReason.NO_GAIN
    return StopReason.LARGEST if len(estimates) == len(until.budgets) else None


def _improves(before: Sequence[Estimate | None], new: Estimate | None, direction: Direction) -> bool:
    known = [one for one in before if one is not None and math.isfinite(one.mean)]
    if new is None or not known:
        return new is not None
    best = max(known, key=lambda one: direction.sign * one.mean)
    errors = [error for error in (new.standard_error, best.standard_error) if math.isfinite(error)]
    return direction.sign * (new.mean - best.mean) > math.hypot(*errors)
