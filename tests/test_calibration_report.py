"""The calibration page says what the result files say: nobody types its numbers."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("calibration_report", ROOT / "benchmarks" / "calibration_report.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


report = _load()


@pytest.mark.parametrize("document", report.DOCUMENTS, ids=lambda path: path.name)
def test_documents_are_as_generated(document: Path) -> None:
    text = document.read_text()
    assert report.filled(text) == text, "run python benchmarks/calibration_report.py"


def test_every_block_is_in_a_document() -> None:
    together = "".join(path.read_text() for path in report.DOCUMENTS)
    for name in report.BLOCKS:
        assert together.count(f"<!-- calibration: {name} -->") == 1


def test_a_number_edited_by_hand_is_seen() -> None:
    text = report.DOCUMENTS[0].read_text()
    assert report.filled(text.replace("2.940 ± 0.011", "2.910 ± 0.011")) == text


def test_empty_blocks_are_filled_and_what_lies_between_is_kept() -> None:
    empty = "a\n<!-- calibration: skip_init -->\n<!-- end -->\nb\n<!-- calibration: readme -->\n<!-- end -->\nc\n"
    found = report.filled(empty)
    assert "\nb\n" in found
    assert report.filled(found) == found
    assert report.readme_block() in found


def test_goals_are_judged_by_the_numbers() -> None:
    paper = report.Reference.parse("2.00 ± 0.01")
    for mean, verdict in ((2.03, "**met**"), (2.05, "**missed**"), (1.95, "**missed**")):
        ours = report.Value(mean=mean, sd=0.01, num=3)
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
    assert [len(panel.curves) for panel in panels] == [9, 9, 3, 3, 3, 1]
    assert [panel.first_drop for panel in panels] == [78_125, 8_280, 8_280, 4_882, 4_882, 78_125]
    for panel in panels:
        for curve in panel.curves:
            assert (curve.steps[-1] == panel.num_steps) == curve.is_finished
            assert all(panel.limits[0] < metric < panel.limits[1] for metric in curve.metrics)
    assert not panels[-1].curves[0].is_finished
    figure = report.figure()
    assert [axes.get_title() for axes in figure.axes[:6]] == [panel.title for panel in panels]


@pytest.mark.real_data
@pytest.mark.skipif("ISOTHERM_DATA" not in os.environ, reason="ISOTHERM_DATA is not set")
def test_a_collapsed_run_scores_like_the_mean_image() -> None:
    from isotherm.data import mnist
    from isotherm.data.catalogue import data_folder

    train, test = (images.flatten(1).double() / 255 for images, _ in mnist.load(data_folder()))
    scores = [float((images - train.mean(dim=0)).square().sum(dim=1).mean()) for images in (test, train)]
    assert scores == pytest.approx([report.MEAN_IMAGE_TEST, report.MEAN_IMAGE_TRAIN], abs=1e-4)
