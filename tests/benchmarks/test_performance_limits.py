"""Bytes per second of the heaviest kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers_performance import NORM, easy_results, kernel_row, profile_row
from pages.performance.limits import limits_block


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return easy_results(tmp_path, monkeypatch)


def test_bytes_per_second_of_the_update_and_the_recurrent_products(results: Path) -> None:
    num_weights = 2 * (784 * 1000 + 1000 * 504 + 504 * 256 + 256 * 32)
    # Two updates, each of six matrices by one kernel and two by the other.
    microseconds = 35 * num_weights * 18 / 3e6
    updates = [
        {"name": "_update_stream", "percent": 50.0, "calls": 12, "microseconds": 0.8 * microseconds / 6},
        {"name": "_update", "percent": 12.0, "calls": 4, "microseconds": 0.2 * microseconds / 2},
    ]
    recurrent = [
        {"name": "nvjet_a", "percent": 12.0, "calls": 90, "microseconds": 2 * 656 * 2624 * 21 / 2e6},
        {"name": "nvjet_b", "percent": 30.0, "calls": 7, "microseconds": 1.0},
        {"name": "nvjet_c", "percent": 11.0, "calls": 80, "microseconds": 1.0},
        {"name": "triton_softmax", "percent": 7.0, "calls": 1, "microseconds": 1.0},
        {"name": "_forward", "percent": 5.0, "calls": 70, "microseconds": 1.0},
        {"name": "_backward", "percent": 6.0, "calls": 70, "microseconds": 1.0},
    ]
    rows = [
        profile_row("autoencoder_mnist:64", 35, 1.0, kernels=updates),
        profile_row("lstm_ptb:64", 21, 1.0, kernels=recurrent),
    ]
    bench = {
        "label": "autoencoder_mnist:64",
        "copy_bytes_per_second": 4e12,
        "fraction_of_floor": 0.8,
        "bytes_per_unit": 52.0,
        "ours": 0.8 * 4e12 / 52,
        "commit": "def",
    }
    (results / "profiles_h200.json").write_text(json.dumps({"rows": rows}))
    (results / "bench_h200.json").write_text(json.dumps({"rows": [bench]}))
    text = " ".join(limits_block().split())
    assert "80 % of the floor, which counts 26 bytes" in text
    assert "has to move 22; by that count it reaches 68 %" in text
    assert "3.0 TB/s; a copy reaches 4.0" in text
    assert "take 23 % of the kernel time" in text
    assert "72 MB, in 36 µs: 2.0 TB/s" in text
    assert "LSTM cell kernels take 11 %, softmax and its gradient 7 %" in text


def test_the_autoencoder_stands_beside_products_for_a_moment_and_for_long(results: Path) -> None:
    num_values = 2 * (1000 + 504 + 256) * 35 * 4096
    kernels = [
        # Two updates, each of 35 times 1e11 FLOP: at 400 TFLOP/s 8,750 µs.
        {"name": "nvjet_a", "percent": 50.0, "calls": 10, "microseconds": 8750.0 / 5},
        {"name": "_forward", "percent": 10.0, "calls": 12, "microseconds": 2 * 2 * num_values / 2e6 / 6},
        {"name": "_backward", "percent": 20.0, "calls": 12, "microseconds": 3 * 2 * num_values / 3e6 / 6},
        {"name": "triton_addcmul", "percent": 8.0, "calls": 1, "microseconds": 1.0},
    ]
    bench = {
        "label": "autoencoder_mnist:4096",
        "batch_size": 4096,
        "copy_bytes_per_second": 4e12,
        "flop_per_unit": 1e11,
        "ours": 2000.0,
        "fraction_of_ceiling": 0.25,
        "commit": "def",
    }
    products = [
        {"numbers": "ones", "size": 4096, "shortest_flop_per_second": 9e14, "sustained_flop_per_second": 8e14},
        {"numbers": "normal", "size": 4096, "shortest_flop_per_second": 8e14, "sustained_flop_per_second": 5e14},
    ]
    rows = [profile_row("autoencoder_mnist:4096", 35, 2000.0, kernels=kernels)]
    (results / "profiles_h200.json").write_text(json.dumps({"rows": rows}))
    (results / "bench_h200.json").write_text(json.dumps({"rows": [bench]}))
    (results / "ceilings_h200.json").write_text(json.dumps({"rows": products, "seconds": 2.0}))
    text = " ".join(limits_block().split())
    assert "200 TFLOP/s, 25 % of the ceiling" in text
    assert "40 % of what such matmuls sustain over 2 seconds" in text
    assert "Matmuls take 50 % of the kernel time, at 80 % of that sustained speed" in text
    (results / "profiles_h200.json").write_text(json.dumps({"rows": [{**rows[0], "kernels": kernels[:2]}]}))
    assert "B = 4,096" not in limits_block()
    assert "Activations take 30 %: forward 2.0 and backward 3.0 TB/s; a copy reaches 4.0. Optimiser 8 %" in text


def test_the_norms_speed_in_a_network_counts_every_layer(results: Path) -> None:
    rows = [profile_row("wrn16x4_cifar10:8192", 1, 1.0, kernels=NORM)]
    (results / "profiles_h200.json").write_text(json.dumps({"rows": rows}))
    content = {"rows": [kernel_row(1024, 10, 1.0)], "copy_bytes_per_second": 2e9}
    (results / "kernels_h200.json").write_text(json.dumps(content))
    # 30 MB at B = 1,024 in ten layers are 24 MB a layer at B = 8,192; in the 2 µs of the profile: 12 TB/s.
    assert "12.0 TB/s inside the network; a copy reaches 4.0" in " ".join(limits_block().split())


def test_the_speed_of_convolutions_counts_both_kernels_and_all_runs(results: Path) -> None:
    kernels = [
        {"name": "_convolve", "percent": 20.0, "calls": 26, "microseconds": 100.0},
        {"name": "convolve_rows", "percent": 30.0, "calls": 36, "microseconds": 100.0},
        {"name": "_sum_gradients", "percent": 10.0, "calls": 14, "microseconds": 50.0},
        {"name": "sum_rows", "percent": 15.0, "calls": 18, "microseconds": 50.0},
        {"name": "nvjet_a", "percent": 5.0, "calls": 2, "microseconds": 1e6},
    ]
    (results / "profiles_h200.json").write_text(
        json.dumps({"rows": [profile_row("wrn16x4_cifar10:64", 24, 1.0, kernels=kernels)]})
    )
    bench = {
        "label": "wrn16x4_cifar10:64",
        "flop_per_unit": 1e9,
        "batch_size": 64,
        "ours": 1e5,
        "fraction_of_ceiling": 0.125,
        "commit": "def",
    }
    (results / "bench_h200.json").write_text(json.dumps({"rows": [bench]}))
    # Two updates of 24 x 64 images of a GFLOP: 1.536 TFLOP each in 3.9 ms. The ceiling is 800 TFLOP/s.
    text = " ".join(limits_block().split())
    assert "wrn16x4_cifar10:64 with 24 runs at abc 394 TFLOP/s, 49 % of the ceiling, in 75 % of the kernel time" in text
