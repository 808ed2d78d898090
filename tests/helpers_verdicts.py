"""Series with made-up fits: claims see what they are told, without any fitting."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from helpers_landscape import SIZES, landscape_study
from isotherm.analysis.family import FamilyFit
from isotherm.analysis.series import Pair, Series, TunedGrid, tuned_grids
from isotherm.analysis.verdicts.claim import Claim, Verdict, decided
from isotherm.core.budget import Budget
from isotherm.core.statistics import Floats, fit_broken_lines

NUM_DRAWS = 4000
RUN = ("isotherm", "run", "made.toml")


@functools.cache
def _grids(sizes: tuple[int, ...], num_seeds: int, momentum: float) -> tuple[Any, tuple[TunedGrid, ...]]:
    study = landscape_study(
        optimum=lambda b, _m: b / 16,
        peak=lambda _b, _m: 0.7,
        budget=Budget.steps(1000),
        momenta=(momentum,),
        sizes=sizes,
        num_seeds=max(2, num_seeds),
    )
    return study.plan.sweeps[0], tuned_grids(study.sweeps[0])


def made_fit(
    log_optima: Sequence[float], heights: Sequence[float], sizes: Sequence[int], *, error: float, seed: int
) -> Any:
    """Return draws around optima and heights; `error` is relative to an octave, and to a point of the metric."""
    generator = np.random.default_rng(seed)
    optima = np.array(log_optima) + error * generator.normal(size=(NUM_DRAWS, len(sizes)))
    lines: tuple[Floats, Floats, Floats] = (np.ones(NUM_DRAWS), np.full(NUM_DRAWS, np.nan), np.ones(NUM_DRAWS))
    if len(sizes) > 2:
        lines = fit_broken_lines(np.log2(sizes).tolist(), optima)
    return MadeFit(
        batch_sizes=tuple(sizes),
        optima=optima,
        heights=np.array(heights) + 0.01 * error * generator.normal(size=optima.shape),
        slopes=lines[0],
        kinks=lines[1],
        plateaus=lines[2],
    )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MadeFit:
    """What claims read from a `FamilyFit`."""

    batch_sizes: tuple[int, ...]
    optima: Floats
    heights: Floats
    slopes: Floats
    kinks: Floats
    plateaus: Floats

    def values_at(self, log_rates: Floats) -> Floats:
        """A parabola that loses a point an octave from its optimum."""
        return np.asarray(self.heights - 0.01 * (log_rates - self.optima) ** 2)


def same_attributes() -> bool:
    """Tell whether a `FamilyFit` has everything that claims are given here."""
    names = {field.name for field in dataclasses.fields(MadeFit)} | {"values_at"}
    return names <= {*FamilyFit.__annotations__, *dir(FamilyFit)}


def made_series(
    *,
    optimum: Callable[[int], float],
    height: Callable[[int], float] = lambda _b: 0.7,
    train_shift: float = 0.0,
    train_height: Callable[[int], float] = lambda _b: 0.1,
    sizes: tuple[int, ...] = SIZES,
    error: float = 0.05,
    num_seeds: int = 5,
    momentum: float = 0.0,
    metric: str = "accuracy",
    tuned: Callable[[int], float] | None = None,
) -> Series:
    """Return a series whose fits are made; `optimum` gives log2 ε, that of the training loss is lower by a shift.

    With `tuned`, log2 of the learning rates that are best on a validation set, these are the ones chosen.
    """
    plan, grids = _grids(sizes, num_seeds, momentum)
    seed = int(10 * momentum)
    bounds = (0.0, 1.0) if metric == "accuracy" else None
    plan = dataclasses.replace(plan, seeds=tuple(range(num_seeds)), metric=metric, metric_bounds=bounds)
    places = [optimum(size) for size in sizes]
    fit = made_fit(places, [height(size) for size in sizes], sizes, error=error, seed=seed)
    lower = [place - train_shift for place in places]
    train = made_fit(lower, [train_height(size) for size in sizes], sizes, error=error / 10, seed=seed + 1)
    own = fit
    if tuned is not None:
        plan = dataclasses.replace(plan, tune_on="validation")
        own = made_fit([tuned(size) for size in sizes], [0.7] * len(sizes), sizes, error=error, seed=seed + 2)
    return Series(plan=plan, grids=grids, law=None, fit=own, test_fit=fit, train_fit=train)


def made_pair(plain: Series, heavy: Series) -> Pair:
    """Return a pair for claims, which do not read how the two laws compare."""
    return Pair(plain=plain, heavy=heavy, joint=None)  # type: ignore[arg-type]


def broken(slope: float, log_kink: float) -> Callable[[int], float]:
    """Return log2 of an optimum that rises with a slope up to the kink, where it is 1."""
    return lambda size: slope * min(0.0, float(np.log2(size)) - log_kink)


def alone(claim: Claim) -> Verdict:
    """Return the verdict on a claim that is the only one."""
    (verdict,) = decided([claim], run=RUN)
    return verdict


def with_optimum_at_end(series: Series, size: int, name: str = "optimum") -> Series:
    """Return the series with one optimum at the upper end of its grid."""
    changed = []
    for grid in series.grids:
        best = getattr(grid, name)
        at_end = dataclasses.replace(best, index=len(grid.grid.cells) - 1)
        changed.append(dataclasses.replace(grid, **{name: at_end}) if grid.axes.batch_size == size else grid)
    return dataclasses.replace(series, grids=tuple(changed))
