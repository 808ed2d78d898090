"""The calibration page says what the result files say: nobody types its numbers."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path

import pytest

import calibration_report as report
from pages.results import CALIBRATION
from pages.values import Value


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("document", report.DOCUMENTS, ids=lambda path: path.name)
def test_documents_are_as_generated(document: Path) -> None:
    text = document.read_text()
    assert report.PAGE.filled(text) == text, "run python benchmarks/calibration_report.py"


def test_every_block_is_in_a_document() -> None:
    together = "".join(path.read_text() for path in report.DOCUMENTS)
    for name in report.PAGE.blocks:
        assert together.count(f"<!-- calibration: {name} -->") == 1


def test_a_number_edited_by_hand_is_seen() -> None:
    text = report.DOCUMENTS[0].read_text()
    assert report.PAGE.filled(text.replace("2.940 ± 0.011", "2.910 ± 0.011")) == text


def test_empty_blocks_are_filled_and_what_lies_between_is_kept() -> None:
    empty = "a\n<!-- calibration: skip_init -->\n<!-- end -->\nb\n<!-- calibration: readme -->\n<!-- end -->\nc\n"
    found = report.PAGE.filled(empty)
    assert "\nb\n" in found
    assert report.PAGE.filled(found) == found
    assert report.readme_block() in found


def test_goals_are_judged_by_the_numbers() -> None:
    paper = report.Reference.parse("2.00 ± 0.01")
    for mean, verdict in ((2.03, "**met**"), (2.05, "**missed**"), (1.95, "**missed**")):
        ours = Value(mean=mean, sd=0.01, num=3)
        assert verdict in report._compared("s", "q", ours, paper, decimals=2, tolerance=2).goal


def test_values_agree_with_a_computation_by_hand() -> None:
    runs = report.runs_at("wrn_b256", 4.0)
    accuracies = [100 * run["test_metric"] for run in runs]
    mean = sum(accuracies) / 3
    deviation = math.sqrt(sum((a - mean) ** 2 for a in accuracies) / 2)
    found = report.value(runs, "test_metric", scale=100)
    assert found.mean == pytest.approx(mean)
    assert found.sd == pytest.approx(deviation)
    assert report.running_objective(runs[0]) == runs[0]["train_loss_running"] + runs[0]["l2_penalty"]
    assert report.shift_of_best(5, 7) == pytest.approx(0.42, abs=0.005)
    assert report.shift_of_best(15, 15) == pytest.approx(0, abs=1e-6)


def test_the_figure_shows_every_run() -> None:
    panels = report.panels()
    assert [len(panel.curves) for panel in panels] == [9, 9, 9, 6, 3, 3]
    assert [len(panel.series) for panel in panels] == [3, 3, 3, 2, 1, 1]
    assert [panel.first_drop for panel in panels] == [78_125, 8_280, 8_280, 4_882, 4_882, 78_125]
    for panel in panels:
        for curve in panel.curves:
            assert curve.steps[-1] == panel.num_steps
            assert all(panel.limits[0] < metric < panel.limits[1] for metric in curve.metrics)
    figure = report.figure()
    assert [axes.get_title() for axes in figure.axes[:6]] == [panel.title for panel in panels]


def test_every_run_is_in_the_figure_and_finished_at_full_length() -> None:
    contents = [json.loads(path.read_text()) for path in CALIBRATION.glob("*.json")]
    settings = [content for content in contents if "runs" in content]
    assert sum(len(content["runs"]) for content in settings) == sum(len(panel.curves) for panel in report.panels())
    assert all(content["is_full_length"] for content in settings)
    assert {run["result"]["outcome"] for content in settings for run in content["runs"]} == {"finished"}


def test_every_result_file_is_described_with_its_commit() -> None:
    lines = (CALIBRATION / "README.md").read_text().splitlines()
    for path in CALIBRATION.glob("*.json"):
        (line,) = (line for line in lines if line.startswith(f"| `{path.name}` |"))
        assert f"| {json.loads(path.read_text()).get('commit', 'in every row')} |" in line


def test_options_are_read_from_the_runs() -> None:
    assert [report.dropout(name) for name in report._LSTM_B16] == ["0.5", "0.35", "0.2"]
    assert report.option("wrn_b256_zero", "padding", "reflection") == "zero"
    assert report.option("wrn_b256", "padding", "reflection") == "reflection"


def test_crossings_of_straight_lines() -> None:
    assert report.crossings([0.0, 1.0, 2.0], [0.0, 4.0, 0.0], 1.0) == [0.25, 1.75]
    assert report.crossings([0.0, 1.0, 2.0], [0.0, 4.0, 0.0], 5.0) == []
    assert report.crossings([0.0, 1.0, 2.0], [1.0, 2.0, 3.0], 2.0) == [1.0]


def test_dropout_is_interpolated_as_by_hand() -> None:
    low, high = (report.runs_at(name, 1.4) for name in ("lstm_b16_little_dropout", "lstm_b16_less_dropout"))
    (test_low, train_low), (test_high, train_high) = (
        [sum(run[quantity] for run in runs) / 3 for quantity in ("test_metric", "train_metric")] for runs in (low, high)
    )
    part = (35.85 - train_low) / (train_high - train_low)
    there = test_low + part * (test_high - test_low)
    assert f"dropout of {0.2 + 0.15 * part:.2f}, where the test perplexity is {there:.2f}" in _on_one_line(
        report.lstm_block()
    )


def test_paddings_are_contrasted_as_by_hand() -> None:
    runs, mirrored = ([{"x": x + shift} for x in (1.0, 2.0, 3.0)] for shift in (4.0, 0.0))
    # Means 4 apart, standard error sqrt(2/3), 4 degrees of freedom: half width 2.776 standard errors.
    half = 2.7764 * math.sqrt(2 / 3)
    found = report._contrast(runs, mirrored, lambda run: run["x"], decimals=2)
    assert found == f"+4.00 [+{4 - half:.2f}, +{4 + half:.2f}] (p = 0.008)"
    # The page says that the loss tells the paddings apart and the accuracy does not.
    p_values = [float(p) for p in re.findall(r"\(p = ([\d.]+)\)", report._padding_text())]
    assert p_values[0] > 0.05 > p_values[1]


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


def test_speeds_follow_the_file() -> None:
    found = _on_one_line(report.speeds({"rows": [ROW]}))
    assert "| `wrn16x4_cifar10` | 256 | 3 | mixed | 283 | 98.3 to 1,284 | 72,455 | 3.46 | 3.30 |" in found
    assert "GPU, torch 2.0, commit abc. Median, lowest and highest of 5 windows." in found
    assert "`resnet50_imagenet`: not measured yet with this script." in found


def test_speeds_with_resnet_50_do_not_call_it_missing() -> None:
    found = _on_one_line(report.speeds({"rows": [RESNET_50, ROW]}))
    assert "| `resnet50_imagenet` | 256 | 1 |" in found
    assert found.index("wrn16x4_cifar10") < found.index("resnet50_imagenet")  # in the order of the tasks
    assert "commit abc and def" in found
    assert "not measured yet" not in found


def test_a_speed_that_failed_says_why() -> None:
    found = _on_one_line(report.speeds({"rows": [ROW, FAILED]}))
    assert "`resnet50_imagenet`, B = 256: failed (RuntimeError: no memory)." in found
    assert "not measured yet" not in found


def test_differences_are_shown_when_there_are_some() -> None:
    assert "|" not in report.differences({"equality": []})
    row = {**ROW, "batch_size": 64, "num_runs": 2, "num_updates": 6}
    row["largest_relative_difference"] = {"test_loss": 0.0, "weight_norm_squared": 5.98e-9, "unheard_of": 1.5e-4}
    found = _on_one_line(report.differences({"equality": [row]}))
    assert "| task | B | precision | test loss | squared norm of weights | unheard_of |" in found
    assert "| `wrn16x4_cifar10` | 64 | mixed | 0 | 6.0e-09 | 1.5e-04 |" in found
    assert "over 2 runs after 6 updates" in found


@pytest.mark.real_data
@pytest.mark.skipif("ISOTHERM_DATA" not in os.environ, reason="ISOTHERM_DATA is not set")
def test_a_collapsed_run_scores_like_the_mean_image() -> None:
    from isotherm.data import mnist
    from isotherm.data.catalogue import data_folder

    train, test = (images.flatten(1).double() / 255 for images, _ in mnist.load(data_folder()))
    scores = [float((images - train.mean(dim=0)).square().sum(dim=1).mean()) for images in (test, train)]
    assert scores == pytest.approx([report.MEAN_IMAGE_TEST, report.MEAN_IMAGE_TRAIN], abs=1e-4)
