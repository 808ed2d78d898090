from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from helpers_landscape import broken_line, landscape_study
from isotherm.analysis.analysis import analyse
from isotherm.report.files import write_json
from isotherm.report.study.summary import study_summary
from isotherm.sweep.results import StudyResults


def example() -> StudyResults:
    return landscape_study(optimum=broken_line(1.0, 64, 4.0), peak=lambda b, _m: 0.7 if b < 512 else 0.6, noise=0.001)


def test_one_entry_per_momentum_with_its_grids_and_regimes() -> None:
    analysis = analyse(example())
    content = study_summary(analysis, seconds=1.5)
    assert content["seconds"] == 1.5
    assert content["verdicts"] == [{**dataclasses.asdict(v), "state": v.state} for v in analysis.verdicts]
    assert [advice["batch_size"] for advice in content["recommendations"]] == [256, 256]
    assert [entry["momentum"] for entry in content["sweeps"]] == [0.0, 0.9]
    for entry in content["sweeps"]:
        grids = {grid["batch_size"]: grid for grid in entry["grids"]}
        assert grids[32]["optimal_effective_learning_rate"] == 2.0
        assert grids[32]["temperature"] == 2.0 / 32
        assert grids[32]["learning_rate"] == {0.0: 2.0, 0.9: 0.2}[entry["momentum"]]  # as one would write it
        assert not grids[32]["at_edge"]
        assert grids[32]["edge"] == "interior"
        assert abs(grids[1024]["test_accuracy"]["mean"] - 0.6) < 0.01
        assert grids[1024]["test_accuracy"]["num_kept"] == 4
        low, high = grids[1024]["test_accuracy"]["interval_all"]
        assert low < 0.6 < high or abs(low - 0.6) < 0.01
        found = entry["regimes"]
        assert abs(found["slope"] - 1.0) < 0.2
        for name in ("slope", "kink", "plateau"):
            low, high = found[f"{name}_interval"]
            assert low < found["kink_batch_size" if name == "kink" else name] < high
        assert abs(found["plateau"] - 4.0) < 0.5
        assert "kink at B ≈ 6" in found["words"]
        assert entry["budget"] == {"unit": "epochs", "amount": 20}


def test_resolution_of_sweep_and_optimum_and_the_seeds_that_confirm() -> None:
    study = example()
    content = study_summary(analyse(study))
    entry = content["sweeps"][0]
    assert (entry["resolution"], entry["num_confirm"], entry["num_seeds"], entry["num_kept"]) == ("paper", 0, 5, 4)
    grid = entry["grids"][2]
    assert grid["resolution"]["ratio"] == 2.0
    assert grid["resolution"]["unresolved_gain"] > grid["resolution"]["error_of_mean"] > 0
    assert grid["resolution"]["is_resolved"] is False
    assert (grid["confirmed"], grid["selection_bias"]) == (None, None)
    assert grid["selected"] == grid["test_accuracy"]
    assert grid["test_accuracy"]["num_diverged"] == 0


def test_plain_sgd_and_momentum_have_an_entry_together() -> None:
    study = landscape_study(optimum=lambda b, m: min(b / 16, 32 if m > 0 else 4), peak=lambda _b, _m: 0.7)
    content = study_summary(analyse(study))
    (entry,) = content["joint_regimes"]
    plain, heavy = (sweep["regimes"] for sweep in content["sweeps"])
    assert (entry["budget"], entry["momentum"]) == ("20 epochs", 0.9)
    assert abs(plain["slope"] - 1.0) < 0.1
    assert abs(heavy["slope"] - 1.0) < 0.1
    assert abs(entry["plateau_ratio"] - 8.0) < 1.0
    assert entry["plateau_ratio_interval"][0] < 8.0 < entry["plateau_ratio_interval"][1]
    assert abs(entry["largest_plateau_ratio"] - 19.0) < 1e-9
    assert entry["offset_interval"][0] < entry["offset_octaves"] < entry["offset_interval"][1]
    assert entry["same_line"] is True
    rising = landscape_study(optimum=lambda b, _m: b / 16, peak=lambda _b, _m: 0.7, sizes=(8, 32, 128, 512))
    content = study_summary(analyse(rising))
    (entry,) = content["joint_regimes"]
    heavy = content["sweeps"][1]["regimes"]
    assert heavy["kink_batch_size"] is heavy["plateau_interval"][1] is None
    assert entry["plateau_ratio_interval"] == [0.0, None]


def test_an_unfinished_study_is_null_not_an_error(tmp_path: Path) -> None:
    empty = StudyResults(plan=example().plan, by_key={})
    content = study_summary(analyse(empty))
    assert content["counts"]["missing"] > 0
    grid = content["sweeps"][0]["grids"][0]
    assert grid["optimal_effective_learning_rate"] is None
    assert grid["test_accuracy"] is None
    assert grid["at_edge"]
    assert content["joint_regimes"] == []
    write_json(tmp_path / "s.json", content)
    assert json.loads((tmp_path / "s.json").read_text()) == content
    assert [p.name for p in tmp_path.iterdir()] == ["s.json"]
