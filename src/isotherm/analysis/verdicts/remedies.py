"""What to run where a verdict stays open: words, a line of the study's file where one has to change, a command."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from isotherm.sweep.plan import SweepPlan

LEAST_SEEDS = 3  # fewer do not show how much runs differ
FIRST_SEEDS = 5  # to begin with
MOST_TIMES = 20  # more seeds than so many times those there are are not asked for
FIRST_TIMES = 4
MORE_EXTENSIONS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """What to do, and the options of `isotherm run` that do it.

    `line` is to be written into the sweep's table of the study file before.
    """

    what: str
    options: tuple[str, ...] = ()
    line: str = ""
    sweep: str = ""

    @property
    def words(self) -> str:
        """What to do, with the line to write."""
        return f'{self.what}: set {self.line} in the sweep "{self.sweep}", then' if self.line else self.what

    def command(self, run: Sequence[str]) -> str:
        """Return the command line, given the one that runs the study as it is.

        >>> Remedy(what="run 9 seeds", options=("--seeds", "9")).command(["isotherm", "run", "my study.toml"])
        "isotherm run 'my study.toml' --seeds 9"
        """
        return shlex.join([*run, *self.options])


def more_seeds(plan: SweepPlan, factor: float) -> Remedy:
    """Return the remedy of so many times as many seeds, within reason; else of a few times as many, to begin with.

    An estimate next to a margin takes any number of seeds: the command that is given is one that can be run. What a
    grid leaves open between its learning rates does not shrink with seeds: a fixed grid is refined as well.
    """
    now = len(plan.seeds)
    if factor <= MOST_TIMES:
        wanted, why = math.ceil(now * max(1.0, factor)), "80 % power, going by these results"
    else:
        wanted, why = FIRST_TIMES * now, f"to begin with: {_beside_margin(now * factor)}"
    wanted = max(wanted, now + 1)
    what = f"run {wanted} seeds instead of {now} ({why})"
    if plan.resolution == "paper":
        return _seeds(wanted, f"{what} and refine the grids", "--resolution", "adaptive")
    return _seeds(wanted, what)


def first_seeds(plan: SweepPlan) -> Remedy:
    """Return the remedy where there are too few seeds to tell anything."""
    return _seeds(FIRST_SEEDS, f"run {FIRST_SEEDS} seeds instead of {len(plan.seeds)}")


def finish() -> Remedy:
    """Return the remedy for missing runs."""
    return Remedy(what="finish its runs")


def wider_grids(plan: SweepPlan) -> Remedy:
    """Return the remedy for optima at the ends of their grids."""
    allowed = plan.max_extensions + MORE_EXTENSIONS
    return Remedy(what="let the grids of learning rates grow further", options=("--max-extensions", str(allowed)))


def finer_grids() -> Remedy:
    """Return the remedy for optima between learning rates that are too far apart."""
    return Remedy(what="refine the grids", options=("--resolution", "adaptive"))


def more_batch_sizes(plan: SweepPlan, *, smaller: bool = True, larger: bool = True) -> Remedy:
    """Return the remedy of two more batch sizes at either end, as far as the training set allows."""
    sizes = sorted(plan.batch_sizes)
    below = [sizes[0] // 2**k for k in (2, 1)] if smaller else []
    above = [sizes[-1] * 2**k for k in (1, 2)] if larger else []
    wanted = [size for size in (*below, *sizes, *above) if 1 <= size <= plan.num_train]
    return Remedy(
        what="add batch sizes", line=f"batch_sizes = [{', '.join(map(str, _rising(wanted)))}]", sweep=plan.name
    )


def _beside_margin(wanted: float) -> str:
    """Return what stands in the way of a decision where that takes so many seeds.

    >>> _beside_margin(7125), _beside_margin(math.inf)
    ('the estimate lies next to a margin, and 80 % power would take some 7,100', 'the estimate lies on a margin')
    """
    if not wanted < 1e6:
        return "the estimate lies on a margin"
    digits = 2 - len(str(math.ceil(wanted)))
    return f"the estimate lies next to a margin, and 80 % power would take some {round(math.ceil(wanted), digits):,}"


def _rising(sizes: Iterable[int]) -> list[int]:
    return sorted(set(sizes))


def _seeds(wanted: int, what: str, *more: str) -> Remedy:
    return Remedy(what=what, options=("--seeds", str(wanted), *more))
