"""Rows of result files with easy numbers, for the tests of the page on speed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from pages import results
from pages.performance.profiles import BEFORE_BFLOAT16_WEIGHTS, BEFORE_FACTORS, OLD_BENCH, ON_STREAMS, STREAMS
from pages.results import Row

NORM: list[Row] = [{"name": "_moments", "percent": 60.0, "calls": 4, "microseconds": 2.0}]


def empty_results(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an empty folder in place of the measured results."""
    monkeypatch.setattr(results, "RESULTS", folder)
    return folder


def easy_results(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put files with easy numbers in place of the measured ones; wrn16x4_cifar10:64 has its kernels in another row."""
    empty_results(folder, monkeypatch)
    profiles = [
        profile_row("autoencoder_mnist:64", 35, 20_000.0, kernels=NORM),
        profile_row("autoencoder_mnist:64", 35, 16_000.0, note=BEFORE_BFLOAT16_WEIGHTS),
        profile_row("autoencoder_mnist:64", 35, 18_000.0, note=BEFORE_FACTORS),
        profile_row("autoencoder_mnist:64", 35, 19_000.0, note=OLD_BENCH),
        profile_row("autoencoder_mnist:64", 36, 10_000.0, note=STREAMS[0]),
        profile_row("autoencoder_mnist:4096", 35, 100.0),
        profile_row("wrn16x4_cifar10:64", 4, 1875.0, images=120_000.0, kernels=NORM),
        profile_row("wrn16x4_cifar10:64", 24, 2343.75, images=150_000.0, note="with care"),
        profile_row("wrn16x4_cifar10:64", 4, 1875.0, images=120_000.0, note=ON_STREAMS),
        profile_row("wrn16x4_cifar10:64", 12, 2343.75, images=150_000.0, note=ON_STREAMS),
    ]
    machine = {"gpu": "a card", "torch": "2.x"}
    bench = [
        {
            "label": "autoencoder_mnist:64",
            "copy_bytes_per_second": 4e12,
            "ours": 20_000.0,
            "lowest": 19_000.0,
            "highest": 21_000.0,
            "commit": "def",
        },
        {
            "label": "autoencoder_mnist:4096",
            "flop_per_unit": 9.0,
            "fraction_of_ceiling": 0.3375,
            "copy_bytes_per_second": 4e12,
            "ours": 150.0,
            "lowest": 140.0,
            "highest": 160.0,
            "commit": "def",
        },
    ]
    (folder / "profiles_h200.json").write_text(
        json.dumps({"rows": profiles, "machine": machine, "windows": "of a second"})
    )
    earlier = [{**bench[0], "commit": "f52dc57"}]
    (folder / "bench_h200.json").write_text(json.dumps({"rows": bench, "earlier": earlier}))
    return folder


def profile_row(
    label: str, num_runs: int, speed: float, *, note: str = "", kernels: Sequence[Row] = (), images: float = 0.0
) -> Row:
    """Return a row of profiles_h200.json."""
    return {
        "label": label,
        "num_runs": num_runs,
        "run_steps_per_second": speed,
        "images_per_second": images,
        "windows": [0.9 * speed, speed, 1.1 * speed],
        "memory_gib": 1.0,
        "commit": "abc",
        "note": note,
        "kernels": list(kernels),
    }


def kernel_row(batch_size: int, num_layers: int, time: float, *, wrong: Sequence[str] = (), error: float = 1e-3) -> Row:
    """Return a row of kernels_h200.json."""
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


def lines_of(block: str) -> dict[str, tuple[str, ...]]:
    """Return the lines of a table by their first cell."""
    cells = [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in block.splitlines()]
    return {line[0]: line for line in cells if len(line) > 3}
