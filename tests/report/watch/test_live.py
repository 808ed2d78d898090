"""What the page is told: maps, cells, what is next, failures, speed; all of it from the analysis."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from helpers_report import diverged
from helpers_watch import HOSTILE, base_specs, failing, make_store, peak, put, small_plan
from isotherm.analysis.analysis import analyse
from isotherm.core.json import json_line
from isotherm.core.optimizers import AdamW
from isotherm.core.records import CurvePoint
from isotherm.report.watch.compare import difference_rows, partner
from isotherm.report.watch.findings import Findings
from isotherm.report.watch.live import Live
from isotherm.report.watch.page import combined_state
from isotherm.report.wording import interval_text
from isotherm.running.heartbeat import Heartbeat, heartbeat_path
from isotherm.running.stored import open_results
from isotherm.sweep.growth import Stage
from isotherm.sweep.rounds import Round


def watched(path: Path, **options: Any) -> Live:
    live = Live(path=path, **options)
    live.read()
    return live


def test_before_the_first_reading_the_page_says_so(tmp_path: Path) -> None:
    make_store(tmp_path / "a.sqlite")
    assert Live(path=tmp_path / "a.sqlite").state()["is_read"] is False


def test_a_map_has_every_cell_with_the_numbers_of_the_protocol(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    make_store(path)
    state = watched(path).state()
    grid = open_results(path).sweeps[0].grids()[1]
    shown = state["map"]["grids"][1]
    assert shown["batch_size"] == 32
    assert shown["rates"] == [0.25, 0.5, 1.0, 2.0, 4.0]
    assert shown["labels"] == ["1/4", "1/2", "1", "2", "4"]
    assert shown["states"] == ["finished"] * 4 + ["diverged"]
    best = grid.optimum()
    assert best is not None
    assert shown["optimum"]["rate"] == best.effective_learning_rate == 1.0
    assert shown["optimum"]["text"] == interval_text(1.0, best.interval)
    estimate = grid.cells[2].estimate("test_metric", kept=best.kept)
    assert shown["test"]["best"][2] == pytest.approx(estimate.mean)
    assert shown["test"]["all"][2] == pytest.approx(estimate.mean_all)
    assert (shown["test"]["best_n"][2], shown["test"]["all_n"][2]) == (2, 3)
    assert shown["test"]["low"][2] == pytest.approx(estimate.interval_all.low, rel=1e-5)
    assert shown["train"]["best"][2] == pytest.approx(0.12)  # loss + L2
    assert shown["test"]["best"][4] is None  # diverged
    assert state["map"]["optima"][1][:2] == ["32", interval_text(1.0, best.interval)]
    json.loads(json_line(state))


def test_cells_fill_in_as_runs_arrive(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    left = make_store(path, num=4)
    live = watched(path)
    version = live.version
    assert live.state()["map"]["grids"][0]["states"] == ["finished", "partial", "missing", "missing", "missing"]
    assert live.state()["map"]["grids"][0]["done"] == [3, 1, 0, 0, 0]
    assert not live.read()
    assert live.version == version
    put(path, left)
    assert live.read()
    assert live.version == version + 1
    assert live.state()["counts"] == {"finished": 36, "diverged": 9, "failed": 0, "missing": 0}
    assert live.state()["next"] == []


def test_what_runs_next_and_why(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    make_store(path, num=40)
    (one,) = watched(path).state()["next"]
    assert one["stage"] == "base grids"
    assert one["where"] == "constant_steps, B=128, 2,000 steps, m=0.9"
    assert (one["runs"], one["rates"]) == ("5 runs", "2, 4")
    assert one["reason"] == "the learning rates that the sweep names"


@pytest.mark.parametrize(("changes", "symbol"), [({}, "ε_eff"), ({"momenta": (), "optimizers": (AdamW(),)}, "ε")])
def test_what_runs_next_has_the_sign_of_its_own_learning_rate(
    tmp_path: Path, changes: dict[str, Any], symbol: str
) -> None:
    path = tmp_path / "a.sqlite"
    make_store(path, small_plan(**changes), num=40)
    state = watched(path).state()
    assert [one["symbol"] for one in state["next"]] == [symbol] == [state["map"]["symbol"]]


def test_failures_are_told_with_their_message_and_harm_nobody(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    left = make_store(path, num=6)
    put(path, left[:2], failing)
    state = watched(path).state()
    (failure,) = state["failures"]
    assert failure["num_runs"] == 2
    assert failure["where"] == "B = 8, ε_eff = 1"
    assert failure["message"] == "RuntimeError: <img src=x onerror=alert(1)>␛[31m�</script><b>"
    assert state["map"]["grids"][0]["states"][2] == "failed"
    assert state["next"][0]["num_tried"] == 2


def test_what_is_in_training(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    left = make_store(path, num=6)
    live = Live(path=path, price=2.5)
    with Heartbeat(path, num_workers=3, seconds=0.0, clock=iter(range(1000, 9000, 100)).__next__) as beat:
        beat.round_started(Round(number=0, stages=(Stage.BASE,), specs=tuple(left)))
        beat.fleet_started(left[:3])
        beat.evaluated(left[0], CurvePoint(step=500, test_loss=1.5, test_metric=0.25))
        beat.advanced(sum(s.num_steps * (s.batch_size + 40) for s in left) / 2)
        live.read()
        state = live.state()
        assert state["map"]["running"] == [[0, 2, 3]]
        training = state["training"]
        assert training["is_running"]
        assert (training["workers"], training["num_running"], training["round"]) == (3, 3, "base grids")
        assert training["price_left"] == pytest.approx(2.5 * training["seconds_left"] / 3600)
        assert training["runs_left"] == 39
        assert training["examples_left"] == sum(s.batch_size * s.num_steps for s in left)
        cell = live.cell(state["map"]["id"], 0, 2)
        assert cell is not None
        assert [seed["state"] for seed in cell["seeds"]] == ["running"] * 3
        assert cell["seeds"][0]["steps"] == [500]
        assert cell["seeds"][0]["curve_metric"] == [0.25]
    assert live.read()
    assert not live.state()["training"]["is_running"]
    assert not live.state()["training"]["was_stopped"]


def test_the_page_opens_where_runs_are_in_training(tmp_path: Path) -> None:
    path, other = tmp_path / "a.sqlite", small_plan(name="other", l2=0.1)
    make_store(path, small_plan(), other, num=6)
    with Heartbeat(path, seconds=0.0) as beat:
        beat.fleet_started(base_specs(other)[:3])
        state = watched(path).state()
    assert state["map"]["title"].startswith("other")
    assert state["map"]["running"] == [[0, 0, 3]]


def test_a_process_that_was_killed_is_not_in_training(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    left = make_store(path, num=6)
    beat = Heartbeat(path, seconds=0.0)
    beat.fleet_started(left[:3])
    file = heartbeat_path(path)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"process": 2**22 + 1}))
    training = watched(path).state()["training"]
    assert (training["is_running"], training["was_stopped"]) == (False, True)


def test_a_cell_opens_its_seeds_and_curves(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    make_store(path)
    live = watched(path)
    name = live.state()["map"]["id"]
    cell = live.cell(name, 0, 2)
    assert cell is not None
    assert cell["title"] == "B = 8, ε_eff = 1"
    assert ["learning rate ε", "0.1"] in cell["setting"]
    assert [seed["test_metric"] for seed in cell["seeds"]] == [0.7, 0.71, 0.72]
    assert [seed["is_kept"] for seed in cell["seeds"]] == [False, True, True]
    assert cell["seeds"][0]["curve_metric"] == pytest.approx([0.175, 0.35, 0.525, 0.7])
    mean = cell["mean"]["test_metric"]
    assert mean["all"]["n"] == [3, 3, 3, 3]
    assert mean["best"]["n"] == [2, 2, 2, 2]
    assert mean["all"]["mean"][-1] == pytest.approx(0.71)
    assert mean["all"]["low"][-1] < 0.71 < mean["all"]["high"][-1]
    lost = live.cell(name, 0, 4)
    assert lost is not None
    assert lost["seeds"][0]["note"] == f"at update {diverged().divergence_step}"
    assert lost["mean"]["test_metric"]["all"]["n"] == []


def test_confirming_seeds_have_a_role_of_their_own(tmp_path: Path) -> None:
    path, plan = tmp_path / "a.sqlite", small_plan(batch_sizes=(8,), num_confirm=2)
    make_store(path, plan)
    live = watched(path)
    assert live.state()["next"][0]["stage"] == "confirmation"
    put(path, [plan.run_spec(plan.grids()[0], effective_learning_rate=1.0, seed=seed) for seed in (3, 4)])
    live.read()
    cell = live.cell(live.state()["map"]["id"], 0, 2)
    assert cell is not None
    assert [seed["role"] for seed in cell["seeds"]] == ["chooses"] * 3 + ["confirms"] * 2
    assert live.state()["map"]["optima"][0][4] == "2"  # what is reported there is over these


def test_cells_and_maps_that_there_are_not(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    make_store(path, num=4)
    live = watched(path)
    name = live.state()["map"]["id"]
    for there, row, column in (("x", 0, 0), ("", 0, 0), (name, 99, 0), (name, 0, 99)):
        assert live.cell(there, row, column) is None
    assert live.map("9/9/9") is None
    assert live.state("9/9/9")["map"]["id"] == name  # the page falls back to the first


def test_several_sweeps_momenta_and_budgets_have_maps_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    make_store(path, small_plan(momenta=(0.0, 0.9)), small_plan(name="other", seeds=(5, 6, 7)))
    live = watched(path)
    maps = live.state()["maps"]
    assert [one["title"] for one in maps] == [
        "constant_steps, 2,000 steps, SGD",
        "constant_steps, 2,000 steps, momentum 0.9",
        "other, 2,000 steps, momentum 0.9",
    ]
    for one in maps:
        assert live.state(one["id"])["map"]["title"] == one["title"]


def test_names_that_mean_harm_are_shown_as_they_are_but_for_control_characters(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    make_store(path, small_plan(name=HOSTILE, task=HOSTILE, metric=HOSTILE), question=HOSTILE, num=3)
    text = json_line(watched(path).state())
    assert "\\u001b" not in text
    assert "\\u202e" not in text
    assert "onerror" in text


def test_a_store_that_goes_away_is_told_and_comes_back(tmp_path: Path) -> None:
    path, hidden = tmp_path / "a.sqlite", tmp_path / "hidden.sqlite"
    make_store(path, num=4)
    live = watched(path)
    for suffix in ("", "-wal", "-shm"):
        if path.with_name(path.name + suffix).exists():
            path.with_name(path.name + suffix).rename(hidden.with_name(hidden.name + suffix))
    assert live.read()
    assert "no store at" in live.state()["problem"]
    assert live.state()["counts"]["finished"] == 4  # what was read before stays
    hidden.rename(path)
    assert live.read()
    assert live.state()["problem"] is None


# -- fits -----------------------------------------------------------------------------------------------------------


def test_fits_are_those_of_the_analysis_and_say_when_and_of_how_many_runs(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    make_store(path)
    live = watched(path)
    assert live.state()["findings"] == {"computed_at": None}
    before = time.time()
    assert live.fit() > 0
    assert live.fit() == 0.0  # nothing is new
    found = live.state()["findings"]
    assert found["computed_at"] >= before
    assert found["num_runs"] == 45
    analysis = analyse(open_results(path))
    law = analysis.sweeps[0].series[0].law
    assert law is not None
    shown = found["laws"][live.state()["map"]["id"]]
    assert shown["words"][:2] == [law.slope_words, law.kink_words]
    assert found["recommendations"] == [advice.words for advice in analysis.recommendations]
    assert [v["claim"] for v in found["verdicts"]] == [v.claim for v in analysis.verdicts]
    json.loads(json_line(found))


def test_the_history_of_a_kink_has_a_point_per_fit(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    make_store(path)
    findings = Findings()
    findings.compute(open_results(path))
    findings.compute(open_results(path))  # as many runs: the point is replaced
    (points,) = findings.content["history"].values()
    assert [point["runs"] for point in points] == [45]


def test_threads_read_and_fit_by_themselves(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    left = make_store(path, num=30)
    live = Live(path=path, seconds=0.05, fit_seconds=0.05)
    live.start()
    try:
        version = live.wait(0, seconds=20)
        assert version > 0
        put(path, left)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and live.findings.content.get("num_runs") != 45:
            version = live.wait(version, seconds=5)
        assert live.state()["counts"]["missing"] == 0
        assert live.findings.content["num_runs"] == 45
    finally:
        live.close()
    assert not any(thread.is_alive() for thread in live._threads[:1])


# -- two stores -----------------------------------------------------------------------------------------------------


def test_two_stores_are_compared_where_they_answer_to_each_other(tmp_path: Path) -> None:
    first, second = tmp_path / "a.sqlite", tmp_path / "b.sqlite"
    make_store(first)
    make_store(second, num=0)
    better = {spec.key: peak(spec) for spec in base_specs(small_plan())}
    put(second, base_specs(small_plan())[:30], lambda spec: better[spec.key])
    lives = [watched(first), watched(second)]
    state = combined_state(lives, None)
    assert state["is_compared"]
    assert state["other"]["map"]["title"] == state["map"]["title"]
    assert [row[0] for row in state["difference"]] == ["8", "32", "128"]
    assert state["difference"][0][-1].startswith("+0.0 [-")
    assert state["difference"][2][-1] == "–"
    assert state["difference"][0][3] == "71.0 (n = 3)"


def test_partners_are_found_by_title_then_by_place(tmp_path: Path) -> None:
    make_store(tmp_path / "a.sqlite", small_plan(), small_plan(name="more"), num=3)
    make_store(tmp_path / "b.sqlite", small_plan(name="other"), small_plan(), num=3)
    shown = [watched(tmp_path / name).shown for name in ("a.sqlite", "b.sqlite")]
    assert shown[0] is not None
    assert shown[1] is not None
    here, there = shown[0].maps, shown[1].maps
    assert partner(here, next(iter(here)), there) == list(there)[1]
    assert partner(here, list(here)[1], there) == list(there)[1]
    assert partner(here, "none", there) is None
    assert partner(there, next(iter(there)), {}) is None
    grids = here[next(iter(here))][1]
    assert difference_rows(grids, []) == []
