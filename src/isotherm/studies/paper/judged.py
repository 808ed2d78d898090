"""Verdicts on the claims that the paper makes of an object, from the results of one scale."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from isotherm.analysis.analysis import Analysis
from isotherm.analysis.verdicts.claim import Claim, Verdict, decided
from isotherm.analysis.verdicts.remedies import Remedy
from isotherm.studies.paper.definition import PaperObject, Scale
from isotherm.sweep.results import StudyResults


def judge(wanted: PaperObject, analysis: Analysis | None, *, run: Sequence[str]) -> list[Verdict]:
    """Return a verdict on every claim, in the object's order; Holm's correction is over those that were tested.

    Args:
        wanted: the figure or table.
        analysis: of its runs; None where it needs none.
        run: the command that runs it, word by word, for the remedies.
    """
    tested = [c.test(c.text, analysis) for c in wanted.claims if c.test is not None and analysis is not None]
    found = iter(decided([_with_place(claim, wanted) for claim in tested], run=run))
    return [c.verdict(c.text) if c.verdict is not None else next(found) for c in wanted.claims]


def state_words(verdicts: Sequence[Verdict]) -> str:
    """Return how many claims hold, do not, and stay open.

    >>> state_words([Verdict(claim="a", holds=True, evidence=""), Verdict(claim="b", holds=None, evidence="")])
    '1 holds, 1 not determined'
    """
    counts = {state: sum(v.holds is state for v in verdicts) for state in (True, False, None)}
    words = {
        True: "holds" if counts[True] == 1 else "hold",
        False: "does not" if counts[False] == 1 else "do not",
        None: "not determined",
    }
    return ", ".join(f"{counts[state]} {words[state]}" for state in counts if counts[state])


def runs_words(results: StudyResults) -> str:
    """Return how many runs have been made, and how many of them diverged or failed."""
    counts = results.counts()
    total = sum(counts.values())
    done = counts["finished"] + counts["diverged"]
    more = [f"{counts[name]:,} {name}" for name in ("diverged", "failed") if counts[name]]
    return ", ".join([f"{done:,} of {total:,} runs", *more])


def differences(wanted: PaperObject, scale: Scale, results: StudyResults) -> str:
    """Return in a sentence how rows differ from their scale in seeds and learning rates; nothing where they do not.

    Learning rates are those of the base grids, at a batch size.
    """
    settings = {(s.name, s.momentum): s for s in wanted.scales[scale].settings}
    pairs = [(p, settings[key]) for p in results.plan.sweeps if (key := (p.name, p.momenta[0])) in settings]
    seeds = {(len(p.seeds), s.num_seeds) for p, s in pairs}
    rates = {(max(map(len, p.learning_rates)), max(len(s.rates_at(size)) for size in s.batch_sizes)) for p, s in pairs}
    told = [
        f"{' or '.join(str(ours) for ours, _ in found)} {noun} instead of {' or '.join(str(n) for _, n in found)}"
        for noun, counts in (("seeds", seeds), ("learning rates at a batch size", rates))
        if (found := sorted(pair for pair in counts if pair[0] != pair[1]))
    ]
    return f"Run so far with {' and '.join(told)}." if told else ""


def command(wanted: PaperObject, scale: Scale) -> list[str]:
    """Return the words of the command that runs an object into the default store."""
    return ["isotherm", "reproduce", wanted.identifier, "--scale", str(scale)]


def _with_place(claim: Claim, wanted: PaperObject) -> Claim:
    """Return a claim whose remedy names the object's own file where a line of a study file was meant."""
    remedy = claim.obstacle
    if remedy is None or not remedy.line:
        return claim
    what = f"{remedy.what} ({remedy.line}) in isotherm/studies/paper/{wanted.identifier}.py, then"
    return dataclasses.replace(claim, obstacle=Remedy(what=what, options=remedy.options))
