"""A store of 20,000 runs: what is computed and asked for does not grow with every look at it."""

from __future__ import annotations

import hashlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from helpers_protocol import diverged, finished, make_plan
from isotherm.analysis.series import tuned_grids
from isotherm.core import run_keys
from isotherm.core.records import RunResult, RunSpec
from isotherm.core.run_table import RunTable
from isotherm.running import stored
from isotherm.running.store import Store, StoredRun
from isotherm.running.stored import open_results
from isotherm.sweep.plan import StudyPlan, SweepPlan
from isotherm.sweep.results import StudyResults

NUM_SEEDS, BATCH_SIZES, RATES = 1_000, (16, 32), tuple(2.0**k for k in range(-5, 5))
NUM_CELLS = len(BATCH_SIZES) * len(RATES)
LEFT_OUT = 7
PLAN = make_plan(
    batch_sizes=BATCH_SIZES, rates=RATES, seeds=tuple(range(NUM_SEEDS)), num_kept=NUM_SEEDS, max_extensions=0
)


def result_of(spec: RunSpec) -> RunResult:
    if spec.effective_learning_rate >= 8:
        return diverged()
    return finished(0.5 - 0.01 * abs(spec.effective_learning_rate - 1) + spec.seed * 1e-6, train_loss=0.5)


def other_plan(seeds: int) -> SweepPlan:
    return make_plan(name="other", data_id="others", seeds=tuple(range(seeds)), num_kept=seeds, max_extensions=0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store of two studies, the first of which lacks a few runs."""
    file = tmp_path_factory.mktemp("scale") / "store.sqlite"
    with Store.write(file) as store:
        for plan in (PLAN, other_plan(2)):
            specs = StudyResults(plan=study(plan), by_key={}).next_round()
            assert specs is not None
            runs = [StoredRun(spec=spec, result=result_of(spec), provenance={"fleet_size": 4}) for spec in specs.specs]
            for start in range(0, len(runs), 5_000):
                store.put(runs[start : min(start + 5_000, len(runs) - LEFT_OUT)])
            store.put_study(plan.name, study(plan).to_json())
    return file


def study(plan: SweepPlan) -> StudyPlan:
    return StudyPlan(name=plan.name, question="", sweeps=(plan,))


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count keys of single runs, cells hashed, results made one by one, and queries."""
    found: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            found[name] += 1
            return function(*args, **kwargs)

        return call

    class Opened(Store):
        def __init__(self, connection: sqlite3.Connection, **kwargs: Any) -> None:
            connection.set_trace_callback(lambda _query: found.update(queries=1))
            super().__init__(connection, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(RunSpec, "key", property(counting("keys", lambda spec: hashlib.sha256(b"").hexdigest())))
        patch.setattr(run_keys, "canonical_json", counting("cells", run_keys.canonical_json))
        patch.setattr(RunResult, "from_json", counting("results", RunResult.from_json))
        patch.setattr(RunTable, "load", counting("loads", RunTable.load))
        patch.setattr(stored, "Store", Opened)
        yield found


def test_status_hashes_cells_and_makes_no_result(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with counted(monkeypatch) as found:
        counts = open_results(path, study="plan").counts()
    assert counts == {"finished": 16_000, "diverged": 4_000 - LEFT_OUT, "failed": 0, "missing": LEFT_OUT}
    assert found["keys"] == found["results"] == found["loads"] == 0
    assert found["cells"] <= 2 * NUM_CELLS + 2
    assert found["queries"] <= 15


def test_what_is_missing_is_found_without_the_keys_of_the_rest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with counted(monkeypatch) as found:
        results = open_results(path, study="plan")
        for _ in range(3):
            round_ = results.next_round()
    assert round_ is not None
    assert len(round_.specs) == LEFT_OUT
    assert found["keys"] == found["results"] == found["loads"] == 0
    assert found["cells"] <= 3 * (NUM_CELLS + 2) + NUM_CELLS


def test_grids_are_analysed_from_arrays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with counted(monkeypatch) as found:
        results = open_results(path, study="plan")
        for _ in range(5):
            grids = tuned_grids(results.sweeps[0])
    assert [grid.rate for grid in grids] == [1.0, 1.0]
    assert found["keys"] == found["results"] == found["loads"] == 0
    assert found["cells"] <= NUM_CELLS + 2


def test_of_a_store_what_a_study_asks_for_is_read(path: Path) -> None:
    with Store.read(path) as store:
        everything = len(store.table())
    results = open_results(path, study="other")
    assert everything == NUM_SEEDS * NUM_CELLS - LEFT_OUT + 10 - LEFT_OUT
    assert len(results.by_key) == 10 - LEFT_OUT


def test_what_comes_from_arrays_is_what_comes_from_results(path: Path) -> None:
    """The slow way, an object for every run, is the definition."""
    fast = open_results(path, study="plan")
    with Store.read(path) as store:
        slow = StudyResults(plan=fast.plan, by_key=store.results())
    assert fast.counts() == slow.counts()
    assert [spec.key for spec in fast.next_round().specs] == [spec.key for spec in slow.next_round().specs]  # type: ignore[union-attr]
    for one, other in zip(tuned_grids(fast.sweeps[0]), tuned_grids(slow.sweeps[0]), strict=True):
        assert (one.optimum, one.test, one.edge, one.train_loss) == (
            other.optimum,
            other.test,
            other.edge,
            other.train_loss,
        )
