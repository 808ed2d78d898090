"""Losses and metrics as people read them."""

from __future__ import annotations

import math

from isotherm.report.wording import is_percent


def number_text(value: float) -> str:
    """Return a loss or a metric in four digits.

    >>> number_text(0.5), number_text(12.3456), number_text(9876.5), number_text(math.nan), number_text(1e-9)
    ('0.5000', '12.35', '9,876', 'not finite', '1.000e-09')
    """
    if not math.isfinite(value):
        return "not finite"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:#.4g}".rstrip(".")


def metric_text(metric: str, value: float) -> str:
    """Return a metric's value as it is read, accuracy in percent.

    >>> metric_text("accuracy", 0.51234), metric_text("perplexity", 88.8)
    ('51.23 %', '88.80')
    """
    return f"{100 * value:.2f} %" if is_percent(metric) and math.isfinite(value) else number_text(value)
