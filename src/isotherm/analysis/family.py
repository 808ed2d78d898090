"""TEMPORARY stand-in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isotherm.analysis.resampling import ResampledGrid
from isotherm.core.records import Direction
from isotherm.core.statistics import Floats, fit_broken_lines
from isotherm.sweep.protocol import Grid

NUM = 4000


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FamilyFit:
    batch_sizes: tuple[int, ...]
    optima: Floats
    heights: Floats
    slopes: Floats
    kinks: Floats
    plateaus: Floats


def fit_family(grids: Sequence[Grid], *, objective: str | None = None, direction: Direction | None = None) -> FamilyFit:
    rng = np.random.default_rng(len(objective or ""))
    x = [math.log2(g.axes.batch_size) for g in grids]
    optima, heights = [], []
    for g in grids:
        name = objective or g.objective
        t = ResampledGrid(g, name, direction or g.direction)
        optima.append(t.locate(t.seeds(rng, NUM)).log_rate + t.jitter(rng, NUM) / 4)
        best = g.optimum(name, direction or g.direction)
        v = np.array(g.cells[best.index].estimate(name, kept=best.kept).values_all)
        heights.append(v.mean() + v.std(ddof=1) / math.sqrt(len(v)) * rng.standard_t(len(v) - 1, NUM))
    o = np.stack(optima, axis=1)
    s, k, p = fit_broken_lines(x, o) if len(x) > 2 else (np.ones(NUM), np.full(NUM, np.nan), np.ones(NUM))
    return FamilyFit(
        batch_sizes=tuple(g.axes.batch_size for g in grids),
        optima=o,
        heights=np.stack(heights, 1),
        slopes=s,
        kinks=k,
        plateaus=p,
    )
