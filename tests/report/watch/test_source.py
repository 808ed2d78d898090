"""A store read again and again."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from helpers_report import failed
from helpers_watch import make_store, put, small_plan, study_of
from isotherm.errors import StoreError, UserError
from isotherm.report.watch.source import Reading, StoreSource
from isotherm.running.heartbeat import Heartbeat
from isotherm.running.store import Store


def read(source: StoreSource) -> Reading:
    reading = source.read()
    assert reading is not None
    return reading


def test_the_first_reading_has_everything_and_the_next_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    left = make_store(path, num=20)
    source = StoreSource(path)
    first = read(source)
    assert len(first.results.by_key) == 20
    assert source.read() is None
    put(path, left[:3])
    second = read(source)
    assert second.results.plan is first.results.plan
    assert len(second.results.by_key) == 23
    assert len(first.results.by_key) == 20
    with Store.read(path) as store:  # a reader writes nothing
        store.results()
    assert source.read() is None
    source.close()


def test_a_failed_run_that_is_tried_again_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    left = make_store(path, num=5)
    put(path, left[:1], lambda _: failed())
    source = StoreSource(path)
    assert read(source).results.by_key[left[0].key].error == "out of memory"
    put(path, left[:1], lambda _: failed("another reason"))
    reading = read(source)
    assert reading.results.by_key[left[0].key].error == "another reason"
    put(path, left[:1])
    assert read(source).results.by_key[left[0].key].error is None
    source.close()


def test_full_results_are_read_in_any_thread(tmp_path: Path) -> None:
    make_store(tmp_path / "a.sqlite", num=5)
    source = StoreSource(tmp_path / "a.sqlite")
    results = read(source).results.by_key
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: [result.curve for result in results.values()]).result()
    assert len(found) == 5
    assert all(found)
    source.close()


def test_a_store_that_is_replaced_is_read_anew(tmp_path: Path) -> None:
    path, other = tmp_path / "a.sqlite", tmp_path / "b.sqlite"
    make_store(path, num=20)
    make_store(other, num=7)
    source = StoreSource(path)
    read(source)
    os.replace(other, path)
    reading = read(source)
    assert len(reading.results.by_key) == 7
    source.close()


def test_a_study_that_is_redefined_is_a_new_plan(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    make_store(path, num=20)
    source = StoreSource(path)
    read(source)
    with Store.write(path) as store:
        store.put_study("small", study_of(small_plan(batch_sizes=(8,))).to_json())
    reading = read(source)
    assert reading.results.plan.sweeps[0].batch_sizes == (8,)
    source.close()


def test_the_study_run_last_is_shown_or_the_one_named(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    make_store(path, name="first", num=2)
    make_store(path, name="second", num=2)
    chosen, named = StoreSource(path), StoreSource(path, study="first")
    assert read(chosen).results.plan.name == "second"
    assert read(named).results.plan.name == "first"
    assert read(StoreSource(path)).studies == ("first", "second")
    chosen.close()
    named.close()


def test_what_cannot_be_shown_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with pytest.raises(StoreError, match="no store at"):
        StoreSource(path).check()
    with Store.write(path):
        pass
    with pytest.raises(UserError, match="holds no study yet"):
        StoreSource(path).check()
    make_store(path, num=1)
    StoreSource(path).check()
    with pytest.raises(UserError, match="holds no study 'smal'; did you mean 'small'"):
        StoreSource(path, study="smal").check()


def test_what_is_in_training_comes_from_the_file_beside_the_store(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    left = make_store(path, num=5)
    source = StoreSource(path)
    assert source.training() is None
    with Heartbeat(path, seconds=0.0) as beat:
        beat.fleet_started(left[:4])
        training = source.training()
    assert training is not None
    assert len(training.running) == 4
