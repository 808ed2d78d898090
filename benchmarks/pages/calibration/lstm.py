"""The language model: perplexities by definition, learning rate and dropout."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from pages.calibration.runs import (
    LSTM_B16,
    Run,
    commits_of,
    dropout,
    load,
    rate_texts,
    rates,
    reference,
    running_perplexity,
    runs_at,
    value,
)
from pages.text import paragraph, signed, table
from pages.values import Value


def lstm_block() -> str:
    """Return the language model's perplexities by definition and learning rate, and compare the two best rates."""
    lines = []
    for batch_size, names in ((64, ("lstm_b64",)), (16, LSTM_B16)):
        cells = [(name, rate, text) for name in names for rate, text in rate_texts(name).items()]
        for name, rate, text in cells:
            runs = runs_at(name, rate)
            lines.append(
                (
                    f"{batch_size}",
                    text,
                    dropout(name),
                    value(runs, "test_metric").text(2, with_num=False),
                    value(runs, "validation_metric").text(2, with_num=False),
                    value(runs, "train_metric").text(2, with_num=False),
                    value(runs, running_perplexity).text(2, with_num=False),
                    f"{value(runs, 'clipped_fraction', scale=100).mean:.1f} %",
                )
            )
        paper = load(names[0])["paper"]
        lines.append((f"{batch_size}", f"{paper['rate']:g} (paper)", "–", paper["test"], "–", paper["train"], "–", "–"))
    header = (
        "B",
        "ε_eff",
        "dropout",
        "test",
        "validation",
        "training, dropout off",
        "training, dropout on",
        "clipped updates",
    )
    low, high = runs_at("lstm_b64", 2.0), runs_at("lstm_b64", 2.8)
    at_low, at_high = value(low, "test_metric"), value(high, "test_metric")
    unpaired = math.hypot(at_low.standard_error, at_high.standard_error)
    test, validation = (_paired(low, high, quantity) for quantity in ("test_metric", "validation_metric"))
    target = reference("lstm_b64", "train").mean
    off_low, off_high = (100 * (value(runs, "train_metric").mean / target - 1) for runs in (low, high))
    which = f"""
        Three seeds each. 2.8 minus 2.0 on the test set: {test.mean:+.2f}, which is {test.mean / unpaired:.1f} standard
        errors ({unpaired:.2f}) if all runs are taken as independent (Welch's p = {_welch(low, high):.2f}). They are
        not: runs of one seed share initialisation, data order and dropout masks. Paired by seed it is
        {test.mean:+.2f} ± {test.sd:.2f} (sd, n = {test.num}), 2.0 ahead for {_num_ahead(low, high, "test_metric")} of
        {test.num} seeds (p = {_paired_p(low, high, "test_metric"):.2f}). On the validation set it is
        {validation.mean:+.2f} ± {validation.sd:.2f}, 2.0 ahead for {_num_ahead(low, high, "validation_metric")} of
        {validation.num} (p = {_paired_p(low, high, "validation_metric"):.2f})."""
    training = f"""
        The training perplexity with dropout off differs from the paper's by {off_low:+.1f} % at 2.0 and by
        {off_high:+.1f} % at 2.8. With dropout on, averaged over the last epoch, it is
        {value(low, running_perplexity).mean:.1f} and {value(high, running_perplexity).mean:.1f}, far from the paper's
        at both."""
    clipped = {rate: value(runs_at("lstm_b64", rate), "clipped_fraction", scale=100).mean for rate in rates("lstm_b64")}
    clipping = f"""
        Nearly every update is clipped, at B = 64 less often as the learning rate grows:
        {max(clipped.values()):.0f} % at {min(clipped):.1f}, {min(clipped.values()):.0f} % at {max(clipped):.1f}."""
    paragraphs = (which, training, clipping, _dropout_text())
    return "\n\n".join((table(header, lines), *map(paragraph, paragraphs)))


def crossings(x: Sequence[float], y: Sequence[float], target: float) -> list[float]:
    """Return where the straight lines between points reach a value, in ascending order.

    >>> crossings([0, 1, 2], [0.0, 4.0, 0.0], 1.0)
    [0.25, 1.75]
    """
    return [
        left + (right - left) * (target - low) / (high - low)
        for left, right, low, high in zip(x, x[1:], y, y[1:], strict=False)
        if min(low, high) <= target < max(low, high)
    ]


def _dropout_text() -> str:
    """Return which dropout would give the paper's perplexities at B = 16, interpolated between those that were run."""
    names = sorted(LSTM_B16, key=lambda name: float(dropout(name)))
    places = [float(dropout(name)) for name in names]
    rate = load(names[0])["paper"]["rate"]
    tests, trains = (
        [value(runs_at(name, rate), quantity).mean for name in names] for quantity in ("test_metric", "train_metric")
    )
    test, train = reference(names[0], "test").mean, reference(names[0], "train").mean
    (fits_train,) = crossings(places, trains, train)
    there = float(np.interp(fits_train, places, tests))
    fitting_test = [(x, float(np.interp(x, places, trains))) for x in crossings(places, tests, test)]
    at_those = " and at ".join(f"{x:.2f} (training {y:.1f}, {100 * (y / train - 1):+.1f} %)" for x, y in fitting_test)
    bent_test, bent_train = (np.polynomial.Polynomial.fit(places, y, 2) for y in (tests, trains))
    roots = [float(np.real(x)) for x in (bent_train - train).roots()]
    (bent,) = (x for x in roots if places[0] <= x <= places[-1])
    bent_there = float(bent_test(bent))
    return f"""
        Dropout at B = 16: interpolated linearly between the three values that were run, the training perplexity equals
        the paper's at a dropout of {fits_train:.2f}, where the test perplexity is {there:.2f},
        {signed(there - test, 2)} from the paper's. The test perplexity equals the paper's at {at_those}. On parabolas
        through the three, the training perplexity equals the paper's at {bent:.2f}, where the test perplexity is
        {bent_there:.2f}, {signed(bent_there - test, 2)} from the paper's. {commits_of(LSTM_B16)}"""


def _paired(low: Sequence[Run], high: Sequence[Run], quantity: str) -> Value:
    return Value.of([b[quantity] - a[quantity] for a, b in zip(low, high, strict=True)])


def _num_ahead(low: Sequence[Run], high: Sequence[Run], quantity: str) -> int:
    return sum(a[quantity] < b[quantity] for a, b in zip(low, high, strict=True))


def _welch(low: Sequence[Run], high: Sequence[Run]) -> float:
    a, b = ([run["test_metric"] for run in runs] for runs in (low, high))
    return float(stats.ttest_ind(a, b, equal_var=False).pvalue)


def _paired_p(low: Sequence[Run], high: Sequence[Run], quantity: str) -> float:
    a, b = ([run[quantity] for run in runs] for runs in (low, high))
    return float(stats.ttest_rel(a, b).pvalue)
