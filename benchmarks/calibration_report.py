"""Draw the calibration runs and write their numbers into the documents.

    python benchmarks/calibration_report.py

Reads results/calibration/*.json; writes docs/figures/calibration.png and every block between the markers
`<!-- calibration: NAME -->` and `<!-- end -->` in docs/calibration.md and README.md. Nobody types those numbers.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator
from scipy import integrate, stats

from isotherm.named_tasks import TASKS
from isotherm.report.style import Style, ordered_styles
from isotherm.schedule import num_drops
from pages.blocks import Page
from pages.results import CALIBRATION, ROOT
from pages.text import paragraph, signed, signed_interval, table
from pages.values import Value

FIGURE = ROOT / "docs" / "figures" / "calibration.png"
DOCUMENTS = (ROOT / "docs" / "calibration.md", ROOT / "README.md")

# Squared error of the mean training image on the test and the training images of MNIST: what a network scores whose
# output no longer depends on its input. `test_calibration_report.py` computes them from the data.
MEAN_IMAGE_TEST, MEAN_IMAGE_TRAIN = 52.8965, 52.7250
# A squared error above this is a collapse: no trained network of these comes near.
COLLAPSED = 40.0

Run = dict[str, Any]


# -- the runs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reference:
    """A value of the paper, with the number of decimals it is given to."""

    mean: float
    sd: float
    text: str

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Return the reference that the JSON has as text.

        >>> Reference.parse("93.5 ± 0.1 %").mean
        93.5
        """
        mean, sd = (float(part) for part in text.removesuffix("%").split("±"))
        return cls(mean=mean, sd=sd, text=text.removesuffix(" %"))


def load(name: str) -> dict[str, Any]:
    """Return the content of one result file."""
    content: dict[str, Any] = json.loads((CALIBRATION / f"{name}.json").read_text())
    return content


def rates(name: str) -> list[float]:
    """Return the effective learning rates of a setting, rising."""
    return sorted({run["spec"]["effective_learning_rate"] for run in load(name)["runs"]})


def runs_at(name: str, rate: float) -> list[Run]:
    """Return the results at one learning rate, by seed."""
    found = [run for run in load(name)["runs"] if run["spec"]["effective_learning_rate"] == rate]
    return [run["result"] for run in sorted(found, key=lambda run: run["spec"]["seed"])]


def value(runs: Sequence[Run], quantity: str | Callable[[Run], float], *, scale: float = 1.0) -> Value:
    """Return mean and standard deviation of a quantity over runs."""
    function = quantity if callable(quantity) else lambda run: run[quantity]
    return Value.of([scale * function(run) for run in runs])


def reference(name: str, quantity: str) -> Reference:
    """Return the paper's "test" or "train" value of a setting."""
    return Reference.parse(load(name)["paper"][quantity])


def running_perplexity(run: Run) -> float:
    """Return the perplexity with dropout on, over the last epoch."""
    return math.exp(run["train_loss_running"])


def running_objective(run: Run) -> float:
    """Return cross entropy of the last epoch, as trained on, plus L2 penalty."""
    return float(run["train_loss_running"] + run["l2_penalty"])


def evaluated_objective(run: Run) -> float:
    """Return cross entropy of the final weights in evaluation mode plus L2 penalty."""
    return float(run["train_loss"] + run["l2_penalty"])


def best_rate(name: str) -> float:
    """Return the learning rate with the lowest mean test metric."""
    return min(rates(name), key=lambda rate: value(runs_at(name, rate), "test_metric").mean)


def rate_texts(name: str) -> dict[float, str]:
    """Return the learning rates of a setting as text, all with as many decimals."""
    found = rates(name)
    decimals = max(len(f"{rate:g}".partition(".")[2]) for rate in found)
    return {rate: f"{rate:.{decimals}f}" for rate in found}


def option(name: str, option_name: str, default: str) -> str:
    """Return an option of a setting's task, which stands in the name its runs have for the task, or the default."""
    task = load(name)["runs"][0]["spec"]["task"]
    found = re.search(rf"\b{option_name}=([^,)]+)", task)
    return found[1] if found else default


def dropout(name: str) -> str:
    """Return the dropout of a language model's setting."""
    return option(name, "drop_probability", "0.5")


def crossings(x: Sequence[float], y: Sequence[float], target: float) -> list[float]:
    """Return where the straight lines between points reach a value, rising.

    >>> crossings([0, 1, 2], [0.0, 4.0, 0.0], 1.0)
    [0.25, 1.75]
    """
    return [
        left + (right - left) * (target - low) / (high - low)
        for left, right, low, high in zip(x, x[1:], y, y[1:], strict=False)
        if min(low, high) <= target < max(low, high)
    ]


def shift_of_best(kept: int, num: int) -> float:
    """Return by how many standard deviations the mean of the best `kept` of `num` normal values is shifted.

    >>> round(shift_of_best(12, 15), 2)
    0.33
    """

    def expected(rank: int) -> float:
        place = stats.beta(rank, num + 1 - rank)
        found, _ = integrate.quad(lambda x: x * place.pdf(stats.norm.cdf(x)) * stats.norm.pdf(x), -8, 8)
        return float(found)

    return sum(expected(rank) for rank in range(num - kept + 1, num + 1)) / kept


# -- the tables -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the main table."""

    setting: str
    quantity: str
    paper: str
    ours: str
    difference: str = "–"
    goal: str
    in_readme: bool = True


def _compared(
    setting: str,
    quantity: str,
    ours: Value,
    paper: Reference,
    *,
    decimals: int,
    unit: str = "%",
    tolerance: float | None = None,
    lowest: float | None = None,
    otherwise: str = "–",
    in_readme: bool = True,
) -> Row:
    """Return a line that compares two means, in the unit of the tolerance: per cent or points."""
    points = ours.mean - paper.mean
    amount = 100 * points / paper.mean if unit == "%" else points
    difference = f"{signed(amount, 1)} %" if unit == "%" else signed(amount, 2)
    goal = otherwise
    if lowest is not None:
        goal = f"at most {-lowest:g} below: {'**met**' if amount >= lowest else '**missed**'}"
    if tolerance is not None:
        verdict = "**met**" if abs(amount) <= tolerance else "**missed**"
        goal = f"within {tolerance:g} %: {verdict}" if unit == "%" else f"within {tolerance:.1f}: {verdict}"
    return Row(
        setting=setting,
        quantity=quantity,
        paper=paper.text,
        ours=ours.text(decimals),
        difference=difference,
        goal=goal,
        in_readme=in_readme,
    )


def rows() -> list[Row]:
    """Return the main table."""
    return [*_autoencoder_rows(), *_lstm_rows(), *_wide_resnet_rows(), *_skip_init_rows()]


def _autoencoder_rows() -> list[Row]:
    name, rate = "autoencoder", 0.08
    setting = "autoencoder, B = 64, ε_eff = 0.08"
    runs = runs_at(name, rate)
    best = best_rate(name)
    tried = ", ".join(rate_texts(name).values())
    return [
        _compared(
            setting,
            "test squared error",
            value(runs, "test_metric"),
            reference(name, "test"),
            decimals=3,
            tolerance=2,
        ),
        _compared(
            setting,
            "training squared error",
            value(runs, "train_metric"),
            reference(name, "train"),
            decimals=4,
            tolerance=2,
        ),
        Row(
            setting="autoencoder, B = 64",
            quantity="best ε_eff",
            paper="0.08",
            ours=f"{best:g} of {tried} (3 each)",
            goal=f"0.08: {'**met**' if best == 0.08 else '**missed**'}",
            in_readme=False,
        ),
    ]


_LSTM_B16 = ("lstm_b16", "lstm_b16_less_dropout", "lstm_b16_little_dropout")  # with the task's dropout first


def _lstm_rows() -> list[Row]:
    test, train = reference("lstm_b64", "test"), reference("lstm_b64", "train")
    found = []
    for rate in (2.8, 2.0):
        setting = f"LSTM, B = 64, ε_eff = {rate_texts('lstm_b64')[rate]}"
        runs = runs_at("lstm_b64", rate)
        is_papers = rate == load("lstm_b64")["paper"]["rate"]
        found += [
            _compared(
                setting,
                "test perplexity",
                value(runs, "test_metric"),
                test,
                decimals=2,
                unit="points",
                tolerance=1.0 if is_papers else None,
                in_readme=is_papers,
                otherwise="–, not the paper's ε_eff",
            ),
            _compared(
                setting,
                "training perplexity",
                value(runs, "train_metric"),
                train,
                decimals=2,
                in_readme=is_papers,
                otherwise="open" if is_papers else "–, not the paper's ε_eff",
            ),
        ]
    texts = rate_texts("lstm_b64")
    best = best_rate("lstm_b64")
    where = ", at the grid's edge" if best in (min(texts), max(texts)) else ""
    found.append(
        Row(
            setting="LSTM, B = 64",
            quantity="best ε_eff",
            paper=f"{load('lstm_b64')['paper']['rate']:g}",
            ours=f"{texts[best]} of {', '.join(texts.values())} (3 each){where}",
            goal="open",
            in_readme=False,
        )
    )
    runs = runs_at(_LSTM_B16[0], 1.4)
    setting = "LSTM, B = 16, ε_eff = 1.4"
    found += [
        _compared(
            setting,
            "test perplexity",
            value(runs, "test_metric"),
            reference("lstm_b16", "test"),
            decimals=2,
            unit="points",
            otherwise="open",
        ),
        _compared(
            setting,
            "training perplexity",
            value(runs, "train_metric"),
            reference("lstm_b16", "train"),
            decimals=2,
            otherwise="open",
        ),
    ]
    return found


_WIDE_RESNETS = (("wrn_b256", 256, 4.0), ("wrn_b1024", 1024, 8.0))
_ZERO_PADDED = ("wrn_b256_zero", 256, 4.0)
_SKIP_INIT = "skipinit_b64"


def _wide_resnet_rows() -> list[Row]:
    found = []
    for name, batch_size, rate in _WIDE_RESNETS:
        runs = runs_at(name, rate)
        setting = f"WRN-16-4, ghost batch norm, B = {batch_size:,}, ε_eff = {rate:g}"
        found += [
            _compared(
                setting,
                "test accuracy, %",
                value(runs, "test_metric", scale=100),
                reference(name, "test"),
                decimals=2,
                unit="points",
                lowest=-0.2,
            ),
            _compared(
                setting,
                "training loss with L2",
                value(runs, running_objective),
                reference(name, "train"),
                decimals=4,
                tolerance=10,
            ),
        ]
    return found


def _skip_init_rows() -> list[Row]:
    runs = runs_at(_SKIP_INIT, 0.25)
    setting = "WRN-16-4, SkipInit, B = 64, ε_eff = 0.25"
    return [
        _compared(
            setting,
            "test accuracy, %",
            value(runs, "test_metric", scale=100),
            reference(_SKIP_INIT, "test"),
            decimals=2,
            unit="points",
            lowest=-0.2,
        ),
        _compared(
            setting,
            "training loss with L2",
            value(runs, running_objective),
            reference(_SKIP_INIT, "train"),
            decimals=4,
            tolerance=10,
        ),
    ]


def results_block() -> str:
    """Return the main table."""
    header = ("setting", "quantity", "paper", "ours: mean ± sd (n)", "difference", "goal")
    return table(header, [(r.setting, r.quantity, r.paper, r.ours, r.difference, r.goal) for r in rows()])


def readme_block() -> str:
    """Return the main rows for the front page."""
    header = ("setting", "quantity", "paper", "ours: mean ± sd (n)", "goal")
    return table(header, [(r.setting, r.quantity, r.paper, r.ours, r.goal) for r in rows() if r.in_readme])


def autoencoder_block() -> str:
    """Return the autoencoder at every learning rate, and what happened at the largest."""
    lines = []
    for rate in rates("autoencoder"):
        runs = runs_at("autoencoder", rate)
        good = [run for run in runs if run["test_metric"] < COLLAPSED]
        lines.append(
            (
                f"{rate:g}",
                value(good, "test_metric").text(3),
                value(good, "train_metric").text(4 if rate == 0.08 else 3),
                f"{len(runs) - len(good)} of {len(runs)}",
            )
        )
    by_rate = table(("ε_eff", "test squared error", "training squared error", "collapsed, left out"), lines)
    highest = max(rates("autoencoder"))
    runs = runs_at("autoencoder", highest)
    (collapsed,) = (run for run in runs if run["test_metric"] > COLLAPSED)
    place = next(k for k, point in enumerate(collapsed["curve"]) if point["test_metric"] > COLLAPSED)
    before, after = collapsed["curve"][place - 1], collapsed["curve"][place]
    tests = ", ".join(f"{run['test_metric']:.2f}" for run in runs)
    trains = ", ".join(f"{run['train_metric']:.2f}" for run in runs)
    outcomes = " and ".join(sorted({f"`{run['outcome']}`" for run in runs}))
    test, train = (value(runs_at("autoencoder", 0.08), quantity) for quantity in ("test_metric", "train_metric"))
    test_gap = test.mean - reference("autoencoder", "test").mean
    train_gap = train.mean - reference("autoencoder", "train").mean
    largest = f"""
        At ε_eff = {highest:g} the three runs end at {tests} on the test set and {trains} on the training set. The last
        collapsed between updates {before["step"]:,} and {after["step"]:,} (test {before["test_metric"]:.2f}, then
        {after["test_metric"]:.2f}) and did not come back: it scores like the mean training image,
        {MEAN_IMAGE_TEST:.2f} and {MEAN_IMAGE_TRAIN:.2f}. Its loss stayed finite, so all three are recorded as
        {outcomes}, none as diverged, and the mean test error over all three is
        {value(runs, "test_metric").mean:.1f}. The other two fit the training set best of all and test worse."""
    optimum = f"""
        At ε_eff = 0.08 we lie above the paper by {test_gap:.3f} on the test set and {train_gap:.4f} on the training
        set: inside the goal, yet more than either spread. The paper's mean is over the best 5 of 7 seeds, which favours
        it by {shift_of_best(5, 7):.2f} standard deviations of a run, {shift_of_best(5, 7) * test.sd:.3f} with our
        spread on the test set: a small part of it. The rest is open."""
    return "\n\n".join((by_rate, paragraph(largest), paragraph(optimum)))


def lstm_block() -> str:
    """Return the language model's perplexities by definition and learning rate, and the two that compete."""
    lines = []
    for batch_size, names in ((64, ("lstm_b64",)), (16, _LSTM_B16)):
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
        The training perplexity with dropout off is {off_low:+.1f} % from the paper's at 2.0 and {off_high:+.1f} % at
        2.8. With dropout on, averaged over the last epoch, it is {value(low, running_perplexity).mean:.1f} and
        {value(high, running_perplexity).mean:.1f}: far from it at both."""
    clipped = {rate: value(runs_at("lstm_b64", rate), "clipped_fraction", scale=100).mean for rate in rates("lstm_b64")}
    clipping = f"""
        Nearly every update is cut, at B = 64 less often as the learning rate grows: {max(clipped.values()):.0f} % at
        {min(clipped):.1f}, {min(clipped.values()):.0f} % at {max(clipped):.1f}."""
    paragraphs = (which, training, clipping, _dropout_text())
    return "\n\n".join((table(header, lines), *map(paragraph, paragraphs)))


def _dropout_text() -> str:
    """Return which dropout would give the paper's perplexities at B = 16, between the ones that were run."""
    names = sorted(_LSTM_B16, key=lambda name: float(dropout(name)))
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
        Dropout at B = 16: on straight lines between the three that were run, the training perplexity is the paper's at
        a dropout of {fits_train:.2f}, where the test perplexity is {there:.2f}, {signed(there - test, 2)} from the
        paper's. The test perplexity is the paper's at {at_those}. On parabolas through the three, the training
        perplexity is the paper's at {bent:.2f}, where the test perplexity is {bent_there:.2f},
        {signed(bent_there - test, 2)} from the paper's. {_commits(_LSTM_B16)}"""


def _commits(names: Sequence[str]) -> str:
    """Return a sentence on which settings are of which commit."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(load(name)["commit"], []).append(f"`{name}`")
    return "Runs: " + ", ".join(f"{_listed(files)} of commit {commit}" for commit, files in found.items()) + "."


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


def wide_resnet_block() -> str:
    """Return both candidates for the training loss, both evaluations of ghost batch norm, and both paddings."""
    losses, accuracies = [], []
    for name, batch_size, rate in (_WIDE_RESNETS[0], _ZERO_PADDED, *_WIDE_RESNETS[1:]):
        runs = runs_at(name, rate)
        padding = option(name, "padding", "reflection")
        paper = reference(name, "train")
        losses.append((f"{batch_size:,}", padding, paper.text, *_loss_cells(runs, paper)))
        anew = value(runs, "test_metric", scale=100)
        averaged = value(runs, "test_metric_running", scale=100)
        gap = value(runs, lambda run: 100 * (run["test_metric"] - run["test_metric_running"]))
        accuracies.append(
            (
                f"{batch_size:,}",
                padding,
                reference(name, "test").text,
                anew.text(2, with_num=False),
                averaged.text(2, with_num=False),
                f"{signed(gap.mean, 2)} ± {gap.sd:.2f}",
            )
        )
    header = ("B", "padding", *_LOSS_HEADER)
    second = ("B", "padding", "paper, %", "statistics re-estimated, %", "running averages, %", "difference, by run")
    tables = (table(header, losses), table(second, accuracies))
    return "\n\n".join((*tables, paragraph(f"Three seeds each. {_padding_text()}")))


_LOSS_HEADER = ("paper", "running CE + L2", "off by", "evaluation CE + L2", "off by")


def _loss_cells(runs: Sequence[Run], paper: Reference) -> list[str]:
    """Return both candidates for the paper's training loss, each with how far it is off."""
    cells = []
    for part, whole in (("train_loss_running", running_objective), ("train_loss", evaluated_objective)):
        total = value(runs, whole)
        penalty = value(runs, "l2_penalty").mean
        sum_ = f"{value(runs, part).mean:.4f} + {penalty:.4f} = {total.text(4, with_num=False)}"
        cells += [sum_, f"{signed(100 * (total.mean / paper.mean - 1), 1)} %"]
    return cells


def _padding_text() -> str:
    """Return what the padding changes, and how surely."""
    name, _, rate = _WIDE_RESNETS[0]
    zero_name, _, zero_rate = _ZERO_PADDED
    reflected, zero = runs_at(name, rate), runs_at(zero_name, zero_rate)
    accuracy = _contrast(reflected, zero, lambda run: 100 * run["test_metric"], decimals=2)
    loss = _contrast(reflected, zero, running_objective, decimals=4)
    above = [value(r, "test_metric", scale=100).mean - reference(name, "test").mean for r in (reflected, zero)]
    return f"""
        Reflection minus zero padding at B = 256, with 95 % intervals and p of Welch's test: test accuracy in points
        {accuracy}, running CE + L2 {loss}. Minus the paper's accuracy: {signed(above[0], 2)} points with reflection,
        {signed(above[1], 2)} with zero padding. {_commits((name, zero_name))}"""


def _contrast(first: Sequence[Run], second: Sequence[Run], quantity: Callable[[Run], float], *, decimals: int) -> str:
    """Return the difference of two means with its interval and its significance, the runs taken as independent."""
    a, b = ([quantity(run) for run in runs] for runs in (first, second))
    test = stats.ttest_ind(a, b, equal_var=False)
    interval = test.confidence_interval(0.95)
    difference = statistics.mean(a) - statistics.mean(b)
    text = signed_interval(difference, (interval.low, interval.high), decimals=decimals)
    return f"{text} (p = {test.pvalue:.{2 if test.pvalue >= 0.01 else 3}f})"


def skip_init_block() -> str:
    """Return the way of the network without normalisation, over its seeds, and its training loss."""
    runs = runs_at(_SKIP_INIT, 0.25)
    num_steps = load(_SKIP_INIT)["runs"][0]["spec"]["num_steps"]
    steps = [point["step"] for point in runs[0]["curve"]]
    looks = [[run["curve"][place] for run in runs] for place in range(len(steps))]
    curve = table(
        ("update", *(f"{step:,}" for step in steps)),
        [
            ("drops so far", *(str(num_drops(step - 1, num_steps=num_steps)) for step in steps)),
            (
                "test accuracy, %",
                *(value(look, "test_metric", scale=100).text(2, with_num=False) for look in looks),
            ),
            ("test loss", *(value(look, "test_loss").text(3, with_num=False) for look in looks)),
        ],
    )
    paper = reference(_SKIP_INIT, "train")
    loss = table(_LOSS_HEADER, [(paper.text, *_loss_cells(runs, paper))])
    ends = ", ".join(f"{100 * run['test_metric']:.2f}" for run in runs)
    share = value(runs, lambda run: run["l2_penalty"] / running_objective(run), scale=100)
    remark = f"""
        Mean ± sd over {len(runs)} finished runs, which end at {ends} %. {share.mean:.0f} % of the training loss is the
        L2 penalty. {_commits((_SKIP_INIT,))}"""
    return "\n\n".join((curve, loss, paragraph(remark)))


# Which calibration runs are the same work as a row of the speeds: task, batch size, number of runs.
_SAME_WORK = {
    ("autoencoder_mnist", 64, 9): "autoencoder",
    ("lstm_ptb", 64, 9): "lstm_b64",
    ("lstm_ptb", 16, 3): "lstm_b16",
    ("wrn16x4_cifar10", 256, 3): "wrn_b256",
    ("wrn16x4_cifar10", 1024, 3): "wrn_b1024",
    ("wrn16x4_skipinit_cifar10", 64, 3): _SKIP_INIT,
}
_QUANTITIES = {
    "train_loss_running": "running training loss",
    "last_batch_loss": "last batch's loss",
    "train_loss": "training loss",
    "test_loss": "test loss",
    "weight_norm_squared": "squared norm of weights",
}


def throughput_block() -> str:
    """Return speed and memory."""
    return speeds(load("throughput"))


def equality_block() -> str:
    """Return how far fleet and reference differ on the GPU."""
    return differences(load("throughput"))


def speeds(content: dict[str, Any]) -> str:
    """Return speed and memory as `throughput.py` wrote them, and what is missing."""
    found = [row for row in content["rows"] if "error" not in row]
    lines = []
    for row in _in_order(found):
        same = _SAME_WORK.get((row["task"], row["batch_size"], row["num_runs"]))
        lines.append(
            (
                f"`{row['task']}`",
                f"{row['batch_size']:,}",
                str(row["num_runs"]),
                row["precision"],
                _speed(row["run_updates_per_second"]),
                f"{_speed(row['lowest'])} to {_speed(row['highest'])}",
                f"{row['examples_per_second']:,.0f}",
                f"{row['peak_memory_gib']:.2f}",
                "–" if same is None else f"{load(same)['peak_memory_bytes'] / 2**30:.2f}",
            )
        )
    header = (
        "task",
        "B",
        "runs",
        "precision",
        "run-updates/s",
        "lowest to highest",
        "examples/s",
        "peak GiB",
        "peak GiB, calibration run",
    )
    windows = _listed(sorted({str(row["num_windows"]) for row in found}))
    remarks = [f"{_where(found)}. Median, lowest and highest of {windows} windows."]
    if all(row["task"] != "resnet50_imagenet" for row in content["rows"]):
        remarks.append("`resnet50_imagenet`: not measured yet with this script.")
    remarks += [
        f"`{row['task']}`, B = {row['batch_size']:,}: failed ({' '.join(row['error'].split())})."
        for row in _in_order([row for row in content["rows"] if "error" in row])
    ]
    return f"{table(header, lines)}\n\n{paragraph(' '.join(remarks))}"


def differences(content: dict[str, Any]) -> str:
    """Return the largest relative differences between fleet and reference, if they were measured."""
    found = _in_order(content["equality"])
    if not found:
        return "The same in the precisions of the calibration runs: not measured yet with this script."
    names = list(found[0]["largest_relative_difference"])
    lines = [
        (
            f"`{row['task']}`",
            f"{row['batch_size']:,}",
            row["precision"],
            *(_difference(row["largest_relative_difference"].get(name)) for name in names),
        )
        for row in found
    ]
    runs, updates = (_listed(sorted({str(row[key]) for row in found})) for key in ("num_runs", "num_updates"))
    remark = f"""
        Largest relative difference between fleet and reference over {runs} runs after {updates} updates; training loss
        and test loss are of the final weights. {_where(found)}."""
    header = ("task", "B", "precision", *(_QUANTITIES.get(name, name) for name in names))
    return f"{table(header, lines)}\n\n{paragraph(remark)}"


def _in_order(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows in the order of the tasks, whichever was measured last."""
    places = {name: place for place, name in enumerate(TASKS)}
    return sorted(found, key=lambda row: (places[row["task"]], row["batch_size"], row.get("precision", "")))


def _where(found: Sequence[dict[str, Any]]) -> str:
    """Return on what rows were measured."""
    devices, versions, commits = (sorted({row[key] for row in found}) for key in ("device", "torch", "commit"))
    return f"{_listed(devices)}, torch {_listed(versions)}, commit {_listed(commits)}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names)


def _difference(number: float | None) -> str:
    if number is None:
        return "–"
    return "0" if number == 0 else f"{number:.1e}"


def _speed(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}"


PAGE = Page(
    name="calibration",
    blocks={
        "results": results_block,
        "readme": readme_block,
        "autoencoder": autoencoder_block,
        "lstm": lstm_block,
        "wide_resnet": wide_resnet_block,
        "skip_init": skip_init_block,
        "throughput": throughput_block,
        "equality": equality_block,
    },
)


# -- the figure -----------------------------------------------------------------------------------------------------

_INK, _FAINT, _PAPER = "#222222", "#e4e4e4", "#CC79A7"
_RC: dict[Any, Any] = {"font.size": 9.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One run's test metric against updates; the last point is the final evaluation."""

    series: str
    steps: tuple[int, ...]
    metrics: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """The curves of one setting, or of its variants, beside the paper's value."""

    title: str
    quantity: str
    num_steps: int
    paper: Reference
    curves: tuple[Curve, ...]
    ticks: tuple[float, ...]
    limits: tuple[float, float]
    has_inset: bool = False

    @property
    def first_drop(self) -> int:
        """After how many updates the learning rate drops for the first time."""
        return self.num_steps // 2

    @property
    def series(self) -> list[str]:
        """The names of the series, in the order of the curves."""
        return list(dict.fromkeys(curve.series for curve in self.curves))


def panels() -> list[Panel]:
    """Return what the figure shows, in reading order."""
    zero = ("wrn_b256", "wrn_b256_zero")
    described: tuple[tuple[tuple[str, ...], str, str, tuple[float, ...], tuple[float, float]], ...] = (
        (("autoencoder",), "autoencoder, B = 64", "test squared error", (3, 5, 10, 20, 50), (2.65, 75)),
        (("lstm_b64",), "LSTM, B = 64", "test perplexity", (80, 90, 100, 110), (79, 115)),
        (_LSTM_B16, "LSTM, B = 16", "test perplexity", (90, 110, 130, 150), (84, 160)),
        (zero, "WRN-16-4, ghost BN, B = 256", "test error (%)", (5, 7, 10, 15, 20), (4.5, 23)),
        (("wrn_b1024",), "WRN-16-4, ghost BN, B = 1,024", "test error (%)", (5, 7, 10, 15, 20), (4.5, 23)),
        ((_SKIP_INIT,), "WRN-16-4, SkipInit, B = 64", "test error (%)", (5, 7, 10, 15, 20), (4.5, 23)),
    )
    found = []
    for names, title, quantity, ticks, limits in described:
        in_error = "error (%)" in quantity
        paper = reference(names[0], "test")
        if in_error:
            paper = Reference(mean=100 - paper.mean, sd=paper.sd, text=paper.text)
        found.append(
            Panel(
                title=title,
                quantity=quantity,
                num_steps=load(names[0])["runs"][0]["spec"]["num_steps"],
                paper=paper,
                curves=tuple(curve for name in names for curve in _curves(name, in_error=in_error)),
                ticks=ticks,
                limits=limits,
                has_inset=names == ("autoencoder",),
            )
        )
    return found


def _curves(name: str, *, in_error: bool) -> list[Curve]:
    """Return the curves of one result file, by learning rate."""
    texts = rate_texts(name)
    variant = ""
    if name in _LSTM_B16:
        variant = f", dropout {dropout(name)}"
    elif name == _ZERO_PADDED[0]:
        variant = ", zero padding"

    def shown(metric: float) -> float:
        return 100 * (1 - metric) if in_error else metric

    def curve(text: str, run: Run) -> Curve:
        metrics = (*(point["test_metric"] for point in run["curve"][:-1]), run["test_metric"])
        return Curve(
            series=f"ε_eff = {text}{variant}",
            steps=tuple(point["step"] for point in run["curve"]),
            metrics=tuple(map(shown, metrics)),
        )

    return [curve(text, run) for rate, text in texts.items() for run in runs_at(name, rate)]


def draw(panel: Panel, axes: Axes) -> None:
    """Draw one panel."""
    styles = _styles(panel)
    _draw_content(panel, axes, styles)
    axes.set_yscale("log")
    axes.set_ylim(*panel.limits)
    axes.set_xlim(0, panel.num_steps * 1.03)
    axes.yaxis.set_major_locator(FixedLocator(panel.ticks))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1000:g}"))
    axes.set_title(panel.title, fontsize=9, color=_INK)
    axes.set_ylabel(panel.quantity)
    axes.grid(color=_FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if panel.has_inset:
        _draw_inset(panel, axes, styles)
    handles = [
        Line2D([], [], color=style.colour, marker=style.marker, markersize=3.5, linewidth=1.1)
        for style in styles.values()
    ]
    names = list(styles)
    axes.legend(
        handles=handles,
        labels=[names[0], *(name.removeprefix("ε_eff = ") for name in names[1:])] if panel.has_inset else names,
        loc="upper right",
        bbox_to_anchor=(1.04, 0.89) if panel.has_inset else (1.02, 1.02),
        fontsize=7.5,
        facecolor="white",
        edgecolor="none",
        framealpha=0.9,
        ncols=len(names) if panel.has_inset else 1,
        handlelength=1.4,
        columnspacing=0.8,
        handletextpad=0.5,
        borderpad=0.2,
    )


def _styles(panel: Panel) -> dict[str, Style]:
    """Return how the series look: one alone, or the first of two, in the middle of the scale."""
    names = panel.series
    styles = ordered_styles(3)[1:] if len(names) < 3 else ordered_styles(len(names))
    return dict(zip(names, styles, strict=False))


def _draw_content(panel: Panel, axes: Axes, styles: dict[str, Style]) -> None:
    paper = panel.paper
    axes.axhspan(paper.mean - paper.sd, paper.mean + paper.sd, color=_PAPER, alpha=0.3, linewidth=0)
    axes.axhline(paper.mean, color=_PAPER, linewidth=1.2)
    axes.axvline(panel.first_drop, color="#888888", linewidth=0.9, linestyle=":")
    for curve in panel.curves:
        style = styles[curve.series]
        axes.plot(
            curve.steps,
            curve.metrics,
            "-",
            color=style.colour,
            marker=style.marker,
            markersize=2.6,
            linewidth=1.0,
            alpha=0.9,
        )


def _draw_inset(panel: Panel, axes: Axes, styles: dict[str, Style]) -> None:
    """Draw the end of the runs that did not collapse again, on a linear axis."""
    inset = axes.inset_axes((0.28, 0.27, 0.71, 0.47))
    _draw_content(panel, inset, styles)
    inset.set_xlim(0.58 * panel.num_steps, 1.02 * panel.num_steps)
    inset.set_ylim(2.87, 3.36)
    inset.yaxis.set_major_locator(FixedLocator([2.9, 3.0, 3.1, 3.2, 3.3]))
    inset.xaxis.set_major_locator(FixedLocator([100_000, 125_000, 150_000]))
    inset.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1000:g}"))
    inset.tick_params(labelsize=6.5, length=2, pad=1.5)
    inset.grid(color=_FAINT, linewidth=0.5)
    inset.set_axisbelow(True)
    for spine in inset.spines.values():
        spine.set_color("#999999")


def figure() -> Figure:
    """Return the whole figure."""
    drawn = Figure(figsize=(9.0, 5.6), layout="constrained")
    shown = panels()
    for place, panel in enumerate(shown):
        axes = drawn.add_subplot(2, 3, place + 1)
        draw(panel, axes)
        if place >= 3:
            axes.set_xlabel("updates (thousands)")
    handles: list[Any] = [
        (Patch(color=_PAPER, alpha=0.3, linewidth=0), Line2D([], [], color=_PAPER, linewidth=1.2)),
        Line2D([], [], color="#888888", linewidth=0.9, linestyle=":"),
    ]
    labels = ["the paper's final value ± sd", "first learning-rate drop"]
    drawn.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8.5, frameon=False)
    return drawn


def main() -> None:
    """Write the figure and the blocks."""
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_RC):
        figure().savefig(FIGURE, dpi=160)
    for path in DOCUMENTS:
        PAGE.write(path)
    print(f"wrote {FIGURE.relative_to(ROOT)} and the blocks of {', '.join(path.name for path in DOCUMENTS)}")


if __name__ == "__main__":
    main()
