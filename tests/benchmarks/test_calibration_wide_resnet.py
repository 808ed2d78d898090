"""Paddings are contrasted by Welch's test."""

from __future__ import annotations

import math
import re

from pages.calibration.wide_resnet import contrast, padding_text


def test_paddings_are_contrasted_as_by_hand() -> None:
    runs, mirrored = ([{"x": x + shift} for x in (1.0, 2.0, 3.0)] for shift in (4.0, 0.0))
    # Means 4 apart, standard error sqrt(2/3), 4 degrees of freedom: half width 2.776 standard errors.
    half = 2.7764 * math.sqrt(2 / 3)
    found = contrast(runs, mirrored, lambda run: run["x"], decimals=2)
    assert found == f"+4.00 [+{4 - half:.2f}, +{4 + half:.2f}] (p = 0.008)"
    # The page says that the loss tells the paddings apart and the accuracy does not.
    p_values = [float(p) for p in re.findall(r"\(p = ([\d.]+)\)", padding_text())]
    assert p_values[0] > 0.05 > p_values[1]
