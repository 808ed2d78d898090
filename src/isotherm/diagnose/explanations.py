"""What the short runs leave open, and what would help: one sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from isotherm.core.statistics import Interval
from isotherm.diagnose.boundary import SGD
from isotherm.diagnose.diagnosis import Isotherm, ShortGrid, Stability

# A best learning rate known only to within more than this factor, from one end to the other, is not known.
WIDEST = 64.0

NOTHING_LEARNED = (
    "anything learned: no short run has a lower held-out loss than the best constant output, so no learning rate is "
    "better than another; check the labels and inputs, or give a longer training"
)


def explain_stability(stability: Sequence[Stability]) -> Iterator[str]:
    """Yield why limits of stability were not found."""
    for stable in stability:
        if stable.limit is None:
            name = "plain SGD" if stable.momentum == SGD else f"momentum {stable.momentum:g}"
            what = "no run failed" if not any(stable.num_failed) else "no learning rate made progress in all runs"
            yield (
                f"the largest stable learning rate of {name}: {what} between {stable.rates[0]:.3g} and "
                f"{stable.rates[-1]:.3g}; give more minutes"
            )


def explain_grids(
    grids: Sequence[ShortGrid], *, epochs_of_longest: float, longest_part: float, intended: str
) -> Iterator[str]:
    """Yield what short grids do not show."""
    longest = max((grid.num_steps * grid.batch_size for grid in grids), default=0)
    for grid in grids:
        if grid.optimum is None and grid.num_steps * grid.batch_size >= 0.9 * longest:
            yield (
                f"the optimum at B = {grid.batch_size} after {grid.num_steps:,} updates: it lies at an end of "
                f"{grid.rates[0]:.3g} .. {grid.rates[-1]:.3g}; give more minutes"
            )
    if epochs_of_longest < 0.99 and longest_part < 0.2:  # updates are whole
        yield (
            f"a whole epoch: the longest short runs see {100 * epochs_of_longest:.2g} % of the training set, and the "
            f"best learning rate may move until {intended}; give more minutes"
        )


def explain_law(
    isotherm: Isotherm, rate: Interval | None, grids: Sequence[ShortGrid], *, intended: str
) -> Iterator[str]:
    """Yield what is not known about the best learning rate of the intended training."""
    if isotherm.temperature is None or rate is None:
        if all(grid.optimum is None for grid in grids):
            yield "the temperature: no batch size has an optimum within the learning rates that were tried"
        else:
            yield (
                "the temperature: every optimum lies at the limit of stability, so even the smallest batch is "
                "curvature dominated; try smaller batch_sizes"
            )
        return
    if len(isotherm.batch_sizes) == 1:
        yield (
            f"whether the optima lie on one isotherm: only B = {isotherm.batch_sizes[0]} lies below the limit of "
            "stability; try smaller batch_sizes"
        )
    if isotherm.exponent is None and not isotherm.is_plateau:
        yield (
            "how the best learning rate moves with the length: there was time for one length only, "
            f"{isotherm.longest_part:.2g} of {intended}; give more minutes"
        )
    if not is_known(isotherm, rate):
        yield (
            f"the best learning rate for {intended}: somewhere between {rate.low:.3g} and {rate.high:.3g} at "
            f"B = {isotherm.at_batch_size:.0f}; give more minutes"
        )


def is_known(isotherm: Isotherm, rate: Interval) -> bool:
    """Tell whether the best learning rate is known well enough to recommend it; on a plateau any will do."""
    return isotherm.is_plateau or rate.high <= WIDEST * rate.low
