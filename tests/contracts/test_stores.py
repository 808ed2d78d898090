"""What every store promises, however it is opened."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers_protocol import diverged, failed, finished, full_result, make_plan, make_spec, stored
from isotherm.core.records import CurvePoint, Outcome, RunResult
from isotherm.errors import StoreError
from isotherm.running.store import Store, StoredRun
from isotherm.sweep.plan import StudyPlan


def _in_file(folder: Path) -> Store:
    return Store.write(folder / "store.sqlite")


def _in_memory(_folder: Path) -> Store:
    return Store.in_memory()


@pytest.fixture(params=[_in_file, _in_memory], ids=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opener: Callable[[Path], Store] = request.param
    with opener(tmp_path) as opened:
        yield opened


def test_new_store_is_empty(store: Store) -> None:
    assert store.results() == {}
    assert list(store.runs()) == []
    assert store.studies() == {}
    assert store.counts() == dict.fromkeys(Outcome, 0)


@pytest.mark.parametrize(
    "result",
    [
        full_result(),
        RunResult(outcome=Outcome.FINISHED),  # every quantity None, no curve
        RunResult(
            outcome=Outcome.DIVERGED, divergence_step=0, curve=(CurvePoint(step=1, test_loss=2.5, test_metric=0.0),)
        ),
        RunResult(outcome=Outcome.FAILED, error='RuntimeError: "quotes", a\nline break and ε'),
        finished(math.inf, test_loss=-math.inf, train_loss=5e-324, last_batch_loss=0.1 + 0.2),
    ],
    ids=["full", "none", "diverged", "failed", "extreme"],
)
def test_run_comes_back_as_it_was_put(store: Store, result: RunResult) -> None:
    provenance = {"device": "cpu: ε", "fleet_size": 3, "seconds_per_run": 0.25}
    run = StoredRun(spec=make_spec(effective_learning_rate=0.1, momentum=1 / 3), result=result, provenance=provenance)
    store.put([run])
    assert list(store.runs()) == [run]
    assert store.results() == {run.spec.key: result}
    (again,) = store.runs()
    assert again.spec.key == run.spec.key
    assert type(again.result.outcome) is Outcome


def test_every_field_of_a_result_is_kept() -> None:
    """The case `full` above has a value for every field that a finished run can have."""
    unset = {f.name for f in dataclasses.fields(RunResult) if getattr(full_result(), f.name) in (None, ())}
    assert unset == {"divergence_step", "error"}


def test_nan_comes_back_as_nan(store: Store) -> None:
    run = stored(finished(math.nan))
    store.put([run])
    assert math.isnan(store.results()[run.spec.key].quantity("test_metric"))


def test_nothing_put_is_nothing_stored(store: Store) -> None:
    store.put([])
    assert store.results() == {}


def test_batch_with_a_row_that_the_database_refuses_leaves_nothing(store: Store) -> None:
    store.put([stored(seed=0)])
    # A run without a task breaks NOT NULL, after the rows before it have been inserted.
    with pytest.raises(StoreError, match="NOT NULL"):
        store.put([stored(seed=1), stored(seed=2), stored(seed=3, task=None), stored(seed=4)])
    assert [run.spec.seed for run in store.runs()] == [0]
    store.put([stored(seed=1)])
    assert [run.spec.seed for run in store.runs()] == [0, 1]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (StoredRun(spec=make_spec(seed=9), result=full_result(), provenance={"device": object()}), TypeError),
        (stored(seed=9, l2=math.nan), ValueError),
    ],
    ids=["provenance", "spec"],
)
def test_batch_with_a_run_that_is_no_json_leaves_nothing(store: Store, bad: StoredRun, error: type[Exception]) -> None:
    with pytest.raises(error):
        store.put([stored(seed=1), bad])
    assert store.results() == {}
    store.put([stored(seed=1)])
    assert len(store.results()) == 1


class Interrupting(int):
    """A whole number that presses Ctrl-C when SQLite takes it."""

    def __conform__(self, _protocol: object) -> int:
        raise KeyboardInterrupt


def test_batch_interrupted_half_way_leaves_nothing(store: Store) -> None:
    store.put([stored(seed=0)])
    with pytest.raises(KeyboardInterrupt):
        store.put([stored(seed=1), stored(seed=2), stored(seed=Interrupting(3)), stored(seed=4)])
    assert [run.spec.seed for run in store.runs()] == [0]
    store.put([stored(seed=1)])
    assert [run.spec.seed for run in store.runs()] == [0, 1]


@pytest.mark.parametrize("first", [finished(0.5), diverged()], ids=["finished", "diverged"])
@pytest.mark.parametrize("second", [finished(0.9), diverged(), failed()], ids=["finished", "diverged", "failed"])
def test_run_that_ended_is_never_overwritten(store: Store, first: RunResult, second: RunResult) -> None:
    kept = StoredRun(spec=make_spec(), result=first, provenance={"try": 1})
    store.put([kept])
    store.put([StoredRun(spec=make_spec(), result=second, provenance={"try": 2}), stored(seed=5)])
    assert next(store.runs()) == kept
    assert len(store.results()) == 2  # the rest of the batch is there


@pytest.mark.parametrize("second", [finished(0.9), diverged(), failed()], ids=["finished", "diverged", "failed"])
def test_failed_run_is_overwritten(store: Store, second: RunResult) -> None:
    store.put([StoredRun(spec=make_spec(), result=failed(), provenance={"try": 1})])
    again = StoredRun(spec=make_spec(), result=second, provenance={"try": 2})
    store.put([again])
    assert list(store.runs()) == [again]
    assert store.counts()[second.outcome] == 1
    assert sum(store.counts().values()) == 1


def test_first_of_two_equal_runs_in_a_batch_stays(store: Store) -> None:
    store.put([stored(finished(0.5)), stored(finished(0.9))])
    assert [r.test_metric for r in store.results().values()] == [0.5]


def test_outcomes_are_counted_apart(store: Store) -> None:
    results = [finished(), finished(), finished(), diverged(), diverged(), failed()]
    store.put([stored(result, seed=seed) for seed, result in enumerate(results)])
    assert store.counts() == {Outcome.FINISHED: 3, Outcome.DIVERGED: 2, Outcome.FAILED: 1}


def test_runs_come_in_a_fixed_order(store: Store) -> None:
    expected = [
        stored(task=task, batch_size=batch_size, num_steps=steps, momentum=m, effective_learning_rate=rate, seed=seed)
        for task in ("a", "b")
        for batch_size in (8, 16, 128)  # by value, not as text
        for steps in (9, 10)
        for m in (0.0, 0.9)
        for rate in (0.25, 3.0, 10.0)
        for seed in (2, 10)
    ]
    shuffled = random.Random(0).sample(expected, len(expected))
    # The task's name is no part of the key: make the runs of the two tasks differ.
    shuffled = [dataclasses.replace(r, spec=dataclasses.replace(r.spec, data_id=r.spec.task)) for r in shuffled]
    for start in range(0, len(shuffled), 7):
        store.put(shuffled[start : start + 7])
    assert [(r.spec.task, *_place(r)) for r in store.runs()] == [(r.spec.task, *_place(r)) for r in expected]


def _place(run: StoredRun) -> tuple[float, ...]:
    spec = run.spec
    return spec.batch_size, spec.num_steps, spec.momentum, spec.effective_learning_rate, spec.seed


def test_studies_come_back(store: Store) -> None:
    plans = [
        StudyPlan(name="zwei ε", question="why?", sweeps=(make_plan(), make_plan(tune_on="train"))),
        StudyPlan(name="eins", question="", sweeps=(make_plan(num_kept=1),)),
    ]
    for plan in plans:
        store.put_study(plan.name, plan.to_json())
    assert [StudyPlan.from_json(content) for content in store.studies().values()] == plans
    assert list(store.studies()) == ["zwei ε", "eins"]


def test_study_put_again_replaces_its_definition(store: Store) -> None:
    store.put_study("one", {"value": 1})
    store.put_study("one", {"value": 2})
    assert store.studies() == {"one": {"value": 2}}
    assert store.results() == {}


def test_closed_store_says_so(store: Store) -> None:
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.put([stored()])
    store.close()  # once more does no harm
