"""The suite of known answers: how a diagnosis is scored, and the table of the page."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import diagnose_suite
from helpers_diagnosis import make_diagnosis
from known_answers.reference import _closed_form, _peak
from known_answers.scoring import is_right, is_wrong, lost, octaves_off, scored
from known_answers.tasks import CASES, quadratic
from pages.results import ROOT, load

BEST = {
    "momentum": 0.0,
    "batch_size": 32,
    "rate": 2.0,
    "low": 1.8,
    "high": 2.2,
    "value": 0.8,
    "rates": [1.0, 2.0, 4.0],
    "means": [0.7, 0.8, None],
}


def test_a_diagnosis_is_scored_at_its_recommended_batch_sizes() -> None:
    """It recommends B = 32 without momentum and 128 with it, where the sweep has 64 at most."""
    heavy = {**BEST, "momentum": 0.9, "batch_size": 64}
    plain, other = scored(make_diagnosis(), [BEST, heavy])
    assert (plain["batch_size"], plain["rate"], plain["octaves"], plain["covers"]) == (32, 1.0, -1.0, False)
    assert plain["lost"] == pytest.approx(0.1)
    assert (other["recommended"], other["batch_size"], other["rate"], other["octaves"]) == (128, 64, 2.0, 0.0)
    assert is_right([plain, other])
    assert not is_right([plain])


def test_confidently_wrong_is_off_and_not_covered() -> None:
    def row(octaves: float, covers: bool) -> dict[str, Any]:
        return {"octaves": octaves, "covers": covers}

    assert is_wrong([row(0.0, True), row(1.1, False)])
    assert not is_wrong([row(0.9, False), row(1.1, True)])
    assert not is_wrong([])


def test_any_of_the_learning_rates_tied_for_the_best_is_right() -> None:
    tied = {**BEST, "low": 0.5, "high": 8.0}
    assert [octaves_off(rate, tied) for rate in (0.25, 0.5, 4.0, 8.0, 32.0)] == [-1.0, 0.0, 0.0, 0.0, 2.0]
    assert octaves_off(4.0, BEST) == 1.0


def test_what_is_lost_beyond_the_sweep_is_unknown() -> None:
    assert lost(math.sqrt(2), BEST) == pytest.approx(0.05)
    assert lost(0.5, BEST) is None
    assert lost(3.0, BEST) is None


def test_the_quadratic_of_the_suite_is_the_closed_form() -> None:
    """Twice the batch doubles the best learning rate, as long as it is small."""
    small, large = (_closed_form(quadratic(), 1.0, size, 0.0).rate for size in (8, 16))
    assert large / small == pytest.approx(2.0, rel=0.1)


def test_a_peak_lies_between_learning_rates_and_ties_go_to_the_middle() -> None:
    import numpy as np

    x = np.arange(-2.0, 2.25, 0.5)
    assert _peak(x, -((x - 0.2) ** 2))[0] == pytest.approx(0.2)
    assert _peak(x, np.where(np.abs(x) <= 1, 1.0, 0.0)) == (0.0, 1.0)


def test_diagnoses_are_judged_again_by_a_sweep_that_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heavy = {**BEST, "momentum": 0.9}
    rows = [{"momentum": m, "batch_size": 32, "rate": 4.0, "low": 3.0, "high": 5.0} for m in (0.0, 0.9)]
    path = tmp_path / "suite.json"
    path.write_text(json.dumps({"cases": {"quickstart": {"sweep": {}, "rows": [{"seed": 1, "optimisers": rows}]}}}))
    for rate, right, wrong in ((2.0, True, False), (1.0, False, True), (4.0, True, False)):
        optima = [{**best, "rate": rate, "low": rate, "high": rate} for best in (BEST, heavy)]
        monkeypatch.setattr(diagnose_suite, "reference", lambda _, optima=optima: {"num_examples": 1, "optima": optima})
        diagnose_suite.judge_again(path, names=["quickstart"])
        (row,) = json.loads(path.read_text())["cases"]["quickstart"]["rows"]
        assert (row["seed"], row["is_right"], row["is_wrong"], row["covers"]) == (1, right, wrong, rate == 4.0)


def test_the_table_has_a_row_for_every_measured_case() -> None:
    def row(right: bool) -> dict[str, Any]:
        return {
            "is_answered": True,
            "is_right": right,
            "covers": True,
            "is_wrong": False,
            "part_of_sweep": 0.08,
            "optimisers": [{"octaves": 0.5 if right else 1.5}],
        }

    silent = {**row(False), "is_answered": False, "covers": False, "optimisers": []}
    cases = {"clipped MLP": {"rows": [row(True), row(False)]}, "random labels": {"rows": [silent]}}
    lines = diagnose_suite.block({"cases": cases}).splitlines()
    assert lines[2:] == [
        "| clipped MLP | 10 | 2 of 2 | 1 of 2 | 2 of 2 | 0 | 2.12 (2.83) | 8.0 % |",
        "| random labels | 10 | 0 of 1: right | – | – | 0 | – | 8.0 % |",
    ]
    assert {case.name for case in CASES} >= cases.keys()
    assert diagnose_suite.block(None) == "Not measured yet."


# Rows of the README's table, which is shorter than that of docs/diagnose.md, and the cases that each of them sums up.
README_ROWS = {
    "noisy quadratic": ["noisy quadratic"],
    "linear regression": ["linear regression"],
    "clipped MLP (√B)": ["clipped MLP"],
    "15 % label noise": ["label noise, 3 epochs", "label noise, 10 epochs", "label noise, 30 epochs"],
    "quickstart": ["quickstart"],
    "small CNN": ["small CNN"],
    "saturated metric": ["saturated"],
    "random labels": ["random labels"],
}


def measured() -> dict[str, Any]:
    content = load("diagnose_suite")
    assert content is not None
    cases: dict[str, Any] = content["cases"]
    return cases


def readme_cells(entries: list[dict[str, Any]]) -> list[str]:
    """Return what the README has to say of these cases, without the task's name."""
    counts = {name: [sum(row[name] for row in e["rows"]) for e in entries] for name in ("is_right", "covers")}
    numbers = [len(entry["rows"]) for entry in entries]
    wrong = sum(row["is_wrong"] for entry in entries for row in entry["rows"])
    silent = sum(not row["is_answered"] for entry in entries for row in entry["rows"])
    parts = [100 * statistics.mean(row["part_of_sweep"] for row in entry["rows"]) for entry in entries]
    epochs = ", ".join(f"{entry['epochs']:g}" for entry in entries)
    if len(entries) > 1:
        assert counts["is_right"] == counts["covers"] == numbers  # else the row has to say more
        part = f"{math.floor(min(parts))} to {math.ceil(max(parts))} %"
        return [epochs, f"{numbers[0]} of {numbers[0]} each", "all", str(wrong), part]
    (num,), (right,), (covers,), (part_of_sweep,) = numbers, counts["is_right"], counts["covers"], parts
    part = f"{part_of_sweep:.1f} %"
    if not entries[0]["is_answerable"]:
        return [epochs, f"no answer, rightly, in {silent} of {num}", "–", str(wrong), part]
    without = {0: "", 1: ", one without answer"}[silent]
    return [epochs, f"{right} of {num}{without}", f"{covers} of {num}", str(wrong), part]


def test_the_table_of_the_readme_says_what_was_measured() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith("| task | epochs | rate within a factor of 2"))
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in itertools.takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    ]
    cases = measured()
    assert {case for names in README_ROWS.values() for case in names} == cases.keys()
    expected = [[name, *readme_cells([cases[case] for case in names])] for name, names in README_ROWS.items()]
    assert rows == expected


def test_what_the_page_says_of_batch_sizes_and_stricter_counts_is_what_was_measured() -> None:
    """Numbers of docs/diagnose.md that stand in sentences."""
    page = " ".join((ROOT / "docs" / "diagnose.md").read_text().split())
    cases = measured()
    answers = {name: [o for row in case["rows"] for o in row["optimisers"]] for name, case in cases.items()}
    assert all(o["recommended"] == o["batch_size"] for found in answers.values() for o in found)
    assert "Every answer is judged at the batch size it recommends." in page
    assert {row["seed"] for case in cases.values() for row in case["rows"]} == set(range(220, 230))
    assert "The seeds, 220 to 229, are fresh" in page
    strict = {name: strictly_covered(case) for name, case in cases.items() if case["is_answerable"]}
    covered = {name: sum(row["covers"] for row in cases[name]["rows"]) for name in strict}
    assert {name: num for name, num in strict.items() if num != covered[name]} == {"saturated": 0}
    assert "all tasks but one have what the table says" in page
    assert "it does in none of ten" in page
    short, long = (best_rates(cases[f"label noise, {epochs} epochs"]) for epochs in (3, 30))
    ratios = {key: short[key] / long[key] for key in short}
    assert f"{min(ratios.values()):.0f} to {max(ratios.values()):.0f} times lower than 3" in page
    assert f"({ratios[0.0, 8]:.0f} times with plain SGD at B = 8)" in page


def test_what_the_pages_say_of_plain_sgd_on_the_cnn_is_what_was_measured() -> None:
    """How far off its learning rates are, and what they cost in points of accuracy."""
    page, readme = (" ".join((ROOT / name).read_text().split()) for name in ("docs/diagnose.md", "README.md"))
    cases = measured()
    rates = best_rates(cases["small CNN"])
    part = {size: rates[0.0, size] / rates[0.9, size] for size in (32, 64)}
    assert (
        f"on the small CNN {part[32]:.2f} times as much as momentum at B = 32 and {part[64]:.2f} times at B = 64"
        in page
    )
    quadratic = best_rates(cases["noisy quadratic"])
    assert all(quadratic[0.0, size] > quadratic[0.9, size] for size in (64, 128, 256))
    plain, heavy = (
        [o for row in cases["small CNN"]["rows"] for o in row["optimisers"] if o["momentum"] == m] for m in (0.0, 0.9)
    )
    assert len(plain) == len(heavy) == 10
    factors = [2 ** o["octaves"] for o in plain]
    assert f"SGD's answer is {min(factors):.1f} to {max(factors):.1f} times the best learning rate" in page
    *others, worst = sorted(plain, key=lambda o: o["lost"])
    assert f"in nine of ten seeds at a cost of at most {100 * others[-1]['lost']:.1f} points of accuracy" in page
    cost, factor = 100 * worst["lost"], 2 ** worst["octaves"]
    assert f"in one, at B = {worst['batch_size']}, {factor:.1f} times, where it costs {cost:.1f}." in page
    assert f"cost at most {100 * max(o['lost'] for o in heavy):.1f} points" in page
    total = sum(len(row["optimisers"]) for case in cases.values() for row in case["rows"])
    assert (
        f"one answer of {total}, for plain SGD on the CNN, is {factor:.1f} times too high and costs {cost:.0f} points"
        in readme
    )


def best_rates(case: dict[str, Any]) -> dict[tuple[float, int], float]:
    return {(best["momentum"], best["batch_size"]): best["rate"] for best in case["sweep"]["optima"]}


def strictly_covered(case: dict[str, Any]) -> int:
    """Return how many diagnoses have the sweep's optimum itself inside the intervals of both optimisers."""
    rates = best_rates(case)
    return sum(
        len(row["optimisers"]) == 2
        and all(o["low"] <= rates[o["momentum"], o["batch_size"]] <= o["high"] for o in row["optimisers"])
        for row in case["rows"]
    )


class Inline:
    """A pool that computes at once."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, function: Callable[..., dict[str, Any]], *arguments: object) -> Future[dict[str, Any]]:
        future: Future[dict[str, Any]] = Future()
        future.set_result(function(*arguments))
        return future


def test_lines_of_several_processes_are_added_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def diagnosed(name: str, sweep: dict[str, Any], seed: int) -> dict[str, Any]:
        assert sweep == {"of": name}
        asked.append((name, seed))
        return {"seed": seed, "is_right": True}

    monkeypatch.setattr(diagnose_suite, "ProcessPoolExecutor", Inline)
    monkeypatch.setattr(diagnose_suite, "ONE_THREAD", ())
    monkeypatch.setattr(diagnose_suite, "_diagnosed_by_name", diagnosed)
    path, lines = tmp_path / "suite.json", tmp_path / "lines.jsonl"
    cases = {name: {"sweep": {"of": name}, "rows": []} for name in ("quickstart", "saturated")}
    cases["saturated"]["rows"] = [{"seed": 4, "is_right": False}]
    path.write_text(json.dumps({"cases": cases}))
    for _ in range(2):  # the second call finds nothing left to do
        measure = {"names": [], "seeds": range(4, 6), "processes": 2, "seconds": 60.0}
        diagnose_suite.measure_lines(path, lines, **measure)
        assert asked == [("quickstart", 4), ("quickstart", 5), ("saturated", 5)]
        diagnose_suite.add(path, [lines, lines])
        rows = json.loads(path.read_text())["cases"]["saturated"]["rows"]
        assert [(row["seed"], row["is_right"]) for row in rows] == [(4, False), (5, True)]
    diagnose_suite.measure_lines(path, lines, names=[], seeds=range(9, 10), processes=2, seconds=0.0)
    assert len(asked) == 3  # no time left
