from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import statistics_runs
from families import coverage_families
from statistics_runs import Limits, key_of, method_of, ordered_jobs, pooled, read_lines, simulate

Job = dict[str, Any]
BOTH = ("coverage", "verdicts")


class Inline:
    """A pool that computes at once, until it has done so many jobs."""

    clock = 0.0

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, function: Callable[[Job], Job], job: Job) -> Future[Job]:
        Inline.clock += 1.0
        future: Future[Job] = Future()
        future.set_result({**job, "seconds": 1.0})
        return future


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics_runs, "ProcessPoolExecutor", Inline)
    monkeypatch.setattr(statistics_runs.time, "monotonic", lambda: Inline.clock)
    monkeypatch.setattr(statistics_runs, "ONE_THREAD", ())


def test_a_second_call_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    first = simulate(path, part=0, kinds=BOTH, limits=Limits(processes=2, seconds=5))
    assert first == len(read_lines(path)) == 5
    second = simulate(path, part=0, kinds=BOTH, limits=Limits(processes=3, seconds=4))
    keys = [key_of(line) for line in read_lines(path)]
    assert len(set(keys)) == len(keys) == first + second
    assert set(keys) == {key_of(job) for job in itertools.islice(ordered_jobs(0, BOTH), len(keys))}


def test_what_was_simulated_with_another_method_is_done_again_and_not_pooled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, limits = tmp_path / "lines.jsonl", Limits(processes=1, seconds=3)
    simulate(path, part=0, kinds=["coverage"], limits=limits)
    assert len(pooled([path, path])) == 3
    monkeypatch.setattr(statistics_runs, "method_of", lambda _: "another")
    assert simulate(path, part=0, kinds=["coverage"], limits=limits) == 3
    assert len({key_of(line) for line in read_lines(path)}) == 3
    with pytest.raises(ValueError, match="method"):
        pooled([path])


def test_a_line_that_was_cut_off_is_simulated_again(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    simulate(path, part=0, kinds=BOTH, limits=Limits(processes=1, seconds=3))
    path.write_text(path.read_text()[:-20])
    simulate(path, part=0, kinds=BOTH, limits=Limits(processes=1, seconds=1))
    assert [json.loads(line)["seconds"] for line in path.read_text().splitlines()] == [1.0] * 3


def test_every_block_holds_every_family_equally_often() -> None:
    families = {family.name for family in coverage_families()}
    jobs = list(itertools.islice(ordered_jobs(0, ["coverage"]), 2 * len(families)))
    counts = Counter(job["family"] for job in jobs[: len(families)])
    assert set(counts) == families
    assert set(counts.values()) == {1}
    assert [job["family"] for job in jobs[: len(families)]] != [job["family"] for job in jobs[len(families) :]]


def test_parts_share_no_seeds() -> None:
    seeds = [{job["seed"] for job in itertools.islice(ordered_jobs(part, BOTH), 300)} for part in (0, 1)]
    assert len(seeds[0]) == 300
    assert not seeds[0] & seeds[1]


def test_a_method_is_its_code_without_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for source in ('"""One."""\nx = "#"  # a\n', '"""Other\nwords."""\n\nx = "#"\n', 'x = "##"\n'):
        (tmp_path / "a.py").write_text(source)
        monkeypatch.setattr(statistics_runs, "ROOT", tmp_path)
        monkeypatch.setattr(statistics_runs, "_FILES", {"coverage": ("a.py",)})
        found.append(method_of("coverage"))
    assert found[0] == found[1] != found[2]
