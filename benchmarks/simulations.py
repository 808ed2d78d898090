"""How often intervals hold the truth, and verdicts are right, over synthetic families."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from families import STEEPNESS, Family, Simulated, coverage_families, simulate
from isotherm.analysis.analysis import analyse
from isotherm.analysis.family import FamilyFit, fit_family
from isotherm.analysis.verdicts import Verdict
from isotherm.core.statistics import Floats, percentile_limits

MARGIN = 0.005  # of accuracies: half a point
NUM_SWEEPS = 5  # in a block, of every family
NUM_STUDIES = {"false": 2, "straight": 2, "true": 1}  # in a block, by scenario
FIRST_BLOCK = 500  # blocks below were looked at while the methods were made
QUANTITIES = ("slope", "kink", "plateau", "height")
FARTHEST = 9.99  # error that is told

# A word of the claim that no other claim has.
CLAIMS = {
    "proportional": "proportional to the batch size",
    "kink": "ends at a kink",
    "no help below": "momentum does not help",
    "helps above": "momentum helps",
    "large batches": "generalises worse",
    "test above train": "lies above the one that fits best",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """What is true in a simulated study, and which claims are false there."""

    name: str
    words: str
    changes: dict[str, Any]
    false_claims: tuple[str, ...]

    def of(self, family: Family) -> Family:
        """Return the family with this truth."""
        return family.but(**self.changes)


BOTH = (0.0, 0.9)
SCENARIOS = (
    Scenario(
        name="false",
        words="slope 0.8; momentum gains half a point below the kink and nothing above; no fall; equal optima",
        changes={"slope": 0.8, "momenta": BOTH, "gain_below": MARGIN},
        false_claims=("proportional", "no help below", "helps above", "large batches", "test above train"),
    ),
    Scenario(
        name="straight",
        words="no kink; slope 1/2; the largest batch falls by 3 points and fits 10 % worse",
        changes={"slope": 0.5, "has_kink": False, "fall": 0.03, "train_rise": 0.1},
        false_claims=("proportional", "kink", "large batches", "test above train"),
    ),
    Scenario(
        name="true",
        words="slope 1; momentum gains nothing below the kink and 2 points above; a fall of 3 points; optima half an "
        "octave apart",
        changes={"momenta": BOTH, "gain_above": 0.02, "fall": 0.03, "train_shift": 0.5},
        false_claims=(),
    ),
)
SIX_SIZES = (16, 32, 64, 128, 256, 512)
RESOLUTIONS: dict[str, dict[str, Any]] = {
    "2": {"ratio": 2.0},
    "√2": {"ratio": math.sqrt(2.0)},
    "2^¼": {"ratio": 2**0.25, "num_points": 9},
    "adaptive": {"ratio": 2.0, "plan": (("resolution", "adaptive"), ("num_confirm", 5))},
}


def verdict_families() -> dict[tuple[str, str], Family]:
    """Return the families over which verdicts are checked, by resolution and what is special about each."""
    found = {
        (resolution, shape): Family(shape=shape, sizes=SIX_SIZES, **changes)
        for resolution, changes in RESOLUTIONS.items()
        for shape in STEEPNESS
    }
    plain = Family(sizes=SIX_SIZES)
    found["2", "3 seeds"] = plain.but(num_seeds=3)
    found["2", "10 seeds"] = plain.but(num_seeds=10)
    found["2", "40 seeds"] = plain.but(num_seeds=40)  # as many as equivalence within half a point takes
    found["2", "3 points"] = plain.but(num_points=3)
    found["2", "7 points"] = plain.but(num_points=7)
    found["2", "diverging seeds"] = plain.but(has_diverging_seeds=True)
    found["2", "validation"] = plain.but(has_validation=True)
    found["2", "saturated"] = plain.but(num_test=400, peak=0.98, noise=0.005)
    return found


# -- coverage --------------------------------------------------------------------------------------------------------


def coverage(family: Family, *, num: int, seed: int) -> dict[str, Any]:
    """Return whether 95 % intervals hold the truth, sweep by sweep, and how wide they are in the middle.

    Of the heights it is the part of batch sizes where they do. `errors` are how far the truth lies from the median,
    in units of the interval's half on that side, so that it is known what narrower or wider intervals would hold.
    """
    generator = np.random.default_rng(seed)
    rows = [_covered(simulate(family, generator)) for _ in range(num)]
    found: dict[str, Any] = {"held": {}, "width": {}, "errors": {}}
    for name in QUANTITIES:
        held, widths, errors = (np.array([row[name][k] for row in rows]) for k in range(3))
        found["held"][name] = held.mean(axis=1).tolist()
        found["width"][name] = round(float(np.median(np.median(widths, axis=1))), 4)
        found["errors"][name] = errors.round(2).tolist()
    return found


def _covered(found: Simulated) -> dict[str, tuple[list[bool], list[float], list[float]]]:
    """Return what was held, the widths and the errors by quantity, with one entry but for the heights."""
    fit, truth = fit_family(found.grids()), found.truth
    pairs = {
        "slope": [(fit.slopes, truth.family.slope)],
        "kink": [(_kinks(fit), truth.kink)],
        "plateau": [(fit.plateaus, truth.plateau)],
        "height": [(fit.heights[:, k], truth.height(size)) for k, size in enumerate(fit.batch_sizes)],
    }
    compared = {name: [_compared(*pair) for pair in some] for name, some in pairs.items()}
    return {name: tuple(map(list, zip(*some, strict=True))) for name, some in compared.items()}  # type: ignore[misc]


def _kinks(fit: FamilyFit) -> Floats:
    return np.asarray(np.where(np.isnan(fit.kinks), np.inf, fit.kinks))


def _compared(draws: Floats, truth: float) -> tuple[bool, float, float]:
    """Return whether an interval holds the truth, its width, and the error in units of its half."""
    low, high = percentile_limits(draws)
    middle = float(np.median(draws))
    half = high - middle if truth > middle else middle - low
    is_held = low <= truth <= high
    if not math.isfinite(half) or half == 0:  # no kink is seen
        error = 0.0 if is_held else FARTHEST
    else:
        error = min(FARTHEST, abs(truth - middle) / half)
    return is_held, high - low, math.copysign(error, truth - middle)


# -- verdicts --------------------------------------------------------------------------------------------------------


def verdict_rates(scenario: Scenario, family: Family, *, num: int, seed: int) -> dict[str, Any]:
    """Return how often every claim is said to hold and not to hold, and how often alone, without the correction.

    What never happened is left out.
    """
    generator = np.random.default_rng(seed)
    counts = {name: {"total": 0, "holds": 0, "fails": 0, "holds_alone": 0, "fails_alone": 0} for name in CLAIMS}
    for _ in range(num):
        for verdict in analyse(simulate(scenario.of(family), generator).study).verdicts:
            _count(counts[claim_of(verdict)], verdict)
    return {"claims": {name: {k: v for k, v in count.items() if v} for name, count in counts.items() if count["total"]}}


def claim_of(verdict: Verdict) -> str:
    """Return the short name of a verdict's claim."""
    (found,) = [name for name, words in CLAIMS.items() if words in verdict.claim]
    return found


def _count(count: dict[str, int], verdict: Verdict) -> None:
    count["total"] += 1
    count["holds"] += verdict.holds is True
    count["fails"] += verdict.holds is False
    if verdict.p_holds is not None and verdict.p_fails is not None:
        count["holds_alone"] += verdict.p_holds <= 0.05 and verdict.p_holds < verdict.p_fails
        count["fails_alone"] += verdict.p_fails <= 0.05 and verdict.p_fails <= verdict.p_holds


def block_jobs(block: int) -> list[dict[str, Any]]:
    """Return the simulations of a block, counted from 0, as plain values that say how to repeat them; blocks add up.

    False claims are judged on curves that are exactly of their shape and on ones that stray; true ones, which are many
    times as often decided, on either in turn.
    """
    found: list[dict[str, Any]] = []
    first = 10_000 * (FIRST_BLOCK + block + 1)
    kinds = itertools.product(verdict_families(), SCENARIOS, ("exact", "straying"))
    for index, ((resolution, special), scenario, curves) in enumerate(kinds):
        if scenario.false_claims or (index + block) % 2:
            labels = {"kind": "verdicts", "resolution": resolution, "special": special, "scenario": scenario.name}
            num = NUM_STUDIES[scenario.name]
            found.append({**labels, "curves": curves, "num": num, "seed": first + index})
    for index, family in enumerate(coverage_families()):
        found.append({"kind": "coverage", "family": family.name, "num": NUM_SWEEPS, "seed": first + 5_000 + index})
    return found


def done(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job with its results, and the processor time it took."""
    start = time.process_time()
    if job["kind"] == "coverage":
        (family,) = [family for family in coverage_families() if family.name == job["family"]]
        found = coverage(family, num=job["num"], seed=job["seed"])
    else:
        (scenario,) = [s for s in SCENARIOS if s.name == job["scenario"]]
        family = verdict_families()[job["resolution"], job["special"]].but(strays=job["curves"] == "straying")
        found = verdict_rates(scenario, family, num=job["num"], seed=job["seed"])
    return {**job, **found, "seconds": round(time.process_time() - start, 1)}
