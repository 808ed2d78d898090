"""The page on speed says what the result files say."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import performance_report
from pages import results as result_files

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def report():
    return performance_report


def test_the_document_is_up_to_date(report):
    text = report.DOCUMENT.read_text()
    assert report.PAGE.filled(text) == text


def test_every_block_of_the_document_is_known(report):
    assert set(report.PAGE.names_in(report.DOCUMENT.read_text())) == set(report.PAGE.blocks)


ROW = {
    "work": "mlp",
    "device": "cpu",
    "batch_size": 8,
    "num_runs": 55,
    "ours": 54_321.0,
    "lowest": 50_000.0,
    "highest": 60_000.0,
    "unit": "run-steps/s",
    "peers": {"plain loop": 2_000.0, "jax vmap": None},
    "ratio": 27.16,
    "floor": 100_000.0,
    "fraction_of_floor": 0.543,
    "target": {"of": "ratio", "value": 25.0, "text": "25x plain", "reached": True},
}


def test_a_row_is_written_with_its_peers_goal_and_floor(report, tmp_path, monkeypatch):
    monkeypatch.setattr(result_files, "RESULTS", tmp_path)
    machine = {"cpu": "a chip", "cores": 2, "torch": "2.x", "gpu": None}
    first = {**ROW, "reasons": {"jax vmap": "not installed"}}
    other = {**ROW, "ours": None, "ratio": None, "target": None, "reasons": {"jax vmap": "too late"}}
    (tmp_path / "bench_cpu.json").write_text(json.dumps({"rows": [first, other], "machine": machine, "commit": "abc"}))
    table = report.bench_block("bench_cpu").splitlines()
    assert table[0].split(" | ")[5:7] == ["plain loop", "ratio"]
    assert "**54,300** [50,000, 60,000] | 2,000 | 27.2 | 25x plain | yes | 100,000 | 54 %" in table[2]
    assert "| – | 2,000 | – | – | – |" in table[3]
    remark = " ".join(table[5:])
    assert "a chip, 2 cores, torch 2.x, commit abc" in remark
    assert "Not timed: jax vmap (not installed)." in remark


def test_an_extrapolation_is_called_so(report, tmp_path, monkeypatch):
    monkeypatch.setattr(result_files, "RESULTS", tmp_path)
    machine = {"cpu": "a chip", "cores": 2, "torch": "2.x", "gpu": None}
    row = {**ROW, "work": "quickstart", "remark": "extrapolated: from windows"}
    (tmp_path / "bench_cpu.json").write_text(json.dumps({"rows": [row], "machine": machine, "commit": "abc"}))
    assert "quickstart: extrapolated: from windows." in report.bench_block("bench_cpu")


def test_what_was_not_measured_is_said(report, tmp_path, monkeypatch):
    monkeypatch.setattr(result_files, "RESULTS", tmp_path)
    monkeypatch.setattr(report, "CALIBRATION", tmp_path)
    assert all(block() == "Not measured yet." for block in report.PAGE.blocks.values())


@pytest.mark.parametrize(("ratio", "word"), [(0.55, "met"), (0.65, "missed")])
def test_a_goal_that_is_missed_is_called_so(report, tmp_path, monkeypatch, ratio, word):
    monkeypatch.setattr(result_files, "RESULTS", tmp_path)
    found = {"num_runs": 4, "batch_size": 8, "num_updates": 10, "seconds_whole": [1.0], "goal": 0.6, "ratio": ratio}
    (tmp_path / "growth_cpu.json").write_text(json.dumps({"shrink": {**found, "seconds_half_diverged": [ratio]}}))
    assert f"**{word}**" in report.shrink_block()


# -- profiles -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "group"),
    [
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc", "convolutions"),
        ("_ZN17cutlass__5x_cudnn6KernelINS_4conv6kernel23ImplicitGemmConvolution", "convolutions"),
        ("void convolve_common_engine_float_NHWC<__nv_bfloat16>", "convolutions"),
        ("nvjet_sm90_tst_448x64_64x3_2x1_v_bz_coopB_TNN", "products"),
        ("_gradient_sums", "ghost batch norm"),
        ("_normalise", "ghost batch norm"),
        ("triton_poi_fused__to_copy_add_addcmul_copy_copy__mul_transpose_view_17", "optimiser"),
        ("triton_red_fused__log_softmax_backward_data_arange_div", "softmax"),
        ("triton_poi_fused_tanh_backward_10", "other elementwise"),
        ("triton_red_fused_convolution_backward_56", "other elementwise"),
        ("triton_red_fused_moments", "other elementwise"),
        ("Memset (Device)", "other"),
    ],
)
def test_a_kernel_is_grouped_by_its_name(report, kernel, group):
    assert report.group_of(kernel) == group


def test_every_recorded_kernel_has_a_group(report):
    names = {kernel["name"] for row in report.load("profiles_h200")["rows"] for kernel in row["kernels"]}
    assert len(names) > 50
    assert "other" not in {report.group_of(name) for name in names}


def test_shares_add_up_with_what_is_not_listed(report):
    kernels = [
        {"name": "triton_a", "percent": 5.0},
        {"name": "nvjet_a", "percent": 30.0},
        {"name": "nvjet_b", "percent": 25.0},
    ]
    found = report.shares(kernels)
    assert found == {"products": 55.0, "other elementwise": 5.0, "not listed": 40.0}
    assert list(found) == ["products", "other elementwise", "not listed"]


def profile_row(label, num_runs, speed, *, note="", kernels=(), images=0.0, memory=1.0):
    return {
        "label": label,
        "num_runs": num_runs,
        "run_steps_per_second": speed,
        "images_per_second": images,
        "windows": [0.9 * speed, speed, 1.1 * speed],
        "memory_gib": memory,
        "commit": "abc",
        "note": note,
        "kernels": list(kernels),
    }


NORM = [{"name": "_moments", "percent": 60.0, "calls": 4, "microseconds": 2.0}]


@pytest.fixture
def results(report, tmp_path, monkeypatch):
    """Result files with easy numbers; the work wrn16x4_cifar10:64 has its kernels in another row."""
    monkeypatch.setattr(result_files, "RESULTS", tmp_path)
    profiles = [
        profile_row("autoencoder_mnist:64", 35, 20_000.0, kernels=NORM),
        profile_row("autoencoder_mnist:64", 35, 16_000.0, note=report.BEFORE_COPIES),
        profile_row("autoencoder_mnist:64", 36, 10_000.0, note=report.STREAMS[0]),
        profile_row("autoencoder_mnist:4096", 35, 100.0),
        profile_row("wrn16x4_cifar10:64", 4, 1875.0, images=120_000.0, kernels=NORM),
        profile_row("wrn16x4_cifar10:64", 12, 2343.75, images=150_000.0, note="with care"),
    ]
    machine = {"gpu": "a card", "torch": "2.x"}
    bench = [
        {"label": "autoencoder_mnist:64", "copy_bytes_per_second": 4e12},
        {
            "label": "autoencoder_mnist:4096",
            "flop_per_unit": 9.0,
            "copy_bytes_per_second": 4e12,
            "ours": 150.0,
            "lowest": 140.0,
            "highest": 160.0,
        },
    ]
    ceilings = {"matmul_flop_per_second": {"mixed": 4_000.0}}
    (tmp_path / "profiles_h200.json").write_text(
        json.dumps({"rows": profiles, "machine": machine, "windows": "of a second"})
    )
    (tmp_path / "bench_h200.json").write_text(json.dumps({"rows": bench, "ceilings": ceilings, "commit": "def"}))
    return tmp_path


def lines_of(block):
    cells = [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in block.splitlines()]
    return {line[0]: line for line in cells if len(line) > 3}


def test_a_profile_shows_speed_goal_memory_and_kernels(report, results):
    block = report.profiles_block()
    lines = lines_of(block)
    assert lines["autoencoder_mnist, B = 64"][1:7] == (
        "35",
        "**20,000** run-steps/s",
        "40,000 run-steps/s",
        "50 %",
        "1.0 GiB",
        "ghost batch norm 60, not listed 40",
    )
    # 100 run-steps/s of 9 FLOP at a rate of 4,000 are 22.5 % of the ceiling; the goal is 45 %.
    assert lines["autoencoder_mnist, B = 4,096"][4] == "50 %"
    assert lines["wrn16x4_cifar10, B = 64"][2:5] == ("**150,000** images/s", "120,000 images/s", "125 %")
    assert lines["wrn28x10_cifar100, B = 128"][2] == "not measured"
    remark = " ".join(block.split())
    assert "wrn16x4_cifar10, B = 64: kernel time of 4 runs. wrn16x4_cifar10, B = 64: with care." in remark
    assert "Goals reached: 1 of 3." in remark


def test_other_ways_to_train_are_not_the_present_one(report, results):
    assert report.profile("autoencoder_mnist:64")["run_steps_per_second"] == 20_000.0
    assert report.profile("autoencoder_mnist:64", note=report.BEFORE_COPIES)["run_steps_per_second"] == 16_000.0
    assert report.profile("wrn16x4_cifar10:64")["num_runs"] == 12
    assert report.profile("wrn16x4_cifar10:64", with_kernels=True)["num_runs"] == 4
    assert report.profile("lstm_ptb:64") is None


def test_a_step_is_shown_with_its_gain_or_loss(report, results):
    lines = [line for line in report.steps_block().splitlines() if "| abc" in line]
    assert "16,000 [14,400, 17,600] | 20,000 [18,000, 22,000] | +25 % | abc, abc" in lines[0]
    assert len(lines) == 3  # no row before the rounded copies at B = 4,096 in these files
    assert "120,000 [108,000, 132,000] | 150,000 [135,000, 165,000] | +25 % |" in lines[1]
    assert "20,000 [18,000, 22,000] | 10,000 [9,000, 11,000] | −50 % |" in lines[2]


def test_every_step_has_its_rows(report):
    assert all(step.before() is not None and step.after() is not None for step in report.STEPS)
    lines = [line for line in report.steps_block().splitlines() if "2cabd47" in line or "f6cded0" in line]
    assert len(lines) == len(report.STEPS)


def test_bytes_per_second_of_the_optimiser_and_the_recurrent_products(report, results):
    optimiser = {"name": "triton_addcmul", "percent": 50.0, "calls": 2, "microseconds": 35 * 784 * 1000 * 20 / 3e6}
    recurrent = [
        {"name": "nvjet_a", "percent": 12.0, "calls": 90, "microseconds": 2 * 656 * 2600 * 21 / 2e6},
        {"name": "nvjet_b", "percent": 30.0, "calls": 7, "microseconds": 1.0},
        {"name": "nvjet_c", "percent": 11.0, "calls": 80, "microseconds": 1.0},
        {"name": "triton_softmax", "percent": 7.0, "calls": 1, "microseconds": 1.0},
    ]
    rows = [
        profile_row("autoencoder_mnist:64", 35, 1.0, kernels=[optimiser]),
        profile_row("lstm_ptb:64", 21, 1.0, kernels=recurrent),
    ]
    bench = {
        "label": "autoencoder_mnist:64",
        "copy_bytes_per_second": 4e12,
        "fraction_of_floor": 0.8,
        "bytes_per_unit": 64.0,
        "ours": 0.8 * 4e12 / 64,
    }
    (results / "profiles_h200.json").write_text(json.dumps({"rows": rows}))
    (results / "bench_h200.json").write_text(json.dumps({"rows": [bench]}))
    text = " ".join(report.limits_block().split())
    assert "80 % of the floor, which counts 32 bytes" in text
    assert "has to move 26, counted from the program; by that it reaches 65 %" in text
    assert "3.0 TB/s, where a copy moves 4.0" in text
    assert "take 23 % of the kernel time" in text
    assert "72 MB, in 36 µs: 2.0 TB/s" in text
    assert "Softmax and its gradient take 7 %" in text


# -- kernels --------------------------------------------------------------------------------------------------------


def kernel_row(batch_size, num_layers, time, *, wrong=(), error=1e-3):
    return {
        "case": "a case",
        "batch_size": batch_size,
        "num_layers": num_layers,
        "errors": {"x": 0.0, "y": error, "dx": 2 * error, "mean": 1e-8, "dweight": 1e-7},
        "wrong": list(wrong),
        "forward_ms": time,
        "backward_ms": 2 * time,
        "floor_forward_ms": 0.5,
        "floor_backward_ms": 1.0,
    }


def test_kernels_are_summed_over_the_layers_of_a_network(report, results):
    rows = [kernel_row(64, 1, 1.0), kernel_row(64, 2, 2.0, error=2e-3), kernel_row(1024, 3, 1.0, wrong=["y"])]
    content = {"rows": rows, "copy_bytes_per_second": 2e12, "device": "a card", "torch": "2.x", "commit": "abc"}
    (results / "kernels_h200.json").write_text(json.dumps(content))
    assert report.moved_bytes(content, 64) == pytest.approx(4.5e-3 * 2e12)
    block = report.kernels_block()
    lines = lines_of(block)
    # 4.5 ms of floor in 15 ms; 9 GB in that time are 0.6 TB/s, 15 % of the other copy's 4.
    assert lines["64"] == ("64", "3", "5.00", "1.50", "10.00", "3.00", "30 %", "0.6", "15 %")
    assert lines["1,024"][1:3] == ("3", "3.00")
    text = " ".join(block.split())
    assert "4.0e-03 in what is rounded" in text
    assert "1.0e-07 in means" in text
    assert "1 of 3 cases exceed their tolerance" in text
    assert "moves 2.00 TB/s, that of `isotherm bench` 4.00" in text


def test_the_norms_speed_in_a_network_counts_every_layer(report, results):
    rows = [profile_row("wrn16x4_cifar10:64", 4, 1.0, kernels=NORM)]
    (results / "profiles_h200.json").write_text(json.dumps({"rows": rows}))
    content = {"rows": [kernel_row(1024, 10, 1.0)], "copy_bytes_per_second": 2e12}
    (results / "kernels_h200.json").write_text(json.dumps(content))
    # 30 GB at B = 1,024 in ten layers are 187.5 MB a layer at B = 64; in the 2 µs of the profile: 93.75 TB/s.
    assert "93.8 TB/s at B = 64 (runs at once: 4), where a copy moves 4.0" in " ".join(report.limits_block().split())


# -- cells trained again --------------------------------------------------------------------------------------------


def cell(report, before, now):
    return report.Cell(name="a", short="a", quantity="q", paper="1", before=before, now=now, decimals=2)


def test_a_cell_is_compared_by_means_pairs_and_spread(report):
    found = cell(report, (1.0, 2.0, 3.0), (2.0, 3.1, 3.9))
    assert found.difference.estimate == pytest.approx(1.0)
    assert found.difference.contains(0.0)
    assert found.paired.low == pytest.approx(1 - 4.302653 * 0.1 / 3**0.5, abs=1e-5)
    assert not cell(report, (1.0, 2.0, 3.0), (2.9, 2.9, 2.9)).is_outside
    assert cell(report, (1.0, 2.0, 3.0), (0.9, 0.9, 0.9)).is_outside
    # Of n = 3 the two-sided F test has p = 2 / (1 + F).
    wide = cell(report, (1.0, 2.0, 3.0), (0.0, 3.0, 6.0))
    assert wide.spread_ratio == pytest.approx(3.0)
    assert wide.spread_p == pytest.approx(2 / (1 + 9))
    assert cell(report, (0.0, 3.0, 6.0), (1.0, 2.0, 3.0)).spread_p == pytest.approx(2 / (1 + 9))


def test_cells_hold_the_values_of_the_files_by_seed(report):
    by_name = {c.short: c for c in report.cells()}
    folder = ROOT / "results" / "calibration"
    runs = json.loads((folder / "rerun" / "autoencoder_mixed.json").read_text())["runs"]
    assert by_name["the autoencoder's test error"].now == tuple(run["result"]["test_metric"] for run in runs)
    assert all(run["spec"]["precision"] == "mixed" for run in runs)
    before = json.loads((folder / "lstm_b64.json").read_text())["runs"]
    finals = tuple(r["result"]["test_metric"] for r in before if r["spec"]["effective_learning_rate"] == 2.8)
    lstm = by_name["the LSTM"]
    assert lstm.before == finals  # the last look is the final evaluation
    assert lstm.now == (81.5671, 81.7838, 81.6475)
    assert by_name["the loss of WRN-16-4"].paper == "0.232 ± 0.001"
    assert by_name["the accuracy of WRN-16-4"].now == pytest.approx((94.37, 93.91, 94.2), abs=1e-4)


def test_cells_stay_within_the_goals_of_the_calibration(report):
    means = {c.short: (sum(c.now) / len(c.now), float(c.paper.split("±")[0])) for c in report.cells()}
    for name in ("the autoencoder's test error", "the autoencoder's training error"):
        assert abs(means[name][0] / means[name][1] - 1) <= 0.02
    assert abs(means["the loss of WRN-16-4"][0] / means["the loss of WRN-16-4"][1] - 1) <= 0.1
    assert means["the accuracy of WRN-16-4"][0] >= means["the accuracy of WRN-16-4"][1] - 0.2
    assert abs(means["the LSTM"][0] - means["the LSTM"][1]) <= 1.0


def test_the_numerics_say_what_is_outside_and_what_is_significant(report, monkeypatch):
    same, off = cell(report, (1.0, 2.0, 3.0), (1.1, 2.0, 2.9)), cell(report, (1.0, 2.0, 3.0), (8.0, 9.0, 10.1))
    found = [dataclasses.replace(same, short="same"), dataclasses.replace(off, short="off")]
    monkeypatch.setattr(report, "cells", lambda: found)
    text = " ".join(report.numerics_block().split())
    assert "(one sd): off. Welch's interval leaves out zero for: off; paired by seed for: off." in text
    assert "at least one leaves out zero in 10 %" in text
    assert "more than threefold for: none." in text
    assert "| 2.00 ± 1.00 (3) | 9.03 ± 1.05 (3) | +7.03 [" in text
