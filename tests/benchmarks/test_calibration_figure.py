"""The figure shows every run."""

from __future__ import annotations

import json

from pages.calibration.figure import figure, panels
from pages.results import CALIBRATION


def test_the_figure_shows_every_run() -> None:
    shown = panels()
    assert [len(panel.curves) for panel in shown] == [9, 9, 9, 6, 3, 3]
    assert [len(panel.series) for panel in shown] == [3, 3, 3, 2, 1, 1]
    assert [panel.first_drop for panel in shown] == [78_125, 8_280, 8_280, 4_882, 4_882, 78_125]
    for panel in shown:
        for curve in panel.curves:
            assert curve.steps[-1] == panel.num_steps
            assert all(panel.limits[0] < metric < panel.limits[1] for metric in curve.metrics)
    drawn = figure()
    assert [axes.get_title() for axes in drawn.axes[:6]] == [panel.title for panel in shown]


def test_every_run_is_in_the_figure_and_finished_at_full_length() -> None:
    contents = [json.loads(path.read_text()) for path in CALIBRATION.glob("*.json")]
    settings = [content for content in contents if "runs" in content]
    assert sum(len(content["runs"]) for content in settings) == sum(len(panel.curves) for panel in panels())
    assert all(content["is_full_length"] for content in settings)
    assert {run["result"]["outcome"] for content in settings for run in content["runs"]} == {"finished"}
