from __future__ import annotations

from typing import Any

from families import coverage_families
from isotherm.analysis.verdicts import margins
from pages import statistics_tables as tables
from pages.results import NOT_MEASURED
from simulations import QUANTITIES
from statistics_runs import method_of


def count(total: int, **outcomes: int) -> dict[str, int]:
    return {"total": total, "holds": 0, "fails": 0, "holds_alone": 0, "fails_alone": 0, **outcomes}


def verdicts(resolution: str, special: str, scenario: str, **claims: dict[str, int]) -> dict[str, Any]:
    named = {name.replace("_", " "): found for name, found in claims.items()}
    labels = {"kind": "verdicts", "resolution": resolution, "special": special, "scenario": scenario, "curves": "exact"}
    return {**labels, "num": 2, "seed": 1, "seconds": 60.0, "claims": named}


def covered(family: str, held: float, num: int) -> dict[str, Any]:
    return {
        "kind": "coverage",
        "family": family,
        "num": num,
        "seed": 2,
        "seconds": 60.0,
        "held": dict.fromkeys(QUANTITIES, [1.0] * round(held * num) + [0.0] * (num - round(held * num))),
        "width": dict.fromkeys(QUANTITIES, 0.02),
        "errors": {name: [[0.1 * k] for k in range(num)] for name in QUANTITIES},
    }


CONTENT: dict[str, Any] = {
    "command": "python benchmarks/statistics_report.py --simulate",
    "cpus": ["a CPU"],
    "commit": "abc",
    "method": {"coverage": method_of("coverage"), "verdicts": method_of("verdicts")},
    "jobs": [
        verdicts("2", "cliff", "false", helps_above=count(10, holds_alone=1), kink=count(10, holds=10)),
        verdicts("√2", "cliff", "false", helps_above=count(10, holds_alone=2, holds=1)),
        verdicts("2", "cliff", "true", helps_above=count(4, holds_alone=3, holds=2, fails_alone=1)),
        covered("one", 1.0, 30),
        covered("two", 0.9, 10),
    ],
}


def rows(text: str) -> dict[str, list[str]]:
    lines = [[value.strip() for value in line.strip("|").split("|")] for line in text.splitlines()]
    return {line[0]: line[1:] for line in lines}


def test_false_alarms_count_only_where_a_claim_is_false() -> None:
    found = rows(tables.false_alarms_block(CONTENT))
    column = found["family"].index("helps above")
    assert found["ratio 2"][column] == "10.0 [0, 45] / 0.0 [0, 31] (10)"
    assert found["ratio √2"][column] == "20.0 [3, 56] / 10.0 [0, 45] (10)"
    assert found["cliff"][column] == "15.0 [3, 38] / 5.0 [0, 25] (20)"
    assert found["**all**"][column] == "15.0 [3, 38] / 5.0 [0, 25] (20)"
    assert found["exact curves"] == found["**all**"]
    assert found["**all**"][found["family"].index("kink")] == "–"  # there is a kink in these


def test_false_alarms_that_are_shown_to_be_too_frequent_are_named() -> None:
    jobs = [
        verdicts("2", "cliff", "false", helps_above=count(40, holds=10), proportional=count(100)),
        verdicts("2", "4x", "straight", kink=count(10)),
    ]
    text = " ".join(tables.alarms_shown_block({**CONTENT, "jobs": jobs}).split())
    assert "“helps above” in “cliff”" in text
    assert "kink" not in text  # 0 of 10 shows nothing
    assert "upper limits of at most 41.2 %" in text
    assert "3 are shown to be at most 5 %" in text  # proportional: cliff, exact, all


def test_power_and_what_is_wrongly_denied() -> None:
    column = rows(tables.power_block(CONTENT))["family"].index("helps above")
    assert rows(tables.power_block(CONTENT))["**all**"][column] == "75.0 [19, 99] / 50.0 [7, 93] (4)"
    assert rows(tables.denied_block(CONTENT))["**all**"][column] == "25.0 [1, 81] / 0.0 [0, 60] (4)"


def test_coverage_weighs_families_by_their_simulations() -> None:
    found = rows(tables.coverage_block(CONTENT))
    assert found["one"][:2] == ["30", "100.0 [88, 100]"]
    assert found["**all**"][:2] == ["40", "97.5 [87, 100]"]
    assert found["one"][-1] == "2.00"  # points


def test_families_are_grouped_and_those_outside_of_the_target_named() -> None:
    exact, straying = (next(f.name for f in coverage_families() if f.strays is on) for on in (False, True))
    content = {**CONTENT, "jobs": [covered(exact, 1.0, 200), covered(straying, 0.8, 200)]}
    found = rows(tables.groups_block(content))
    assert [found[name][0] for name in ("**all**", "exact", "straying", "parabola", "3 points")] == [
        "400",
        "200",
        "200",
        "400",
        "400",
    ]
    assert found["exact"][1].startswith("100.0 [98")
    assert found["straying"][1].startswith("80.0 [74")
    assert "saturated" not in found
    lower, higher = " ".join(tables.shown_block(content).split()).partition("Shown to be higher")[::2]
    assert straying in lower
    assert exact in higher
    assert "0 of 8 coverages" in lower


def test_without_a_result_file_the_tables_say_so() -> None:
    blocks = (
        tables.coverage_block,
        tables.groups_block,
        tables.reach_block,
        tables.shown_block,
        tables.false_alarms_block,
        tables.alarms_shown_block,
        tables.power_block,
        tables.denied_block,
        tables.cost_block,
    )
    assert all(block(None) == NOT_MEASURED for block in blocks)


def test_costs_and_margins_are_told() -> None:
    text = tables.cost_block(CONTENT)
    assert "40 sweeps and 6 studies" in text
    assert "5 processor minutes" in text
    assert "--simulate" in text
    low, high = margins.PROPORTIONAL
    assert f"inside [{low:g}, {high:g}]" in tables.margins_block()
    assert "10 %" in tables.margins_block()


def test_a_method_that_has_changed_since_is_named() -> None:
    assert "has changed" not in tables.cost_block(CONTENT)
    found = tables.cost_block({**CONTENT, "method": {**CONTENT["method"], "verdicts": "another"}})
    assert "The code that decides verdicts has changed since that commit." in " ".join(found.split())


def test_how_far_errors_reach_is_told_in_halves_of_an_interval() -> None:
    exact, straying = coverage_families()[0], next(f for f in coverage_families() if f.strays)
    content = {**CONTENT, "jobs": [covered(exact.name, 1.0, 41), covered(straying.name, 1.0, 21)]}
    found = rows(tables.reach_block(content))
    assert found["exact"][0] == "3.80"
    assert found["straying"][0] == "1.90"
    assert "cliff" not in found
