"""The Wide-ResNets: training losses, both paddings, and the network without normalisation."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from scipy import stats

from isotherm.core.run_schedule import num_drops
from pages.calibration.runs import (
    SKIP_INIT,
    WIDE_RESNETS,
    ZERO_PADDED,
    Reference,
    Run,
    commits_of,
    evaluated_objective,
    load,
    option,
    reference,
    running_objective,
    runs_at,
    value,
)
from pages.text import paragraph, signed, signed_interval, table

_LOSS_HEADER = ("paper", "running CE + L2", "difference", "evaluation CE + L2", "difference")


def wide_resnet_block() -> str:
    """Return both candidates for the training loss, both evaluations of ghost batch norm, and both paddings."""
    losses, accuracies = [], []
    for name, batch_size, rate in (WIDE_RESNETS[0], ZERO_PADDED, *WIDE_RESNETS[1:]):
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
    return "\n\n".join((*tables, paragraph(f"Three seeds each. {padding_text()}")))


def skip_init_block() -> str:
    """Return the progress of the network without normalisation over its seeds, and its training loss."""
    runs = runs_at(SKIP_INIT, 0.25)
    num_steps = load(SKIP_INIT)["runs"][0]["spec"]["num_steps"]
    steps = [point["step"] for point in runs[0]["curve"]]
    evaluations = [[run["curve"][index] for run in runs] for index in range(len(steps))]
    curve = table(
        ("update", *(f"{step:,}" for step in steps)),
        [
            ("drops so far", *(str(num_drops(step - 1, num_steps=num_steps)) for step in steps)),
            (
                "test accuracy, %",
                *(value(points, "test_metric", scale=100).text(2, with_num=False) for points in evaluations),
            ),
            ("test loss", *(value(points, "test_loss").text(3, with_num=False) for points in evaluations)),
        ],
    )
    paper = reference(SKIP_INIT, "train")
    loss = table(_LOSS_HEADER, [(paper.text, *_loss_cells(runs, paper))])
    ends = ", ".join(f"{100 * run['test_metric']:.2f}" for run in runs)
    share = value(runs, lambda run: run["l2_penalty"] / running_objective(run), scale=100)
    remark = f"""
        Mean ± sd over {len(runs)} finished runs, which end at {ends} %. {share.mean:.0f} % of the training loss is the
        L2 penalty. {commits_of((SKIP_INIT,))}"""
    return "\n\n".join((curve, loss, paragraph(remark)))


def _loss_cells(runs: Sequence[Run], paper: Reference) -> list[str]:
    """Return both candidates for the paper's training loss, each with its difference."""
    cells = []
    for part, whole in (("train_loss_running", running_objective), ("train_loss", evaluated_objective)):
        total = value(runs, whole)
        penalty = value(runs, "l2_penalty").mean
        sum_ = f"{value(runs, part).mean:.4f} + {penalty:.4f} = {total.text(4, with_num=False)}"
        cells += [sum_, f"{signed(100 * (total.mean / paper.mean - 1), 1)} %"]
    return cells


def padding_text() -> str:
    """Return the effect of the padding, and its significance."""
    name, _, rate = WIDE_RESNETS[0]
    zero_name, _, zero_rate = ZERO_PADDED
    reflected, zero = runs_at(name, rate), runs_at(zero_name, zero_rate)
    accuracy = contrast(reflected, zero, lambda run: 100 * run["test_metric"], decimals=2)
    loss = contrast(reflected, zero, running_objective, decimals=4)
    above = [value(r, "test_metric", scale=100).mean - reference(name, "test").mean for r in (reflected, zero)]
    return f"""
        Reflection minus zero padding at B = 256, with 95 % intervals and p of Welch's test: test accuracy in points
        {accuracy}, running CE + L2 {loss}. Minus the paper's accuracy: {signed(above[0], 2)} points with reflection,
        {signed(above[1], 2)} with zero padding. {commits_of((name, zero_name))}"""


def contrast(first: Sequence[Run], second: Sequence[Run], quantity: Callable[[Run], float], *, decimals: int) -> str:
    """Return the difference of two means with its interval and p-value, the runs taken as independent."""
    a, b = ([quantity(run) for run in runs] for runs in (first, second))
    test = stats.ttest_ind(a, b, equal_var=False)
    interval = test.confidence_interval(0.95)
    difference = statistics.mean(a) - statistics.mean(b)
    text = signed_interval(difference, (interval.low, interval.high), decimals=decimals)
    return f"{text} (p = {test.pvalue:.{2 if test.pvalue >= 0.01 else 3}f})"
