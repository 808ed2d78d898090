"""Analyses with made-up fits, for the claims of the paper's objects."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

from isotherm.analysis.series import Series
from isotherm.core.budget import Budget


def made_analysis(*series: Series, name: str) -> Any:
    """Return what claims read of an analysis: these series as sweeps of a name, one each."""
    named = [dataclasses.replace(s, plan=dataclasses.replace(s.plan, name=name)) for s in series]
    sweeps = [SimpleNamespace(plan=s.plan, series=[s], grids=s.grids) for s in named]
    return SimpleNamespace(sweeps=sweeps, plan=SimpleNamespace(sweeps=[s.plan for s in named]))


def over_budgets(*series: Series, name: str) -> Any:
    """Return the same with the series as budgets of one sweep."""
    budgets = tuple(Budget.epochs(5 * 2**k) for k in range(len(series)))
    plan = dataclasses.replace(series[0].plan, name=name, budgets=budgets)
    named = []
    for s, budget in zip(series, budgets, strict=True):
        axes = dataclasses.replace(s.grids[0].grid.axes, budget=budget)
        grid = dataclasses.replace(s.grids[0], grid=dataclasses.replace(s.grids[0].grid, axes=axes))
        named.append(dataclasses.replace(s, plan=plan, grids=(grid,)))
    sweep = SimpleNamespace(plan=plan, series=named, grids=[s.grids[0] for s in named])
    return SimpleNamespace(sweeps=[sweep], plan=SimpleNamespace(sweeps=[plan]))
