"""Grids at their optima, the series they form, and which of them are fitted together."""

from __future__ import annotations

import dataclasses

import pytest

from helpers_landscape import broken_line, landscape_study
from helpers_protocol import finished, make_grid
from helpers_report import diverged, make_plan, make_results
from isotherm.analysis.analysis import Analysis, analyse
from isotherm.analysis.family import fit_family
from isotherm.analysis.regimes import joint_regimes_of, regimes_of
from isotherm.analysis.series import Series, TunedGrid, same_but_momentum, tuned_grids
from isotherm.core.budget import Budget
from isotherm.core.records import Direction
from isotherm.sweep.plan import SweepPlan
from isotherm.sweep.protocol import Edge, Grid
from isotherm.sweep.results import StudyResults
from isotherm.sweep.rounds import all_runs

LINE = broken_line(1.0, 64, 4.0)


def level_peak(_batch_size: int, _momentum: float) -> float:
    return 0.7


def grids_of(series: Series) -> list[Grid]:
    return [tuned.grid for tuned in series.grids]


def all_series(analysis: Analysis) -> list[Series]:
    return [series for sweep in analysis.sweeps for series in sweep.series]


# -- grids -----------------------------------------------------------------------------------------


def test_a_tuned_grid_says_what_the_grid_says() -> None:
    results = make_results()
    for grid, tuned in zip(results.grids(), tuned_grids(results), strict=True):
        assert (tuned.optimum, tuned.train_optimum) == (grid.optimum(), grid.train_optimum())
        assert tuned.test_optimum == tuned.optimum
        assert tuned.test == grid.at_optimum("test_metric")
        assert tuned.train_loss == grid.at_optimum("train_loss")
        assert tuned.train_objective == grid.at_optimum("train_objective")
        assert (tuned.axes, tuned.edge) == (grid.axes, Edge.INTERIOR)
        assert (tuned.rate, tuned.temperature, tuned.learning_rate) == (1.0, 1.0 / grid.axes.batch_size, 0.1)


def test_the_optimum_on_the_test_set_is_not_the_one_that_was_tuned_on_the_training_loss() -> None:
    (tuned, *_) = tuned_grids(make_results(make_plan(tune_on="train")))
    assert tuned.optimum is not None
    assert tuned.test_optimum is not None
    assert (tuned.optimum.effective_learning_rate, tuned.test_optimum.effective_learning_rate) == (0.25, 1.0)
    assert tuned.optimum == tuned.train_optimum


def test_a_grid_without_a_stable_learning_rate_has_nothing() -> None:
    (tuned, *_) = tuned_grids(make_results(give=lambda *_: diverged()))
    assert tuned.edge is Edge.NO_OPTIMUM
    nothing = [getattr(tuned, field.name) for field in dataclasses.fields(TunedGrid)[2:]]
    assert nothing == [None] * 10
    assert tuned.rate is tuned.temperature is tuned.learning_rate is None


def test_the_optimisers_learning_rate_is_tidy() -> None:
    grid = make_grid({rate: [finished(0.5)] for rate in (3.0,)}, num_kept=1, momentum=0.9)
    empty = tuned_grids(make_results(give=lambda *_: diverged()))[0]
    tuned = dataclasses.replace(empty, grid=grid, optimum=grid.optimum())
    assert tuned.learning_rate == 0.3


# -- series and pairs ------------------------------------------------------------------------------


def test_one_series_per_momentum_and_no_law_below_three_batch_sizes() -> None:
    study = landscape_study(optimum=LINE, peak=level_peak)
    assert [(r.momentum, r.label) for r in analyse(study).regimes] == [(0.0, "SGD"), (0.9, "momentum 0.9")]
    short = analyse(landscape_study(optimum=LINE, peak=level_peak, sizes=(8, 16)))
    assert short.regimes == []
    assert short.joint_regimes == ()
    assert [len(series.grids) for series in all_series(short)] == [2, 2]


def test_every_series_has_fits_of_three_quantities_and_a_law_of_its_own() -> None:
    study = landscape_study(optimum=LINE, peak=level_peak, momenta=(0.0, 0.5, 0.9), sizes=(16, 64, 256))
    analysis = analyse(study)
    series = all_series(analysis)
    for one in series:
        assert one.fit is not None
        assert one.test_fit is one.fit  # tuned on the test metric
        assert one.train_fit is not None
        expected = fit_family(grids_of(one), objective="train_objective", direction=Direction.MINIMISE)
        assert (one.train_fit.optima == expected.optima).all()
        assert one.law == regimes_of(one.fit, grids_of(one))
    assert [found.heavy.momentum for found in analysis.joint_regimes] == [0.5, 0.9]
    for found, heavy in zip(analysis.joint_regimes, series[1:], strict=True):
        (plain_law, plain_fit), (law, fit) = (series[0].law, series[0].fit), (heavy.law, heavy.fit)
        assert plain_law is not None
        assert plain_fit is not None
        assert law is not None
        assert fit is not None
        assert found == joint_regimes_of((plain_law, plain_fit), (law, fit))
        assert found.words == [found.line_words, found.ratio_words]


def split(study: StudyResults, **changes: object) -> StudyResults:
    """Return the study as two sweeps, plain SGD and momentum 0.9, the latter changed."""
    (plan,) = study.plan.sweeps
    plain = dataclasses.replace(plan, momenta=(0.0,), name="one")
    heavy: SweepPlan = dataclasses.replace(plan, momenta=(0.9,), name="other", **changes)  # type: ignore[arg-type]
    twin = dataclasses.replace(plan, momenta=(0.9,))
    moved = {
        new.key: study.by_key[old.key]
        for new, old in zip(all_runs([heavy], {}).values(), all_runs([twin], {}).values(), strict=True)
    }
    return StudyResults(plan=dataclasses.replace(study.plan, sweeps=(plain, heavy)), by_key={**study.by_key, **moved})


def test_pairs_are_found_over_sweeps_that_differ_in_momentum_alone() -> None:
    study = landscape_study(optimum=LINE, peak=level_peak, sizes=(16, 64, 256))
    assert analyse(split(study)).joint_regimes == analyse(study).joint_regimes
    for change in ({"model_id": "another"}, {"budgets": (Budget.epochs(10),)}):
        apart = analyse(split(study, **change))
        assert apart.joint_regimes == ()
        assert all(s.law is not None for s in all_series(apart))


def test_momentum_alone_has_no_pair() -> None:
    assert analyse(landscape_study(optimum=LINE, peak=level_peak, momenta=(0.5, 0.9))).joint_regimes == ()


@pytest.mark.parametrize(
    ("change", "same"), [({"momenta": (0.0,)}, True), ({"batch_sizes": (8,)}, True), ({"l2": 0.1}, False)]
)
def test_what_two_sweeps_may_differ_in(change: dict[str, object], same: bool) -> None:
    assert same_but_momentum(make_plan(), make_plan(**change)) is same
