"""The tables of docs/statistics.md, from the simulations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from isotherm.analysis.verdicts import margins
from pages.coverage import covered, design_effect
from pages.results import NOT_MEASURED
from pages.text import paragraph, table
from simulations import CLAIMS, QUANTITIES, SCENARIOS

Job = dict[str, Any]
FALSE = {scenario.name: scenario.false_claims for scenario in SCENARIOS}


def margins_block() -> str:
    """Return the margins, from the code."""
    low, high = margins.PROPORTIONAL
    rise = f"{margins.TOLERATED_RISE:.0%}".replace("%", " %")
    rows = [
        ("proportional", "slope of log2 ε\\* over log2 B", f"inside [{low:g}, {high:g}]", "outside"),
        (
            "proportional to √B, for [optimisers](optimizers.md) other than SGD",
            "the same slope",
            f"inside [{margins.ROOT[0]:g}, {margins.ROOT[1]:g}]",
            "outside",
        ),
        ("kink", "octaves of the last optimum below the continued line", "above 0", f"below {margins.NO_KINK:g}"),
        ("momentum does not help below the kink", "mean gain on the test set", "inside ± margin", "outside"),
        ("momentum helps above the kink", "mean gain on the test set", "above 0", "below the margin"),
        (
            "the largest batch generalises worse although it fits no worse",
            "what the best batch size is ahead on the test set; relative rise of the training objective from there",
            f"above 0; below {rise}",
            f"below the margin; or above {rise}",
        ),
        ("test optimum above training optimum", "mean log2 ratio", "above 0", f"below {margins.SAME_RATE:g} octaves"),
    ]
    return table(["claim", "quantity", "holds if shown to be", "does not hold if shown to be"], rows)


def coverage_block(content: dict[str, Any] | None) -> str:
    """Return how often intervals hold the truth, family by family, and how wide they are."""
    jobs = _jobs(content, "coverage")
    if not jobs:
        return NOT_MEASURED
    names = dict.fromkeys(job["family"] for job in jobs)
    together = design_effect(jobs)
    rows = [_coverage_row(name, [job for job in jobs if job["family"] == name], together) for name in names]
    rows.append(_coverage_row("**all**", jobs, together))
    widths = ["width: slope", "kink, octaves", "plateau, octaves", "height, points"]
    return table(["family", "n", *(f"{name}, %" for name in QUANTITIES), *widths], rows)


def false_alarms_block(content: dict[str, Any] | None) -> str:
    """Return how often a false claim is said to hold."""
    return _rates(content, "holds", lambda job, claim: claim in FALSE[job["scenario"]])


def power_block(content: dict[str, Any] | None) -> str:
    """Return how often a true claim is said to hold."""
    return _rates(content, "holds", lambda job, _: job["scenario"] == "true")


def denied_block(content: dict[str, Any] | None) -> str:
    """Return how often a true claim is said not to hold."""
    return _rates(content, "fails", lambda job, _: job["scenario"] == "true")


def cost_block(content: dict[str, Any] | None) -> str:
    """Return how much was simulated, and how to repeat it."""
    if content is None:
        return NOT_MEASURED
    jobs = content["jobs"]
    seconds = sum(job["seconds"] for job in jobs)
    return paragraph(
        f"{sum(job['num'] for job in _jobs(content, 'coverage')):,} sweeps and "
        f"{sum(job['num'] for job in _jobs(content, 'verdicts')):,} studies, simulated and analysed in "
        f"{seconds / 60:,.0f} processor minutes ({', '.join(content['cpus'])}; commit {content['commit']}). Every line "
        "of benchmarks/results/statistics.json holds the seed that repeats it. More of them: "
        f"`{content['command']}`, then `--pool` with all files of lines."
    )


def rate(jobs: Sequence[Job], claim: str, key: str) -> tuple[int, int]:
    """Return how often a claim came out in a way, and how often it was judged."""
    counts = [job["claims"][claim] for job in jobs if claim in job["claims"]]
    return sum(count.get(key, 0) for count in counts), sum(count["total"] for count in counts)


def _coverage_row(name: str, jobs: Sequence[Job], effect: float) -> list[str]:
    found = {quantity: covered(jobs, quantity, effect) for quantity in QUANTITIES}
    cells = [f"{100 * one.part:.1f} [{100 * one.low:.0f}, {100 * one.high:.0f}]" for one in found.values()]
    nums = [len(job["held"]["slope"]) for job in jobs]
    widths = [float(np.median(np.repeat([job["width"][q] for job in jobs], nums))) for q in QUANTITIES]
    widths[-1] *= 100
    return [name, str(sum(nums)), *cells, *(f"{value:.2f}" for value in widths)]


def _rates(content: dict[str, Any] | None, outcome: str, counts: Callable[[Job, str], bool]) -> str:
    """Return a table of rates in percent: alone / corrected for all verdicts of the study, and n."""
    jobs = _jobs(content, "verdicts")
    if not jobs:
        return NOT_MEASURED
    shapes = dict.fromkeys(job["special"] for job in jobs if job["resolution"] == "√2")
    groups = {f"ratio {r}" if r != "adaptive" else r: _in(jobs, "resolution", r) for r in _values(jobs, "resolution")}
    groups = {name: [job for job in found if job["special"] in shapes] for name, found in groups.items()}
    groups |= {special: _in(jobs, "special", special) for special in _values(jobs, "special")}
    groups["**all**"] = jobs
    rows = [[name, *(_cell(found, claim, outcome, counts) for claim in CLAIMS)] for name, found in groups.items()]
    return table(["family", *CLAIMS], rows)


def _cell(jobs: Sequence[Job], claim: str, outcome: str, counts: Callable[[Job, str], bool]) -> str:
    found = [job for job in jobs if counts(job, claim)]
    alone, total = rate(found, claim, f"{outcome}_alone")
    corrected, _ = rate(found, claim, outcome)
    return f"{100 * alone / total:.1f} / {100 * corrected / total:.1f} ({total})" if total else "–"


def _in(jobs: Sequence[Job], label: str, value: str) -> list[Job]:
    return [job for job in jobs if job[label] == value]


def _values(jobs: Sequence[Job], label: str) -> list[str]:
    return list(dict.fromkeys(job[label] for job in jobs))


def _jobs(content: dict[str, Any] | None, kind: str) -> list[Job]:
    return [] if content is None else [job for job in content["jobs"] if job["kind"] == kind]
