"""A table of the paper beside our runs."""

from __future__ import annotations

from typing import Any

import pytest

from pages.paper import TABLE_6, TABLE_7
from pages.paper_block import kept, rows_of, trend


def run_of(size: int, rate: float, test: float | None, train: float | None = 1.0) -> dict[str, Any]:
    spec = {"batch_size": size, "effective_learning_rate": rate}
    return {"spec": spec, "result": {"test_metric": test, "train_metric": train}}


def test_the_best_five_of_seven_are_those_with_the_lowest_test_error() -> None:
    results = [{"test_metric": float(k), "train_metric": 10.0 * k} for k in (7, 3, 1, 2, 5, 6, 4)]
    assert kept(TABLE_7, results, "test_metric") == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert kept(TABLE_7, results, "train_metric") == [10.0, 20.0, 30.0, 40.0, 50.0]


def test_a_batch_size_without_runs_is_said_to_be_so() -> None:
    ((size, _, test, *_),) = rows_of(TABLE_7, 4096, [run_of(64, 0.08, 1.0)])
    assert (size, test) == ("4,096", "not run")


@pytest.mark.parametrize("table", [TABLE_6, TABLE_7])
def test_a_row_without_runs_is_as_long_as_one_with_runs(table: Any) -> None:
    runs = [run_of(64, table.rates[64][0], float(seed)) for seed in range(table.num_seeds)]
    assert len(rows_of(table, 64, [])[0]) == len(rows_of(table, 64, runs)[0])


def test_the_best_learning_rate_is_bold_and_the_papers_has_the_published_values() -> None:
    runs = [run_of(64, rate, test + seed) for rate, test in ((2.0, 5.0), (2.8, 7.0), (4.0, 8.0)) for seed in range(5)]
    best, published, _ = rows_of(TABLE_6, 64, runs)
    assert best == ("64", "2", "**7.00 ± 1.58**", "1.00 ± 0.00", "", "")
    assert published == ("64", "2.8", "9.00 ± 1.58", "1.00 ± 0.00", "81.67 ± 0.26", "23.25 ± 0.05")


def test_a_cell_with_diverged_runs_says_so_and_is_not_the_best() -> None:
    wild = [run_of(64, 4.0, None if seed < 2 else 0.1, None) for seed in range(5)]
    steady = [run_of(64, rate, 5.0 + rate + seed) for rate in (2.0, 2.8) for seed in range(5)]
    first, published, second = rows_of(TABLE_6, 64, [*wild, *steady])
    assert first[2] == "**9.00 ± 1.58**"
    assert published[2] == "9.80 ± 1.58"
    assert second[2] == "2 of 5 without a number"


def test_nothing_is_the_best_while_learning_rates_are_missing() -> None:
    first, published = rows_of(TABLE_6, 64, [run_of(64, 2.0, 5.0 + seed) for seed in range(5)])
    assert (first[2], published[2]) == ("7.00 ± 1.58", "not run")


def test_a_cell_with_fewer_runs_says_how_many_and_the_papers_rate_stays() -> None:
    first, second = rows_of(TABLE_7, 4096, [run_of(4096, 0.16, float(k), 2.0) for k in (1, 3)])
    assert first == ("4,096", "0.08", "not run", "–", "–", "2.98 ± 0.01", "2.018 ± 0.008")
    assert second == ("4,096", "0.16", "–", "2.000 ± 1.414 (2 runs)", "2.000 ± 0.000 (2 runs)", "", "")


def test_the_trend_is_paired_by_seed_and_leaves_out_cells_with_too_few_runs() -> None:
    def seeds(size: int, first: float, num: int = 7) -> list[dict[str, Any]]:
        runs = [run_of(size, 0.08, first + seed, 2.0 * first) for seed in range(num)]
        return [{**run, "spec": {**run["spec"], "seed": seed}} for seed, run in enumerate(runs)]

    runs = [*seeds(64, 3.0), *reversed(seeds(256, 2.5)), *seeds(1024, 1.0, num=6), *seeds(4096, 3.5)]
    steps = trend(TABLE_7, runs).partition("interval: ")[2]
    assert steps == (
        "from B = 64 to 256 test −0.500 [−0.500, −0.500], train −1.000 [−1.000, −1.000]; "
        "from B = 256 to 4,096 test +1.000 [+1.000, +1.000], train +2.000 [+2.000, +2.000]."
    )
    assert not trend(TABLE_7, seeds(64, 3.0))
