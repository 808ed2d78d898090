"""The largest stable learning rate, by short runs at a large batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from isotherm.core.rates import tidy
from isotherm.core.statistics import Floats, Interval
from isotherm.diagnose.diagnosis import Stability
from isotherm.diagnose.fits import failure_limit
from isotherm.diagnose.short_runs import Clock, ShortGridSpec, ShortRuns

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
# Rounds that a search is planned to take: the first, one further out, a finer one, and one to spare.
ROUNDS = 4
# If there is time for runs this many times longer, it is worth starting over, if they become at least 10 % longer.
_WORTH_LONGER, _LEAST_LONGER = 1.5, 1.1


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
    most_steps: int = STABILITY_STEPS,
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
        most_steps: of each run, if there is time.
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
        factor = _longer(took, until - clock.spent, most=most_steps / num_steps)
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
