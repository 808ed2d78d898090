"""Short grids at several batch sizes and lengths: where the judged quantity is best, and how that moves.

The shortest runs find the learning rate from afar; every further length is twice as long, and its grid is centred where
the law of the shorter ones puts the optimum. Lengths are added up to half of the intended training, as time and cost
permit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from isotherm.core.rates import tidy
from isotherm.core.statistics import Floats
from isotherm.diagnose.curves import Curve, common_peaks, curve, grouped
from isotherm.diagnose.diagnosis import ShortGrid
from isotherm.diagnose.fits import optimum
from isotherm.diagnose.law import fitted_peak
from isotherm.diagnose.pace import Pace
from isotherm.diagnose.short_runs import Clock, ShortGridSpec, ShortRuns

# Learning rates of a grid around its expected optimum, in octaves.
AROUND = (-2, -1, 0, 1, 2)
NUM_COARSE = 5
COARSE_SEEDS, NUM_SEEDS, MOST_SEEDS = 2, 4, 8
# Rounds that may extend a grid beyond an edge.
MORE_LOOKS = 3
# The fewest updates that make a short run: the schedule has twenty parts.
FEWEST_STEPS = 20
# The longest short runs, as a part of the intended training, and the number of lengths if there is time.
LONGEST_PART, NUM_LENGTHS = 0.5, 3


class GridSearch:
    """A grid of learning rates at one batch size and length, extended where its optimum lies at an edge.

    Args:
        runs: trains the runs.
        spec: batch size, momentum, updates, first learning rates and seeds.
    """

    def __init__(self, runs: ShortRuns, spec: ShortGridSpec) -> None:
        self._runs = runs
        self.spec = replace(spec, rates=_distinct(spec.rates))

    def further(self) -> ShortGridSpec | None:
        """Return runs beyond an edge if the best value is there, or None."""
        means, rates = self._scores().mean(axis=1), self.spec.rates
        tied = np.flatnonzero(means >= means.max())
        best = int(tied[len(tied) // 2])
        step = rates[1] / rates[0]
        if best == 0:
            added = [tidy(rates[0] / step**k) for k in (1, 2)]
        elif best == len(rates) - 1:
            added = [tidy(rates[-1] * 2.0)]
        else:
            return None
        self.spec = replace(self.spec, rates=_distinct([*rates, *added]))
        return self.spec

    def finer(self, centre: float) -> ShortGridSpec:
        """Return a learning rate and its neighbours up to a factor of four away.

        Learning rates that cannot be told from the best one stay, so that a plateau is seen as such.
        """
        found = self.curve()
        low, high = found.range
        tied = [rate for rate in self.spec.rates if low <= math.log2(rate) <= high]
        ends = [rate for rate in self.spec.rates if rate < min(tied)][-1:] + [
            rate for rate in self.spec.rates if rate > max(tied)
        ][:1]
        near = [rate for rate in self.spec.rates if abs(math.log2(rate / centre)) < len(AROUND) / 2]
        near += [centre * 2.0**k for k in AROUND]
        wide = [*tied, *ends] if high - low >= len(AROUND) - 1 else []
        self.spec = replace(self.spec, rates=_distinct([*near, *wide]))
        return self.spec

    def more_seeds(self, num: int) -> ShortGridSpec:
        """Return the same learning rates with more seeds."""
        self.spec = replace(self.spec, num_seeds=self.spec.num_seeds + num)
        return self.spec

    @property
    def num_examples(self) -> int:
        """Training examples of one run."""
        return self.spec.num_steps * self.spec.batch_size * (self._runs.task.unroll or 1)

    def _scores(self) -> Floats:
        return self._runs.scores(self.spec)

    def best_scores(self) -> Floats:
        """Return the scores of all seeds at the best learning rate."""
        scores_RS = self._scores()
        return np.asarray(scores_RS[int(np.argmax(scores_RS.mean(axis=1)))])

    def losses(self) -> Floats:
        """Return held-out losses by learning rate and seed."""
        return self._runs.losses(self.spec)

    def curve(self) -> Curve:
        """Return the curve of the judged quantity."""
        return curve(
            batch_size=self.spec.batch_size,
            num_examples=self.num_examples,
            rates=self.spec.rates,
            scores_RS=self._scores(),
        )

    def result(self) -> ShortGrid:
        """Return what was found."""
        scores_RS = self._scores()
        sign = self._runs.task.metric_definition.direction.sign
        values = [row[np.isfinite(row)] for row in sign * scores_RS]
        return ShortGrid(
            batch_size=self.spec.batch_size,
            momentum=self.spec.momentum,
            num_steps=self.spec.num_steps,
            rates=self.spec.rates,
            means=tuple(float(v.mean()) if len(v) else math.inf for v in values),
            standard_deviations=tuple(float(v.std(ddof=1)) if len(v) > 1 else 0.0 for v in values),
            num_seeds=self.spec.num_seeds,
            optimum=optimum(self.spec.rates, -scores_RS, seed=self.spec.batch_size),
        )


def _distinct(rates: Sequence[float]) -> tuple[float, ...]:
    """Return rising learning rates; of nearly equal ones the first."""
    found: list[float] = []
    for rate in map(tidy, rates):
        if all(abs(math.log2(rate / other)) > 1 / 8 for other in found):
            found.append(rate)
    return tuple(sorted(found))


@dataclass(frozen=True, kw_only=True)
class GridPlan:
    """What the short grids cover.

    Args:
        batch_sizes: rising.
        momentum: of all runs.
        intended_steps: updates of the intended training at a batch size.
        ceiling: the largest effective learning rate worth trying.
        paces: how fast fleets train, by batch size.
        most_examples: training examples that all runs together may cost.
    """

    batch_sizes: tuple[int, ...]
    momentum: float
    intended_steps: Callable[[int], int]
    ceiling: float
    paces: Mapping[int, Pace]
    most_examples: float


def search_grids(runs: ShortRuns, plan: GridPlan, *, clock: Clock, until: float) -> list[GridSearch]:
    """Train short grids of rising length until time, cost or half of the intended training is reached."""
    ladder = _Ladder(runs, plan, clock=clock, until=until)
    parts = ladder.parts()
    found = ladder.first(parts[0])
    for part in parts[1:]:
        longer = ladder.longer(part, found)
        if not longer:
            break
        found += longer
    ladder.add_seeds(found)
    return found


def least_seconds(runs: ShortRuns, plan: GridPlan, *, clock: Clock) -> float:
    """Return the time of the fewest and shortest grids."""
    return _Ladder(runs, plan, clock=clock, until=clock.seconds).least()


class _Ladder:
    def __init__(self, runs: ShortRuns, plan: GridPlan, *, clock: Clock, until: float) -> None:
        self._runs, self._plan, self._clock, self._until = runs, plan, clock, until
        self._unroll = runs.task.unroll or 1
        # How much longer a round took than its price.
        self._factor = 1.0

    def _steps(self, part: float, size: int) -> int:
        return round(part * self._plan.intended_steps(size))

    def _sizes(self, part: float) -> list[int]:
        return [size for size in self._plan.batch_sizes if self._steps(part, size) >= FEWEST_STEPS]

    def _seconds(self, part: float, num_runs: int) -> float:
        """Return the price of a round of so many runs at every batch size."""
        total = 0.0
        for size in self._sizes(part):
            pace = self._plan.paces[size]
            total += len(self._runs.tasks) * pace.overhead
            total += num_runs * self._steps(part, size) * size * self._unroll / pace.speed
        return total / self._runs.num_workers

    def _examples(self, part: float, num_runs: int) -> float:
        return sum(num_runs * self._steps(part, size) * size * self._unroll for size in self._sizes(part))

    def _fits(self, part: float, num_runs: int) -> bool:
        """Tell whether a round fits into the time, and into the cost."""
        in_time = self._clock.spent + self._factor * self._seconds(part, num_runs) <= self._until
        return in_time and self._runs.num_examples + self._examples(part, num_runs) <= self._plan.most_examples

    def _train(self, searches: Sequence[ShortGridSpec], price: float) -> None:
        took = self._runs.train(searches)
        if price > 0 and took > 0:
            self._factor = max(0.1, min(10.0, took / price))

    def parts(self) -> list[float]:
        """Return the lengths as parts of the intended training, rising by factors of two.

        The first is an eighth of it, or shorter if time for twice as long and four times as long would be lacking.
        """
        found = self._fewest_parts()
        left = self._until - self._clock.spent
        while self._price(found[-1]) > left and self._can_halve(found[-1]):
            found.append(found[-1] / 2)
        return found[::-1]

    def _fewest_parts(self) -> list[float]:
        """Return the lengths if time is no object, falling; short trainings are tried in full length."""
        smallest = self._plan.batch_sizes[0]
        top = LONGEST_PART if self._steps(LONGEST_PART / 2, smallest) >= FEWEST_STEPS else 1.0
        found = [top / 2**k for k in range(NUM_LENGTHS)]
        return [part for part in found if self._sizes(part)] or [1.0]

    def _can_halve(self, part: float) -> bool:
        return self._steps(part / 2, self._plan.batch_sizes[-1]) >= FEWEST_STEPS

    def _price(self, part: float) -> float:
        """Return the seconds of the first length and of two further ones."""
        first = self._seconds(part, 2 * NUM_COARSE * NUM_SEEDS)
        return first + sum(self._seconds(2**k * part, len(AROUND) * NUM_SEEDS) for k in range(1, NUM_LENGTHS))

    def least(self) -> float:
        """Return the seconds of the shortest two lengths with few seeds."""
        parts = self._fewest_parts()
        while self._can_halve(parts[-1]):
            parts.append(parts[-1] / 2)
        first = 2 * self._seconds(parts[-1], 2 * NUM_COARSE * NUM_SEEDS)
        return first + (self._seconds(parts[-2], len(AROUND) * COARSE_SEEDS) if len(parts) > 1 else 0.0)

    def first(self, part: float) -> list[GridSearch]:
        """Find the optimum from afar: learning rates a factor of four apart, then of two around the best."""
        rates = tuple(self._plan.ceiling * 4.0**-k for k in range(NUM_COARSE))
        sizes = self._sizes(part) or list(self._plan.batch_sizes[:1])
        found = [self._search(part, size, rates, NUM_SEEDS) for size in sizes]
        self._train([search.spec for search in found], self._seconds(part, NUM_COARSE * NUM_SEEDS))
        self._extend(found, part)
        peaks = common_peaks([search.curve() for search in found])
        self._runs.train([search.finer(2.0**peak) for search, peak in zip(found, peaks, strict=True)])
        self._extend(found, part)
        return found

    def _search(self, part: float, size: int, rates: Sequence[float], num_seeds: int) -> GridSearch:
        spec = ShortGridSpec(
            batch_size=size,
            momentum=self._plan.momentum,
            num_steps=max(1, self._steps(part, size)),
            rates=tuple(rates),
            num_seeds=num_seeds,
        )
        return GridSearch(self._runs, spec)

    def _extend(self, searches: Sequence[GridSearch], part: float) -> None:
        for _ in range(MORE_LOOKS):
            if not self._fits(part, 2 * searches[0].spec.num_seeds):
                return
            more = [spec for search in searches if (spec := search.further()) is not None]
            if not more:
                return
            self._runs.train(more)

    def longer(self, part: float, shorter: Sequence[GridSearch]) -> list[GridSearch]:
        """Train grids of the next length around their expected optima; none if they do not fit."""
        num_seeds = self._affordable_seeds(part)
        if num_seeds is None:
            return []
        curves = [search.curve() for search in shorter]
        found = []
        for size in self._sizes(part):
            examples = self._steps(part, size) * size * self._unroll
            centre = min(fitted_peak(curves, batch_size=size, num_examples=examples), self._plan.ceiling)
            found.append(self._search(part, size, [centre * 2.0**k for k in AROUND], num_seeds))
        self._train([search.spec for search in found], self._seconds(part, len(AROUND) * num_seeds))
        self._extend(found, part)
        return found

    def _affordable_seeds(self, part: float) -> int | None:
        """Return how many seeds leave enough for the next length, which says more; None if none fit."""
        if not self._fits(part, len(AROUND) * COARSE_SEEDS):
            return None
        after = 2 * len(AROUND) * NUM_SEEDS if 2 * part <= LONGEST_PART else 0  # in runs of this length
        for num_seeds in range(NUM_SEEDS, COARSE_SEEDS, -1):
            if self._fits(part, len(AROUND) * num_seeds + after):
                return num_seeds
        return COARSE_SEEDS

    def add_seeds(self, searches: Sequence[GridSearch]) -> None:
        """Add seeds to the longest runs, two at a time."""
        for num_lengths in (1, 2, 2, 2):
            least = grouped([math.log2(s.num_examples) for s in searches])[-num_lengths:][0]
            chosen = [s for s in searches if math.log2(s.num_examples) >= least]
            chosen = [s for s in chosen if s.spec.num_seeds + 2 <= MOST_SEEDS]
            examples = sum(2 * len(s.spec.rates) * s.num_examples for s in chosen)
            seconds = (
                sum(
                    len(self._runs.tasks) * self._plan.paces[s.spec.batch_size].overhead
                    + 2 * len(s.spec.rates) * s.num_examples / self._plan.paces[s.spec.batch_size].speed
                    for s in chosen
                )
                / self._runs.num_workers
            )
            in_time = self._clock.spent + self._factor * seconds <= self._until
            if not chosen or not in_time or self._runs.num_examples + examples > self._plan.most_examples:
                return
            self._train([s.more_seeds(2) for s in chosen], seconds)
