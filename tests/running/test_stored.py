"""Results read from a store, without running anything."""

from __future__ import annotations

from pathlib import Path

import pytest

import isotherm as it
from helpers_report import make_plan, make_study
from isotherm.errors import StoreError, UserError
from isotherm.running.store import Store, StoredRun
from isotherm.running.stored import open_results, stored_studies
from isotherm.sweep.results import StudyResults
from isotherm.sweep.rounds import all_runs

SMALL = make_plan(batch_sizes=(8,))


def put(path: Path, *studies: StudyResults) -> Path:
    with Store.write(path) as store:
        for study in studies:
            store.put_study(study.plan.name, study.plan.to_json())
            specs = all_runs(study.plan.sweeps, study.by_key)
            store.put(
                [StoredRun(spec=specs[key], result=result, provenance={}) for key, result in study.by_key.items()]
            )
    return path


def test_what_was_stored_comes_back(tmp_path: Path) -> None:
    study = make_study(SMALL, name="one")
    path = put(tmp_path / "mine.sqlite", study)
    for results in (open_results(path), open_results(str(path)), it.open_results(path, study="one")):
        assert results.plan == study.plan
        assert results.by_key == study.by_key
    with Store.read(path) as store:
        assert open_results(store).by_key == study.by_key
        assert store.studies()  # still open


def test_python_can_do_what_the_report_command_does(tmp_path: Path) -> None:
    path = put(tmp_path / "mine.sqlite", make_study(SMALL, name="one"))
    analysis = it.analyse(it.open_results(path))
    files = it.write_report(analysis, tmp_path / "report")
    assert files.page.read_text().startswith("<!DOCTYPE html>")
    assert analysis.counts["finished"] == 25


def test_of_several_studies_one_is_to_be_named(tmp_path: Path) -> None:
    other = make_study(make_plan(batch_sizes=(8,), l2=0.5), name="other")
    path = put(tmp_path / "mine.sqlite", make_study(SMALL, name="one"), other)
    with pytest.raises(UserError, match=r"holds 2 studies: 'one', 'other'; choose one with study='one'"):
        open_results(path)
    assert open_results(path, study="other").plan == other.plan
    with pytest.raises(UserError, match=r"holds no study 'others'; did you mean 'other'"):
        open_results(path, study="others")
    assert [results.plan.name for results in stored_studies(path)] == ["one", "other"]


def test_a_store_without_a_study_and_no_store_at_all_are_said_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no study yet"):
        open_results(put(tmp_path / "empty.sqlite"))
    with pytest.raises(StoreError, match="there is no store"):
        open_results(tmp_path / "nowhere.sqlite")
