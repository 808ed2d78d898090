"""Everything that results say, computed once: JSON, tables, figures, pages and the terminal only show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from isotherm.analysis.recommend import Recommendation, recommendation
from isotherm.analysis.regimes import JointRegimes, Regimes
from isotherm.analysis.saving import Saving, saving
from isotherm.analysis.series import Series, TunedGrid, fitted_series, pairs_of, tuned_grids
from isotherm.analysis.unlimited import BudgetSeries, budget_series
from isotherm.analysis.verdicts import Verdict, judge
from isotherm.core.budget import Budget
from isotherm.core.one_screen import one_screen
from isotherm.core.optimizers import Optimizer
from isotherm.core.views import Shown
from isotherm.errors import UserError
from isotherm.sweep.plan import StudyPlan, SweepPlan
from isotherm.sweep.results import Results, StudyResults


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SweepAnalysis:
    """One sweep: every grid at its optimum, in the plan's order, and the series they form.

    `budgets` are the series over budgets that double, and `saving` what it saved to estimate the grids at a small one.
    """

    plan: SweepPlan
    grids: tuple[TunedGrid, ...]
    series: tuple[Series, ...]
    budgets: tuple[BudgetSeries, ...] = ()
    saving: Saving | None = None

    def law(self, budget: Budget, method: Optimizer) -> Regimes | None:
        """Return the broken line through the optima of a budget and optimiser; None below three optima."""
        return next((s.law for s in self.series if (s.budget, s.method) == (budget, method)), None)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Analysis(Shown):
    """What the results of a study say.

    `counts` are its runs by outcome, and how many are missing. `joint_regimes` compare plain SGD with momentum where
    both were run at one budget. `recommendations` are one per sweep, budget and optimiser with an optimum.
    """

    results: StudyResults
    counts: Mapping[str, int]
    sweeps: tuple[SweepAnalysis, ...]
    joint_regimes: tuple[JointRegimes, ...]
    verdicts: tuple[Verdict, ...]
    recommendations: tuple[Recommendation, ...]

    @property
    def plan(self) -> StudyPlan:
        """What was to be run."""
        return self.results.plan

    @property
    def regimes(self) -> list[Regimes]:
        """The two regimes of every sweep, budget and optimiser with three optima or more."""
        return [s.law for sweep in self.sweeps for s in sweep.series if s.law is not None]

    def __str__(self) -> str:
        return "\n".join([*map(str, self.recommendations), *map(str, self.verdicts)])

    def __repr__(self) -> str:
        counts = ", ".join(f"{num:,} {name}" for name, num in self.counts.items() if num)
        title = f"Analysis of {self.plan.name!r}: {counts or 'no runs'}"
        advice = [f"- {one.words}" for one in self.recommendations]
        return one_screen([title, *advice, *(f"- {one.state}: {one.claim}" for one in self.verdicts)])


def analyse(results: Results | StudyResults, *, run: Sequence[str] | None = None) -> Analysis:
    """Return what the results of a sweep or a study say: optima, regimes, verdicts, recommendations.

    Results may be incomplete; what they do not determine is left out or said to be open.

    Args:
        results: of the sweep or study.
        run: the command that runs the study, word by word, from which open verdicts make the one that would decide
            them; `isotherm run` with the study's name by default.
    """
    if not isinstance(results, Results | StudyResults):
        raise UserError(f"results is {type(results).__name__}; give what isotherm.run or isotherm.open_results returns")
    study = results if isinstance(results, StudyResults) else results.as_study()
    tuned = [tuned_grids(sweep) for sweep in study.sweeps]
    found = fitted_series(zip(study.plan.sweeps, tuned, strict=True))
    series = [s for members in found for s in members]
    pairs = pairs_of(series)
    judged = judge(series, pairs, run=("isotherm", "run", study.plan.name) if run is None else run)
    advice = (recommendation(s, verdict) for s, verdict in zip(series, judged.scaling, strict=True))
    return Analysis(
        results=study,
        counts=study.counts(),
        sweeps=tuple(
            SweepAnalysis(
                plan=sweep.plan,
                grids=grids,
                series=tuple(members),
                budgets=() if sweep.plan.until is None else tuple(budget_series(sweep)),
                saving=saving(sweep),
            )
            for sweep, grids, members in zip(study.sweeps, tuned, found, strict=True)
        ),
        joint_regimes=tuple(pair.joint for pair in pairs),
        verdicts=judged.verdicts,
        recommendations=tuple(one for one in advice if one is not None),
    )


def regimes(results: Results | StudyResults) -> list[Regimes]:
    """Return the two regimes of every sweep, budget and optimiser with three optima or more: a part of `analyse`."""
    return analyse(results).regimes


def recommend(results: Results | StudyResults) -> list[Recommendation]:
    """Return one recommendation for every sweep, budget and optimiser: a part of `analyse`.

    Raises:
        UserError: no grid has an optimum yet.
    """
    found = analyse(results).recommendations
    if not found:
        raise UserError(
            "no batch size has a stable optimum yet",
            advice="finish the sweep, or widen its learning rates",
        )
    return list(found)
