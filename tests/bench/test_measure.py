"""Rows from windows: medians, ratios, floors, peers that are missing."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from typing import Any

import pytest

from helpers_bench import MLP, FakeClock
from isotherm.bench import measure as measuring
from isotherm.bench.contenders import COMPILED, JAX, LIBRARY, OURS, PEERS, PLAIN, PROCESSES, Contender, ContenderError
from isotherm.bench.fleet import specs_of
from isotherm.bench.measure import Bench, Settings, interleaved, measure
from isotherm.bench.workloads import StudyWorkload, Target, Workload
from isotherm.tasks.builtin import made_task


def timed_by(clock: FakeClock, name: str, updates: list[int], order: list[str]) -> Callable[[float], float]:
    """Return a contender that makes so many updates in its windows."""
    rest = iter(updates)

    def window(seconds: float) -> float:
        start = clock()
        clock.moves(seconds)
        order.append(name)
        return next(rest) / (clock() - start)

    return window


def test_medians_of_windows_in_turn() -> None:
    clock, order = FakeClock(), []
    contenders = {
        OURS: timed_by(clock, OURS, [100, 500, 200], order),
        PLAIN: timed_by(clock, PLAIN, [10, 30, 20], order),
    }
    found, reasons = interleaved(contenders, repeats=3, seconds=2.0, before_each=lambda: order.append("ceilings"))
    assert order == ["ceilings", OURS, PLAIN] * 3
    assert clock() == 12.0
    assert statistics.median(found[OURS]) == 100.0
    assert statistics.median(found[PLAIN]) == 10.0
    assert reasons == {}


def test_a_side_that_fails_drops_out_and_the_others_go_on() -> None:
    def broken(_: float) -> float:
        raise ContenderError("it broke")

    found, reasons = interleaved({OURS: lambda s: 3.0, PLAIN: broken}, repeats=2, seconds=1.0)
    assert found == {OURS: [3.0, 3.0]}
    assert reasons == {PLAIN: "it broke"}


class FakeSide(Contender):
    """Has a speed, or a reason to have none, and no process."""

    speeds: dict[str, float | str] = {}

    def start(self) -> None: ...

    def open(self, workload: Workload) -> None:
        self._speed = self.speeds[self.name]
        if isinstance(self._speed, str):
            raise ContenderError(self._speed)

    def window(self, seconds: float) -> float:
        assert isinstance(self._speed, float)
        return self._speed


@pytest.fixture
def _fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "Contender", FakeSide)
    monkeypatch.setattr(measuring, "matmul_flop_per_second", lambda _device, _precision: 656_000 * 1e5)
    monkeypatch.setattr(measuring, "copy_bytes_per_second", lambda _device, _size: 486_720 * 1e4)
    monkeypatch.setattr(measuring, "why_not", lambda peer, _workload: "not here" if peer == JAX else None)


def rows(speeds: dict[str, float | str], *workloads: Workload | StudyWorkload, **settings: Any) -> list[dict[str, Any]]:
    FakeSide.speeds = speeds
    given = {"device": "cpu", "peers": list(speeds)[1:], "repeats": 2, "seconds": 1.0, **settings}
    specs = [
        dataclasses.replace(spec, num_steps=num, batch_size=size)
        for size, num in ((8, 10), (16, 30))
        for spec in specs_of(MLP, made_task("mlp_mnist1d"))
    ]
    content = measure(workloads, Settings(**given), planned=lambda _: specs)
    assert list(content) == ["rows", "machine", "commit", "ceilings"]
    return content["rows"]  # type: ignore[no-any-return]


@pytest.mark.usefixtures("_fakes")
class TestRows:
    def test_ratio_floor_and_target(self) -> None:
        workload = dataclasses.replace(MLP, target=Target(of="ratio", value=10.0))
        (row,) = rows({OURS: 500.0, PLAIN: 50.0, PROCESSES: 100.0}, workload)
        assert row["ratio"] == 10.0
        assert row["peers"] == {PLAIN: 50.0, COMPILED: None, LIBRARY: None, PROCESSES: 100.0, JAX: None}
        assert row["floor"] == 1e4
        assert row["fraction_of_floor"] == 0.05
        assert row["fraction_of_ceiling"] == pytest.approx(0.005)
        assert row["target"] == {"of": "ratio", "value": 10.0, "text": "10x plain", "reached": True}

    def test_peers_without_a_speed_have_a_reason(self) -> None:
        (row,) = rows({OURS: 500.0, PLAIN: 50.0, COMPILED: "no compiler", JAX: 1.0}, MLP)
        assert row["reasons"] == {
            COMPILED: "no compiler",
            JAX: "not here",
            LIBRARY: "not asked for",
            PROCESSES: "not asked for",
        }
        assert set(row["peers"]) == set(PEERS)
        assert row["target"] is None

    def test_our_own_failure_is_a_row_too(self) -> None:
        workload = dataclasses.replace(MLP, target=Target(of="ratio", value=10.0))
        (row,) = rows({OURS: "one run at a time", PLAIN: 50.0}, workload)
        assert row["ours"] is row["ratio"] is row["fraction_of_floor"] is row["lowest"] is None
        assert row["reasons"][OURS] == "one run at a time"
        assert row["target"]["reached"] is None
        assert row["peers"][PLAIN] == 50.0

    def test_images_per_second(self) -> None:
        workload = dataclasses.replace(MLP, unit="images/s", target=Target(of="ours", value=4_001))
        (row,) = rows({OURS: 500.0, PLAIN: 50.0}, workload)
        assert (row["ours"], row["peers"][PLAIN], row["ratio"]) == (4_000.0, 400.0, 10.0)
        assert row["floor"] == 8e4
        assert row["flop_per_unit"] == 82_000
        assert row["bytes_per_unit"] == 486_720 / 8
        assert row["target"]["reached"] is False

    def test_a_study_is_extrapolated_and_says_so(self) -> None:
        (row,) = rows({OURS: 500.0, PLAIN: 50.0, COMPILED: 70.0}, StudyWorkload(name="quickstart", task="mlp_mnist1d"))
        assert row["batch_size"] is None
        assert row["num_runs"] == 8
        assert row["ratio"] == pytest.approx(10.0)
        assert row["peers"][COMPILED] is None
        assert row["reasons"][COMPILED] == "not extrapolated to a study"
        assert row["remark"].startswith("extrapolated: 160 run-steps of the planned runs at the speeds of 2 windows")
        assert "B = 8, 16" in row["remark"]
        assert "ours 0 s, plain loop 3 s" in row["remark"]

    def test_everything_so_far_is_handed_over_after_each_row(self) -> None:
        FakeSide.speeds = {OURS: 1.0}
        seen: list[int] = []
        settings = Settings(device="cpu", peers=[], repeats=1, seconds=1.0)
        measure([MLP, MLP], settings, planned=lambda _: [], on_row=lambda content: seen.append(len(content["rows"])))
        assert seen == [1, 2]


def test_sides_end_with_the_bench() -> None:
    with Bench(settings=Settings(device="cpu", peers=[PLAIN], repeats=1, seconds=1.0)) as bench:
        assert set(bench.contenders) == {OURS, PLAIN}
