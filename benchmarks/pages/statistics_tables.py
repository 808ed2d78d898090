"""The tables of docs/statistics.md, from the simulations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from families import STEEPNESS, Family, coverage_families
from isotherm.analysis.verdicts import margins
from pages.coverage import TARGET, Coverage, covered, design_effect, limits
from pages.results import NOT_MEASURED
from pages.text import paragraph, table
from simulations import CLAIMS, QUANTITIES, SCENARIOS
from statistics_runs import method_of

Job = dict[str, Any]
WIDTHS = ("width: slope", "kink, octaves", "plateau, octaves", "height, points")
LEVEL = 0.05  # of false alarms
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


def groups_block(content: dict[str, Any] | None) -> str:
    """Return how often intervals hold the truth, for all families that have something in common."""
    jobs = _jobs(content, "coverage")
    if not jobs:
        return NOT_MEASURED
    together = design_effect(jobs)
    groups = {name: [job for job in jobs if job["family"] in some] for name, some in _groups().items()}
    rows = [_coverage_row(name, found, together) for name, found in groups.items() if found]
    return table(["families", "sweeps", *(f"{name}, %" for name in QUANTITIES), *WIDTHS], rows)


def shown_block(content: dict[str, Any] | None) -> str:
    """Return which families are shown to be outside of the target, and how many may be inside."""
    jobs = _jobs(content, "coverage")
    if not jobs:
        return NOT_MEASURED
    names, together = dict.fromkeys(job["family"] for job in jobs), design_effect(jobs)
    found = {
        (name, quantity): covered([job for job in jobs if job["family"] == name], quantity, together)
        for name in names
        for quantity in QUANTITIES
    }
    low = [_named(key, one) for key, one in found.items() if one.high < TARGET[0]]
    high = [_named(key, one) for key, one in found.items() if one.low > TARGET[1]]
    nums = [one.num_sweeps for one in found.values()]
    possible = sum(one.is_possible for one in found.values())
    return paragraph(
        f"With {min(nums)} to {max(nums)} sweeps a family, {possible} of {len(found)} coverages (a quantity in a "
        f"family) are compatible with {100 * TARGET[0]:.0f} to {100 * TARGET[1]:.0f} %. Shown to be lower: "
        f"{'; '.join(low) or 'none'}. Shown to be higher: {'; '.join(high) or 'none'}."
    )


def _named(key: tuple[str, str], one: Coverage) -> str:
    return f"{key[1]} of “{key[0]}”, {100 * one.part:.0f} % [{100 * one.low:.0f}, {100 * one.high:.0f}]"


def _groups() -> Mapping[str, set[str]]:
    """Return the names of the families that have something in common."""
    families = coverage_families()
    plain = [f for f in families if not (f.has_diverging_seeds or f.num_test)]

    def those(wanted: Callable[[Family], bool], some: Sequence[Family] = families) -> set[str]:
        return {family.name for family in some if wanted(family)}

    return {
        "**all**": those(lambda f: True),
        "exact": those(lambda f: not f.strays),
        "straying": those(lambda f: f.strays),
        **{f"slope {v:g}": those(lambda f, v=v: f.slope == v, plain) for v in (1.0, 0.8, 0.5)},
        **{shape: those(lambda f, v=shape: f.shape == v, plain) for shape in STEEPNESS},
        **{f"{v} points": those(lambda f, v=v: f.num_points == v, plain) for v in (3, 5, 7)},
        **{f"{v} seeds": those(lambda f, v=v: f.num_seeds == v, plain) for v in (3, 5, 10)},
        "ratio 2": those(lambda f: f.ratio == 2.0, plain),
        "ratio √2": those(lambda f: f.ratio != 2.0, plain),
        "diverging seeds": those(lambda f: f.has_diverging_seeds),
        "saturated": those(lambda f: f.num_test is not None),
    }


def reach_block(content: dict[str, Any] | None) -> str:
    """Return by which factor intervals would have to be wider, or narrower, to hold the truth in 95 % of cases."""
    jobs = _jobs(content, "coverage")
    if not jobs:
        return NOT_MEASURED
    rows = []
    for name in ("**all**", "exact", "straying", "diverging seeds", "saturated", *STEEPNESS):
        found = [job for job in jobs if job["family"] in _groups()[name]]
        if found:
            rows.append([name, *(f"{_reach(found, quantity):.2f}" for quantity in QUANTITIES)])
    return table(["families", *QUANTITIES], rows)


def _reach(jobs: Sequence[Job], quantity: str) -> float:
    errors = np.concatenate([np.ravel(job["errors"][quantity]) for job in jobs])
    return float(np.quantile(np.abs(errors), 0.95))


def coverage_block(content: dict[str, Any] | None) -> str:
    """Return how often intervals hold the truth, family by family, and how wide they are."""
    jobs = _jobs(content, "coverage")
    if not jobs:
        return NOT_MEASURED
    names = dict.fromkeys(job["family"] for job in jobs)
    together = design_effect(jobs)
    rows = [_coverage_row(name, [job for job in jobs if job["family"] == name], together) for name in names]
    rows.append(_coverage_row("**all**", jobs, together))
    return table(["family", "n", *(f"{name}, %" for name in QUANTITIES), *WIDTHS], rows)


def false_alarms_block(content: dict[str, Any] | None) -> str:
    """Return how often a false claim is said to hold."""
    return _rates(content, "holds", lambda job, claim: claim in FALSE[job["scenario"]])


def alarms_shown_block(content: dict[str, Any] | None) -> str:
    """Return for which claims and families false alarms are shown to be rarer or more frequent than they may be."""
    jobs = [job for job in _jobs(content, "verdicts") if FALSE[job["scenario"]]]
    if not jobs:
        return NOT_MEASURED
    rare, often, total, most = 0, [], 0, 0.0
    for name, found in _kinds_of(jobs).items():
        for claim in CLAIMS:
            hits, num = rate([job for job in found if claim in FALSE[job["scenario"]]], claim, "holds")
            if num:
                low, high = limits(hits, num)
                total, rare, most = (
                    total + 1,
                    rare + (high <= LEVEL),
                    max(most, 100 * high if name == "**all**" else 0.0),
                )
                often += [f"“{claim}” in “{name}”"] if low > LEVEL else []
    return paragraph(
        f"After the correction, the rates over all families have upper limits of at most {most:.1f} %. Of {total} "
        f"rates in the table (a claim in a row) {rare} are shown to be at most {100 * LEVEL:.0f} %; shown to be "
        f"higher: {', '.join(often) or 'none'}. The others have too few verdicts to show either."
    )


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
    changed = [kind for kind, method in content["method"].items() if method != method_of(kind)]
    again = content.get("repeated")
    same = (
        f" {again['num_of_each_kind']} jobs of each kind were repeated at commit {again['commit']}, after changes of "
        "the code, and came out the same."
        if again
        else ""
    )
    since = f" The code that decides {' and '.join(changed)} has changed since that commit." if changed else ""
    return paragraph(
        f"{sum(job['num'] for job in _jobs(content, 'coverage')):,} sweeps and "
        f"{sum(job['num'] for job in _jobs(content, 'verdicts')):,} studies, simulated and analysed in "
        f"{seconds / 60:,.0f} processor minutes ({', '.join(content['cpus'])}; commit {content['commit']}). Every line "
        "of benchmarks/results/statistics.json holds the seed that repeats it. More of them: "
        f"`{content['command']}`, then `--pool` with all files of lines.{same}{since}"
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
    rows = [
        [name, *(_cell(found, claim, outcome, counts) for claim in CLAIMS)] for name, found in _kinds_of(jobs).items()
    ]
    return table(["family", *CLAIMS], rows)


def _kinds_of(jobs: Sequence[Job]) -> dict[str, Sequence[Job]]:
    """Return the studies by what they have in common."""
    shapes = dict.fromkeys(job["special"] for job in jobs if job["resolution"] == "√2")
    groups = {f"ratio {r}" if r != "adaptive" else r: _in(jobs, "resolution", r) for r in _values(jobs, "resolution")}
    groups = {name: [job for job in found if job["special"] in shapes] for name, found in groups.items()}
    groups |= {special: _in(jobs, "special", special) for special in _values(jobs, "special")}
    groups |= {f"{curves} curves": _in(jobs, "curves", curves) for curves in _values(jobs, "curves")}
    return {**groups, "**all**": jobs}


def _cell(jobs: Sequence[Job], claim: str, outcome: str, counts: Callable[[Job, str], bool]) -> str:
    found = [job for job in jobs if counts(job, claim)]
    alone, total = rate(found, claim, f"{outcome}_alone")
    corrected, _ = rate(found, claim, outcome)
    return f"{_part(alone, total)} / {_part(corrected, total)} ({total})" if total else "–"


def _part(hits: int, total: int) -> str:
    """Return a rate in percent with its 95 % limits."""
    low, high = limits(hits, total)
    return f"{100 * hits / total:.1f} [{100 * low:.0f}, {100 * high:.0f}]"


def _in(jobs: Sequence[Job], label: str, value: str) -> list[Job]:
    return [job for job in jobs if job[label] == value]


def _values(jobs: Sequence[Job], label: str) -> list[str]:
    return list(dict.fromkeys(job[label] for job in jobs))


def _jobs(content: dict[str, Any] | None, kind: str) -> list[Job]:
    return [] if content is None else [job for job in content["jobs"] if job["kind"] == kind]
