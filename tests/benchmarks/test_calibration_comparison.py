"""Settings are judged against the paper by their numbers."""

from __future__ import annotations

from pages.calibration.comparison import compared
from pages.calibration.runs import Reference
from pages.values import Value


def test_goals_are_judged_by_the_numbers() -> None:
    paper = Reference.parse("2.00 ± 0.01")
    for mean, verdict in ((2.03, "**met**"), (2.05, "**missed**"), (1.95, "**missed**")):
        ours = Value(mean=mean, sd=0.01, num=3)
        assert verdict in compared("s", "q", ours, paper, decimals=2, tolerance=2).goal
