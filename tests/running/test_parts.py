"""Parts of a study: disjoint, complete, and merged to what one process would have run, in adaptive rounds too."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from helpers_protocol import Recorder, tiny_sweep
from isotherm.core.rates import powers_of_two
from isotherm.core.records import Outcome, RunResult
from isotherm.errors import StoreError, UserError
from isotherm.running.merge import merge_stores
from isotherm.running.parts import Part
from isotherm.running.runner import run
from isotherm.running.store import Store, StoredRun
from isotherm.sweep.rounds import missing_runs
from isotherm.sweep.sweep import Sweep


def results_of(path: Path) -> dict[str, RunResult]:
    with Store.read(path) as store:
        return store.results()


def adaptive_sweep() -> Sweep:
    """Return a sweep whose grids are extended and then refined: three rounds or more."""
    return tiny_sweep(
        batch_sizes=[4, 8],
        effective_learning_rates=powers_of_two(-6, -4),
        max_extensions=2,
        resolution="adaptive",
        num_kept=1,
    )


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_run_belongs_to_one_part(count: int) -> None:
    keys = [spec.key for spec in missing_runs([adaptive_sweep().plan()], {})]
    parts = [Part(number, count) for number in range(1, count + 1)]
    assert all(sum(part.has(key) for part in parts) == 1 for key in keys)


def test_parts_and_merges_end_where_one_process_does(tmp_path: Path) -> None:
    """Each part runs its share of a round; all are merged; and again, until nothing is missing."""
    sweep, merged = adaptive_sweep(), tmp_path / "merged.sqlite"
    stores = [tmp_path / f"part-{number}.sqlite" for number in (1, 2, 3)]
    rounds: set[int] = set()
    trained: list[str] = []
    for _ in range(20):
        before = len(trained)
        for number, store in enumerate(stores, start=1):
            recorder = Recorder()
            known = [merged] if merged.exists() else []
            run(sweep, store=store, part=Part(number, 3), known=known, progress=recorder, fleet_size=1)
            rounds |= {round_ for round_, _ in recorder.rounds}
            trained += [spec.key for spec in recorder.specs]
        if len(trained) == before:
            break
        merge_stores(stores, merged)
    assert len(set(trained)) == len(trained), "no run was trained twice"
    assert len(rounds) >= 3
    whole = run(sweep, fleet_size=1)
    assert results_of(merged) == dict(whole.by_key)
    with Store.read(merged) as store:
        assert list(store.studies()) == ["sweep"]
        assert store.num_unidentified() == 0


@pytest.mark.parametrize("text", ["", "3", "a/b", "1/2/3", "-1/2", "1.5/2"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"give e\.g\. 2/8"):
        Part.parse(text)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1/0"])
def test_parts_that_do_not_exist_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="does not exist"):
        Part.parse(text)


# -- merging --------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "one.sqlite"
    run(tiny_sweep(), store=path)
    return path


def changed(path: Path, source: Path, **changes: object) -> Path:
    """Write a store like another one whose first run has another result."""
    with Store.read(source) as store:
        first, *others = store.runs()
        studies = store.studies()
    result = dataclasses.replace(first.result, **changes)
    with Store.write(path) as store:
        store.put([StoredRun(spec=first.spec, result=result, provenance=first.provenance), *others])
        for name, definition in studies.items():
            store.put_study(name, definition)
    return path


def test_the_same_run_twice_is_one_run(store: Path, tmp_path: Path) -> None:
    into = tmp_path / "all.sqlite"
    (first,) = merge_stores([store], into)
    assert (first.num_new, first.num_same) == (6, 0)
    (again,) = merge_stores([store], into)
    assert (again.num_new, again.num_same) == (0, 6)
    assert results_of(into) == results_of(store)


def test_other_numbers_under_one_key_are_refused_and_nothing_is_written(store: Path, tmp_path: Path) -> None:
    other = changed(tmp_path / "other.sqlite", store, test_loss=0.123)
    into = tmp_path / "all.sqlite"
    with pytest.raises(StoreError, match=r"test_loss is 0\.\d+ in .*one\.sqlite.* and 0\.123 in .*other\.sqlite"):
        merge_stores([store, other], into)
    assert not into.exists()


def test_a_failed_run_that_is_done_elsewhere_is_done(store: Path, tmp_path: Path) -> None:
    failed: dict[str, object] = {field.name: None for field in dataclasses.fields(RunResult) if field.default is None}
    other = changed(
        tmp_path / "other.sqlite", store, **{**failed, "outcome": Outcome.FAILED, "curve": (), "error": "x"}
    )
    for number, sources in enumerate(([other, store], [store, other])):
        into = tmp_path / f"all-{number}.sqlite"
        merged = merge_stores(sources, into)
        assert results_of(into) == results_of(store)
        assert sum(one.num_replaced for one in merged) == (1 if number == 0 else 0)


def test_other_studies_of_one_name_are_refused(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    run(tiny_sweep(batch_sizes=[4]), store=other)
    with pytest.raises(StoreError, match="different studies of the name 'sweep'"):
        merge_stores([store, other], tmp_path / "all.sqlite")


def test_a_store_is_not_merged_into_itself(store: Path) -> None:
    with pytest.raises(StoreError, match="is one of the stores to merge"):
        merge_stores([store], store)
