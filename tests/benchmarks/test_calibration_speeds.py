"""Speeds and differences are shown as the file has them."""

from __future__ import annotations

from pages.calibration.speeds import differences, speeds

ROW = {
    "task": "wrn16x4_cifar10",
    "batch_size": 256,
    "num_runs": 3,
    "precision": "mixed",
    "run_updates_per_second": 283.03,
    "lowest": 98.26,
    "highest": 1284.1,
    "examples_per_second": 72455.1,
    "peak_memory_gib": 3.462,
    "num_windows": 5,
    "device": "GPU",
    "torch": "2.0",
    "commit": "abc",
}
RESNET_50 = {**ROW, "task": "resnet50_imagenet", "num_runs": 1, "commit": "def"}
FAILED = {"task": "resnet50_imagenet", "batch_size": 256, "error": "RuntimeError: no\nmemory", "commit": "def"}


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def test_speeds_follow_the_file() -> None:
    found = _on_one_line(speeds({"rows": [ROW]}))
    assert "| `wrn16x4_cifar10` | 256 | 3 | mixed | 283 | 98.3 to 1,284 | 72,455 | 3.46 | 3.30 |" in found
    assert "GPU, torch 2.0, commit abc. Median, lowest and highest of 5 windows." in found
    assert "`resnet50_imagenet`: not measured yet with this script." in found


def test_speeds_with_resnet_50_do_not_call_it_missing() -> None:
    found = _on_one_line(speeds({"rows": [RESNET_50, ROW]}))
    assert "| `resnet50_imagenet` | 256 | 1 |" in found
    assert found.index("wrn16x4_cifar10") < found.index("resnet50_imagenet")  # in the order of the tasks
    assert "commit abc and def" in found
    assert "not measured yet" not in found


def test_a_speed_that_failed_says_why() -> None:
    found = _on_one_line(speeds({"rows": [ROW, FAILED]}))
    assert "`resnet50_imagenet`, B = 256: failed (RuntimeError: no memory)." in found
    assert "not measured yet" not in found


def test_differences_are_shown_when_there_are_some() -> None:
    assert "|" not in differences({"equality": []})
    row = {**ROW, "batch_size": 64, "num_runs": 2, "num_updates": 6}
    row["largest_relative_difference"] = {"test_loss": 0.0, "weight_norm_squared": 5.98e-9, "unheard_of": 1.5e-4}
    found = _on_one_line(differences({"equality": [row]}))
    assert "| task | B | precision | test loss | squared norm of weights | unheard_of |" in found
    assert "| `wrn16x4_cifar10` | 64 | mixed | 0 | 6.0e-09 | 1.5e-04 |" in found
    assert "over 2 runs after 6 updates" in found
