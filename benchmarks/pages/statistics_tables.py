"""The tables of docs/statistics.md, from the simulations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isotherm.analysis.verdicts import margins
from pages.results import NOT_MEASURED
from pages.text import table
from simulations import CLAIMS, QUANTITIES, SCENARIOS

Job = dict[str, Any]


def margins_block() -> str:
    """Return the margins, from the code."""
    low, high = margins.PROPORTIONAL
    rows = [
        ("proportional", "slope of log2 ε\\* over log2 B", f"inside [{low:g}, {high:g}]", "outside"),
        ("kink", "octaves of the last optimum below the continued line", "above 0", f"below {margins.NO_KINK:g}"),
        ("momentum does not help below the kink", "mean gain on the test set", "inside ± margin", "outside"),
        ("momentum helps above the kink", "mean gain on the test set", "above 0", "below the margin"),
        (
            "the largest batch generalises worse although it fits no worse",
            "loss on the test set from the best batch size; relative rise of the training objective",
            f"above 0; at most {margins.TOLERATED_RISE:.0%}",
            f"below the margin; or above {margins.TOLERATED_RISE:.0%}",
        ),
        (
            "test optimum above training optimum",
            "mean log2 ratio of the optima",
            "above 0",
            f"below {margins.SAME_RATE:g} octaves",
        ),
    ]
    return table(["claim", "quantity", "holds if it is shown to be", "does not hold if shown to be"], rows)


def coverage_block(content: dict[str, Any] | None) -> str:
    """Return how often intervals hold the truth, family by family."""
    jobs = _jobs(content, "coverage")
    if not jobs:
        return NOT_MEASURED
    rows = [
        [job["family"], str(job["num"]), *(f"{100 * job['held'][name]:.1f}" for name in QUANTITIES)]
        + [f"{job['width'][name]:.2f}" for name in ("slope", "kink", "plateau")]
        + [f"{100 * job['width']['height']:.2f}"]
        for job in jobs
    ]
    means = [f"**{100 * sum(j['held'][name] for j in jobs) / len(jobs):.1f}**" for name in QUANTITIES]
    rows.append(["**mean**", str(sum(job["num"] for job in jobs)), *means, "", "", "", ""])
    head = ["family", "n", *(f"{name}, %" for name in QUANTITIES)]
    return table([*head, "width: slope", "kink, octaves", "plateau, octaves", "height, points"], rows)


def false_alarms_block(content: dict[str, Any] | None) -> str:
    """Return how often a false claim is said to hold: alone, and after the correction."""
    return _rates(content, [s.name for s in SCENARIOS if s.false_claims], "holds")


def power_block(content: dict[str, Any] | None) -> str:
    """Return how often a true claim is said to hold: alone, and after the correction."""
    return _rates(content, ["true"], "holds")


def wrongly_denied_block(content: dict[str, Any] | None) -> str:
    """Return how often a true claim is said not to hold: alone, and after the correction."""
    return _rates(content, ["true"], "fails")


def cost_block(content: dict[str, Any] | None) -> str:
    """Return how much was simulated, and how to repeat it."""
    if content is None:
        return NOT_MEASURED
    jobs = content["jobs"]
    seconds = sum(job["seconds"] for job in jobs)
    return (
        f"{sum(job['num'] for job in jobs):,} sweeps and studies simulated and analysed in {seconds / 60:.0f} minutes on "
        f"one core ({content['machine']['cpu']}, commit {content['commit']}); seeds and families are in "
        f"benchmarks/results/statistics.json. Again: `{content['command']}`."
    )


def worst_false_alarm(content: dict[str, Any], *, alone: bool) -> tuple[float, str]:
    """Return the highest rate of false "holds" of any claim in any family, and where it is."""
    key = "holds_alone" if alone else "holds"
    rates = [
        (count[key] / count["total"], f"{name}, {job['resolution']}, {job['special']}, {job['scenario']}")
        for job in _jobs(content, "verdicts")
        for name, count in job["claims"].items()
        if name in _false_claims(job["scenario"])
    ]
    return max(rates)


def _rates(content: dict[str, Any] | None, scenarios: Sequence[str], outcome: str) -> str:
    jobs = [job for job in _jobs(content, "verdicts") if job["scenario"] in scenarios]
    if not jobs:
        return NOT_MEASURED
    rows = []
    for resolution, special in dict.fromkeys((job["resolution"], job["special"]) for job in jobs):
        here = [job for job in jobs if (job["resolution"], job["special"]) == (resolution, special)]
        rows.append([resolution, special, str(here[0]["num"]), *(_rate(here, name, outcome) for name in CLAIMS)])
    return table(["ratio", "family", "n", *CLAIMS], rows)


def _rate(jobs: Sequence[Job], claim: str, outcome: str) -> str:
    """Return the highest rate over scenarios, in percent: alone / corrected."""
    found = [
        (count[f"{outcome}_alone"] / count["total"], count[outcome] / count["total"])
        for job in jobs
        if (count := job["claims"].get(claim)) and (job["scenario"] == "true" or claim in _false_claims(job["scenario"]))
    ]
    return f"{100 * max(a for a, _ in found):.1f} / {100 * max(b for _, b in found):.1f}" if found else "–"


def _false_claims(scenario: str) -> tuple[str, ...]:
    (found,) = [s for s in SCENARIOS if s.name == scenario]
    return found.false_claims


def _jobs(content: dict[str, Any] | None, kind: str) -> list[Job]:
    return [] if content is None else [job for job in content["jobs"] if job["kind"] == kind]
