"""The measurements of a diagnosis, each within its share of the time: stability, short grids, speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from isotherm.core.rates import tidy
from isotherm.core.statistics import Floats, Interval
from isotherm.diagnose.diagnosis import Isotherm, ShortGrid, Stability
from isotherm.diagnose.fits import combined, failure_limit, optimum, resampled_optima, slope
from isotherm.diagnose.short_runs import Clock, ShortGridSpec, ShortRuns
from isotherm.engine.placed_task import place_task
from isotherm.errors import UserError
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.running.timing import Enough, FleetTimer, Lap
from isotherm.tasks.model_check import check_model
from isotherm.tasks.seeding import initial_model
from isotherm.tasks.task import Task

# A run fails if it makes less than this fraction of the best learning rate's progress.
PROGRESS = 0.5
# Progress below this fraction of the initial loss does not count: seeds and examples differ by as much.
LEAST_PROGRESS = 0.01
# Learning rates of the first round, relative to a guess, and how many rounds may extend beyond an edge.
FIRST_FACTORS = tuple(4.0**k for k in range(-2, 4))
MORE_LOOKS = 3
# The fine round has steps of half an octave around the limit.
FINE_FACTORS = tuple(2.0 ** (k / 2) for k in range(-2, 3))
COARSE_SEEDS, FINE_SEEDS = 2, 4
STABILITY_STEPS = 96
# Epochs of a short training, and the fewest useful updates.
SHORT_EPOCHS = 3.0
FEWEST_STEPS = 32
MOST_SEEDS = 8
# Rounds that a search is planned to take: the first, one further out, a finer one, and one to spare.
ROUNDS = 4
# If there is time for runs this many times longer, it is worth starting over, if they become at least 10 % longer.
_WORTH_LONGER, _LEAST_LONGER = 1.5, 1.1
_SPEED_STEPS, _SPEED_WINDOW = 4_999, 8
# Fewest updates for timing a fleet: one window to warm up and one that counts.
TIMED_STEPS = 2 * _SPEED_WINDOW


# -- batch sizes -----------------------------------------------------------------------------------------------------


def three_batch_sizes(task: Task, wanted: Sequence[int] | None, *, centre: int | None) -> tuple[int, ...]:
    """Return the batch sizes of the short grids, by default three a factor of four apart.

    Raises:
        UserError: the model supports none of them, or the training set is too small for two.
    """
    most = max(1, task.num_train // (8 * (task.unroll or 1)))
    if wanted is not None:
        bad = [size for size in wanted if isinstance(size, bool) or not isinstance(size, int) or size < 1]
        if bad:
            raise UserError(f"batch_sizes={list(wanted)}: use whole numbers of at least 1, not {bad[0]!r}")
        sizes = tuple(sorted(set(wanted)))
        check_model(task, sizes)
        if len(sizes) < 2:
            raise UserError(f"batch_sizes={list(wanted)}: give two or more; the isotherm is a line through them")
        if sizes[-1] > most:
            raise UserError(f"batch size {sizes[-1]} is more than an eighth of the training set; use at most {most}")
        return sizes
    check_model(task)
    # A quarter of the batch size in use, but a power of two small enough for two larger ones to fit.
    room = 1 << max(0, (most // 16).bit_length() - 1)
    first = min(8 if centre is None else max(2, centre // 4), room)
    ghost = _ghost_size(task)
    unit = ghost if 4 * ghost <= most else 1  # a batch smaller than a ghost batch is normalised more noisily
    first = max(first // unit, 1) * unit
    fitting = [size for size in (first * 2**k for k in range(12)) if size <= most and _is_taken(task, size)]
    chosen = fitting[:1]
    for size in fitting:
        if size >= 4 * chosen[-1] and len(chosen) < 3:
            chosen.append(size)
    if len(chosen) < 2:
        raise UserError(
            f"task {task.name!r}: {task.num_train} training examples are too few for two batch sizes a factor of four "
            f"apart, each at most an eighth of them; give more examples, or batch_sizes"
        )
    return tuple(chosen)


def large_batch_size(task: Task, sizes: Sequence[int]) -> int:
    """Return the batch size of the stability search: twice the largest if it fits, as noise limits it less."""
    double = 2 * sizes[-1]
    fits = double <= task.num_train // (8 * (task.unroll or 1)) and _is_taken(task, double)
    return double if fits else sizes[-1]


def _ghost_size(task: Task) -> int:
    """Return the number that batch sizes must be a multiple of: the ghost size with ghost batch norm, else 1."""
    modules = initial_model(task.model, seed=0).modules()
    return math.lcm(*(part.ghost_size for part in modules if isinstance(part, GhostBatchNorm2d)))


def _is_taken(task: Task, size: int) -> bool:
    try:
        check_model(task, [size])
    except UserError:
        return False
    return True


# -- stability -------------------------------------------------------------------------------------------------------


class StabilitySearch:
    """Finds the largest stable learning rate for one momentum: first in steps of four, then of half an octave.

    Args:
        runs: trains the runs.
        batch_size: of all runs.
        momentum: of all runs.
        num_steps: of each run.
        guess: an effective learning rate near the limit.
        initial_loss: training loss before any update.
    """

    def __init__(
        self, runs: ShortRuns, *, batch_size: int, momentum: float, num_steps: int, guess: float, initial_loss: float
    ) -> None:
        self._runs, self._initial_loss, self._guess = runs, initial_loss, guess
        self._plain = ShortGridSpec(
            batch_size=batch_size, momentum=momentum, num_steps=num_steps, rates=(), num_seeds=COARSE_SEEDS
        )
        self._seeds: dict[float, int] = {}
        self.best_loss, self._best_rate = math.inf, math.nan

    def coarse(self, factors: Sequence[float] = FIRST_FACTORS) -> ShortGridSpec:
        """Return the first round."""
        return self._noted([tidy(self._guess * factor) for factor in factors], COARSE_SEEDS)

    def further(self) -> ShortGridSpec | None:
        """Return runs beyond an edge if the limit, or a reference for progress, is not found yet; or None."""
        failed = self._failed()
        rates = sorted(failed)
        factors = (4.0, 16.0, 64.0)
        if not any(any(runs) for runs in failed.values()) or self._hardly_moves(rates):
            return self._noted([tidy(rates[-1] * factor) for factor in factors], COARSE_SEEDS)
        if all(any(runs) for runs in failed.values()) or self._best_rate == rates[0]:
            return self._noted([tidy(rates[0] / factor) for factor in factors], COARSE_SEEDS)
        return None

    def _hardly_moves(self, rates: Sequence[float]) -> bool:
        """Tell whether the learning rates are so small that the loss does not change."""
        losses = self._losses()
        lowest = losses[rates[0]] - self._initial_loss
        moved = bool(np.abs(lowest).max() > LEAST_PROGRESS * abs(self._initial_loss))
        return not self._has_progress() and not moved and bool(np.isfinite(losses[rates[-1]]).all())

    def _has_progress(self) -> bool:
        return self._initial_loss - self.best_loss > LEAST_PROGRESS * abs(self._initial_loss)

    def fine(self) -> ShortGridSpec | None:
        """Return runs around the limit found so far; None if there is none."""
        found = self.limit()
        if found is None:
            return None
        return self._noted([tidy(found.estimate * factor) for factor in FINE_FACTORS], FINE_SEEDS)

    def _noted(self, rates: Sequence[float], num_seeds: int) -> ShortGridSpec:
        """Record learning rates; nearly equal ones count as one."""
        meant = sorted({min((k for k in self._seeds if _is_near(k, rate)), default=rate) for rate in rates})
        for rate in meant:
            self._seeds[rate] = max(num_seeds, self._seeds.get(rate, 0))
        return replace(self._plain, rates=tuple(meant), num_seeds=num_seeds)

    def _losses(self) -> dict[float, Floats]:
        found = {}
        for rate, num_seeds in sorted(self._seeds.items()):
            grid_spec = replace(self._plain, rates=(rate,), num_seeds=num_seeds)
            found[rate] = self._runs.losses(grid_spec, on="train")[0]
        return found

    def _failed(self) -> dict[float, list[bool]]:
        losses = self._losses()
        means = {rate: float(values.mean()) for rate, values in losses.items()}
        self._best_rate = min(means, key=lambda rate: means[rate])
        self.best_loss = means[self._best_rate]
        if not self._has_progress():
            return {rate: [True] * len(values) for rate, values in losses.items()}
        most = self._initial_loss - PROGRESS * (self._initial_loss - self.best_loss)
        # Too small a learning rate makes little progress too: below the best one only divergence counts.
        return {
            rate: [bool(not value <= (most if rate >= self._best_rate else np.finfo(float).max)) for value in values]
            for rate, values in losses.items()
        }

    def limit(self) -> Interval | None:
        """Return the learning rate at which half of the runs fail, if known."""
        failed = self._failed()
        return failure_limit(list(failed), list(failed.values()))

    def result(self) -> Stability:
        """Return everything found."""
        failed = self._failed()
        return Stability(
            momentum=self._plain.momentum,
            batch_size=self._plain.batch_size,
            num_steps=self._plain.num_steps,
            rates=tuple(failed),
            num_runs=tuple(len(runs) for runs in failed.values()),
            num_failed=tuple(sum(runs) for runs in failed.values()),
            initial_loss=self._initial_loss,
            best_loss=self.best_loss,
            limit=failure_limit(list(failed), list(failed.values())),
        )


def _is_near(first: float, second: float) -> bool:
    """Tell whether two learning rates differ by less than an eighth of an octave."""
    return abs(math.log2(first / second)) < 1 / 8


def search_stability(
    runs: ShortRuns,
    *,
    batch_size: int,
    guesses: dict[float, float],
    num_steps: int,
    initial_loss: float,
    clock: Clock,
    until: float,
) -> tuple[Stability, ...]:
    """Find the largest stable learning rates of several momenta at once; without time, the fine round is skipped.

    If the first round is faster than planned, it is repeated with longer runs.

    Args:
        runs: trains the runs.
        batch_size: of all runs.
        guesses: an effective learning rate by momentum.
        num_steps: of each run, as planned.
        initial_loss: training loss before any update.
        clock: the time spent.
        until: seconds on the clock by which to finish.
    """
    while True:
        searches = [
            StabilitySearch(
                runs,
                batch_size=batch_size,
                momentum=momentum,
                num_steps=num_steps,
                guess=guess,
                initial_loss=initial_loss,
            )
            for momentum, guess in guesses.items()
        ]
        took = runs.train([search.coarse() for search in searches])
        factor = _longer(took, until - clock.spent, most=STABILITY_STEPS / num_steps)
        if factor == 1.0:
            break
        num_steps = int(factor * num_steps)
    for _ in range(MORE_LOOKS):
        if clock.spent + took > until:
            break
        more = [grid_spec for search in searches if (grid_spec := search.further()) is not None]
        if not more:
            break
        runs.train(more)
    # The fine round has more runs than the first, but most of them end early or exist already.
    if clock.spent + took * len(FINE_FACTORS) * FINE_SEEDS / (len(FIRST_FACTORS) * COARSE_SEEDS) <= until:
        runs.train([grid_spec for search in searches if (grid_spec := search.fine()) is not None])
    return tuple(search.result() for search in searches)


def _longer(took: float, left: float, *, most: float) -> float:
    """Return the factor by which runs should be longer than in a round that took this many seconds; 1 to keep them."""
    affordable = left / (ROUNDS * took) if took > 0 else math.inf
    return min(affordable, most) if affordable >= _WORTH_LONGER and most >= _LEAST_LONGER else 1.0


# -- short grids -----------------------------------------------------------------------------------------------------


class GridSearch:
    """Finds the optimal learning rate at one batch size: first in steps of four, then of two around the best.

    Args:
        runs: trains the runs.
        grid_spec: batch size, momentum and updates.
        ceiling: the largest effective learning rate worth trying.
    """

    def __init__(self, runs: ShortRuns, grid_spec: ShortGridSpec, *, ceiling: float) -> None:
        self._runs, self._plain = runs, grid_spec
        self._rates = sorted({tidy(ceiling * 4.0**-k) for k in range(5)})
        self._num_seeds = COARSE_SEEDS

    @property
    def grid_spec(self) -> ShortGridSpec:
        """All runs requested so far."""
        return replace(self._plain, rates=tuple(self._rates), num_seeds=self._num_seeds)

    def coarse(self) -> ShortGridSpec:
        """Return the first round."""
        return self.grid_spec

    def further(self) -> ShortGridSpec | None:
        """Return runs beyond an edge if the lowest loss is there, or None."""
        means = self._means()
        best = int(np.argmin(means))
        if best == 0:
            added = [tidy(self._rates[0] * 4.0**-k) for k in (1, 2)]
        elif best == len(self._rates) - 1:
            added = [tidy(self._rates[-1] * 2.0)]
        else:
            return None
        self._rates = sorted({*self._rates, *added})
        return replace(self._plain, rates=tuple(added), num_seeds=self._num_seeds)

    def fine(self) -> ShortGridSpec:
        """Return the best learning rate and its neighbours up to a factor of four away, in steps of two."""
        best = self._rates[int(np.argmin(self._means()))]
        near = sorted({tidy(best * 2.0**k) for k in (-2, -1, 0, 1, 2)})
        self._rates = near
        return self.grid_spec

    @property
    def is_at_end(self) -> bool:
        """Whether the lowest loss is at the lowest or highest learning rate."""
        return int(np.argmin(self._means())) in (0, len(self._rates) - 1)

    def more_seeds(self, num: int) -> ShortGridSpec:
        """Return the same learning rates with more seeds."""
        self._num_seeds += num
        return self.grid_spec

    @property
    def num_seeds(self) -> int:
        """The number of seeds per learning rate."""
        return self._num_seeds

    def _means(self) -> Floats:
        return np.asarray(self._runs.losses(self.grid_spec).mean(axis=1))

    def result(self) -> ShortGrid:
        """Return what was found."""
        losses_RS = self._runs.losses(self.grid_spec)
        usable = np.isfinite(losses_RS)
        values = [row[ok] for row, ok in zip(losses_RS, usable, strict=True)]
        return ShortGrid(
            batch_size=self._plain.batch_size,
            momentum=self._plain.momentum,
            num_steps=self._plain.num_steps,
            rates=tuple(self._rates),
            means=tuple(float(v.mean()) if len(v) else math.inf for v in values),
            standard_deviations=tuple(float(v.std(ddof=1)) if len(v) > 1 else 0.0 for v in values),
            num_seeds=self._num_seeds,
            optimum=optimum(self._rates, losses_RS, seed=self._plain.batch_size),
        )

    def draws(self) -> Floats:
        """Return log2 of resampled optima."""
        return resampled_optima(self._rates, self._runs.losses(self.grid_spec), seed=self._plain.batch_size)


def search_optima(
    runs: ShortRuns,
    grid_specs: Sequence[ShortGridSpec],
    *,
    most_longer: float = 1.0,
    ceiling: float,
    clock: Clock,
    until: float,
) -> list[GridSearch]:
    """Find the optima at several batch sizes; while there is time, add seeds and extend grids beyond their edges.

    If the first round is faster than planned, it is repeated with runs longer by up to a factor of `most_longer`.
    """
    while True:
        searches = [GridSearch(runs, grid_spec, ceiling=ceiling) for grid_spec in grid_specs]
        took = runs.train([search.coarse() for search in searches])
        factor = _longer(took, until - clock.spent, most=most_longer)
        if factor == 1.0:
            break
        grid_specs = [replace(grid_spec, num_steps=round(factor * grid_spec.num_steps)) for grid_spec in grid_specs]
        most_longer /= factor
    for _ in range(MORE_LOOKS):
        if clock.spent + took / 2 > until:
            break
        more = [grid_spec for search in searches if (grid_spec := search.further()) is not None]
        if not more:
            break
        runs.train(more)
    runs.train([search.fine() for search in searches])
    num_moves = 0
    while True:
        at_end = [search for search in searches if search.is_at_end] if num_moves < MORE_LOOKS else []
        num_seeds = searches[0].num_seeds
        # Learning rates beyond an edge need all seeds; otherwise every rate gets two more seeds.
        longest = took * (num_seeds / COARSE_SEEDS if at_end else 1.0)
        if clock.spent + longest > until or not (at_end or num_seeds < MOST_SEEDS):
            return searches
        if at_end:
            runs.train([search.fine() for search in at_end])
            num_moves += 1
        else:
            took = runs.train([search.more_seeds(2) for search in searches])


def fit_isotherm(searches: Sequence[GridSearch], *, limit: Interval | None) -> Isotherm:
    """Return the temperature of the optima below half of the largest stable learning rate."""
    found = [(search.result(), search.draws()) for search in searches]
    ceiling = math.inf if limit is None else limit.estimate / 2
    known = [(grid, draws) for grid, draws in found if grid.optimum is not None]
    below = [(g, d) for g, d in known if g.optimum is not None and g.optimum.estimate < ceiling / math.sqrt(2)]
    if not below:
        return Isotherm(temperature=None, slope=None, batch_sizes=())
    sizes = [math.log2(grid.batch_size) for grid, _ in below]
    optima = [math.log2(grid.optimum.estimate) for grid, _ in below if grid.optimum is not None]
    draws = [d for _, d in below]
    return Isotherm(
        temperature=combined(
            [d - size for d, size in zip(draws, sizes, strict=True)],
            [value - size for value, size in zip(optima, sizes, strict=True)],
        ),
        slope=slope(sizes, draws, optima),
        batch_sizes=tuple(grid.batch_size for grid, _ in below),
    )


# -- speed -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How fast runs train in this process.

    Args:
        overhead: seconds before a fleet's first update and for its final evaluation.
        speed: training examples (tokens, for sequences) per second of all runs together.
    """

    overhead: float
    speed: float

    def seconds(self, num_examples: float) -> float:
        """Return the time of a fleet that trains on this many examples in all."""
        return self.overhead + num_examples / self.speed


def measure_pace(
    runs: ShortRuns, grid_spec: ShortGridSpec, *, num_runs: int, seconds: float, clock: Clock | None = None
) -> Pace | None:
    """Time a fleet over at least 8 updates, which is then stopped; None if time is up before."""
    before = runs.now()
    placed = place_task(runs.task, precision=runs.task.precision, device=runs.device)
    # Long enough that the fleet does not finish meanwhile, short enough that nothing is compiled for it.
    specs = [
        runs.spec(replace(grid_spec, num_steps=_SPEED_STEPS), rate=1e-6 * (1 + k), seed=0) for k in range(num_runs)
    ]
    laps: list[Lap] = []

    def on_lap(lap: Lap) -> None:
        laps.append(lap)  # the first traces and warms up
        is_late = len(laps) == 1 and clock is not None and clock.left <= 0
        if is_late or (len(laps) > 1 and sum(lap.seconds for lap in laps[1:]) >= seconds):
            raise Enough

    start = runs.now()
    has_window = FleetTimer(placed, specs, updates_per_window=_SPEED_WINDOW, clock=runs.now).run(on_lap)
    assert has_window, "the runs ended before the time window did"
    if len(laps) == 1:
        return None
    speed = sum(lap.run_updates for lap in laps[1:]) / sum(lap.seconds for lap in laps[1:])
    examples = speed * grid_spec.batch_size * (runs.task.unroll or 1)
    # An evaluation is a forward pass over all data, about a third of an update on them.
    evaluation = num_runs * sum(len(y) for _, y in runs.task.splits.values()) / (3 * examples)
    return Pace(overhead=start - before + laps[0].seconds + evaluation, speed=examples)
