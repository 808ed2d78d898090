"""Everything is computed once, whoever asks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import isotherm.analysis.series as fitting
from helpers_landscape import broken_line, first_sweep, landscape_study
from helpers_report import embedded_study, make_plan, make_study
from isotherm.analysis import family
from isotherm.analysis.analysis import analyse, recommend, regimes
from isotherm.analysis.verdicts import Verdict
from isotherm.core import processes
from isotherm.core.optimizers import SGD
from isotherm.errors import UserError
from isotherm.report.study.folder import write_report
from isotherm.sweep.protocol import Grid
from isotherm.sweep.results import StudyResults


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the fits, and the searches for an optimum by grid and quantity."""
    counted: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counting(*args: Any, **kwargs: Any) -> Any:
            counted[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counting)

    monkeypatch.setattr(processes, "num_cores", lambda: 1)  # what a fork counts is not seen here
    count(family, "_fit")
    count(fitting, "joint_regimes_of")
    count(Grid, "train_optimum")
    return counted


def test_a_whole_report_fits_every_law_once_and_shows_what_was_computed(calls: Counter[str], tmp_path: Path) -> None:
    family._kept.clear()
    analysis = analyse(embedded_study())
    # Three series, each with the metric it is tuned on and the training loss; at equal epochs SGD and momentum pair up.
    assert (calls["_fit"], calls["joint_regimes_of"]) == (6, 1)
    assert calls["train_optimum"] > 0
    before = calls.copy()
    write_report(analysis, tmp_path)
    assert calls == before


def test_a_sweep_is_a_study_of_its_own() -> None:
    study = landscape_study(optimum=broken_line(1.0, 64, 4.0), peak=lambda _b, _m: 0.7, sizes=(8, 32, 128, 512))
    alone, whole = analyse(first_sweep(study)), analyse(study)
    assert alone.plan.name == "made"
    assert alone.verdicts == whole.verdicts
    assert alone.recommendations == whole.recommendations
    assert alone.counts == whole.counts == study.counts()


def test_laws_are_found_by_budget_and_momentum() -> None:
    analysis = analyse(embedded_study())
    for sweep in analysis.sweeps:
        for series in sweep.series:
            assert sweep.law(series.budget, series.method) is series.law is not None
        assert sweep.law(sweep.plan.budgets[0], SGD(momentum=0.25)) is None
    assert len(analysis.regimes) == 3


def test_results_without_an_optimum_say_nothing_and_break_nothing() -> None:
    empty = analyse(make_study(make_plan(), give=lambda *_: None))
    assert empty.regimes == []
    assert empty.joint_regimes == empty.verdicts == empty.recommendations == ()
    assert len(empty.sweeps[0].grids) == 3
    assert str(empty) == ""


def test_in_words_the_answer_comes_first() -> None:
    analysis = analyse(embedded_study())
    advice = "\n".join(map(str, analysis.recommendations))
    assert str(analysis) == "\n".join([advice, *map(str, analysis.verdicts)])
    assert str(Verdict(claim="c", holds=False, evidence="e")) == "does not hold: c (e)"
    open_ = Verdict(claim="c", holds=None, evidence="e", remedy="run more seeds")
    assert str(open_) == "not determined: c (e; to decide it, run more seeds)"


def test_equal_results_give_equal_findings() -> None:
    first, second = (analyse(embedded_study()) for _ in range(2))
    assert first.regimes == second.regimes
    assert first.verdicts == second.verdicts


def test_a_study_may_hold_results_of_others() -> None:
    study = make_study(make_plan())
    more = StudyResults(plan=study.plan, by_key={**study.by_key, **make_study(make_plan(l2=0.5)).by_key})
    assert analyse(more).counts == analyse(study).counts


def test_regimes_and_recommendations_can_be_had_alone() -> None:
    study = embedded_study()
    analysis = analyse(study)
    assert regimes(study) == analysis.regimes
    assert recommend(study) == list(analysis.recommendations)
    with pytest.raises(UserError, match="no batch size has a stable optimum yet; finish the sweep"):
        recommend(make_study(make_plan(), give=lambda *_: None))
