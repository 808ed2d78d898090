"""How often intervals hold the truth, and verdicts are right, over synthetic families."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from families import STEEPNESS, Family, Simulated, coverage_families, simulate
from isotherm.analysis.analysis import analyse
from isotherm.analysis.family import FamilyFit, fit_family
from isotherm.analysis.verdicts import Verdict
from isotherm.core.statistics import Floats, percentile_limits

MARGIN = 0.005  # of accuracies: half a point
QUANTITIES = ("slope", "kink", "plateau", "height")

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
FIXED = (("resolution", "paper"),)
RESOLUTIONS: dict[str, dict[str, Any]] = {
    "2": {"ratio": 2.0},
    "√2": {"ratio": math.sqrt(2.0)},
    "2^¼": {"ratio": 2**0.25, "num_points": 9},
}


def verdict_families() -> dict[tuple[str, str], Family]:
    """Return the families over which verdicts are checked, by resolution and what is special about each."""
    found = {}
    for resolution, changes in RESOLUTIONS.items():
        family = Family(**changes)
        for shape in STEEPNESS:
            found[resolution, shape] = family.but(shape=shape)
        found[resolution, "3 seeds"] = family.but(num_seeds=3)
        found[resolution, "diverging seeds"] = family.but(has_diverging_seeds=True)
        found[resolution, "saturated"] = family.but(num_test=400, peak=0.98, noise=0.005)
    found["2", "3 points"] = Family(num_points=3)
    return found


# -- coverage --------------------------------------------------------------------------------------------------------


def coverage(family: Family, *, num: int, seed: int) -> dict[str, Any]:
    """Return how often 95 % intervals hold the truth over simulated sweeps, and how wide they are in the middle."""
    generator = np.random.default_rng(seed)
    start = time.perf_counter()
    rows = [_covered(simulate(family, generator)) for _ in range(num)]
    held, widths = (np.array([[row[name][k] for name in QUANTITIES] for row in rows]) for k in (0, 1))
    return {
        "family": family.name,
        "num": num,
        "seed": seed,
        "seconds": time.perf_counter() - start,
        "held": dict(zip(QUANTITIES, np.mean(held, axis=0).tolist(), strict=True)),
        "width": dict(zip(QUANTITIES, np.median(widths, axis=0).tolist(), strict=True)),
    }


def _covered(found: Simulated) -> dict[str, tuple[float, float]]:
    fit, truth = fit_family(found.grids()), found.truth
    heights = [_holds(fit.heights[:, k], truth.height(size)) for k, size in enumerate(fit.batch_sizes)]
    return {
        "slope": _holds(fit.slopes, truth.family.slope),
        "kink": _holds(_kinks(fit), truth.kink),
        "plateau": _holds(fit.plateaus, truth.plateau),
        "height": (float(np.mean([h for h, _ in heights])), float(np.median([w for _, w in heights]))),
    }


def _kinks(fit: FamilyFit) -> Floats:
    return np.asarray(np.where(np.isnan(fit.kinks), np.inf, fit.kinks))


def _holds(draws: Floats, truth: float) -> tuple[float, float]:
    low, high = percentile_limits(draws)
    return float(low <= truth <= high), high - low


# -- verdicts --------------------------------------------------------------------------------------------------------


def verdict_rates(scenario: Scenario, family: Family, *, num: int, seed: int) -> dict[str, Any]:
    """Return how often every claim is said to hold and not to hold, and how often alone, without the correction."""
    generator = np.random.default_rng(seed)
    start = time.perf_counter()
    counts = {name: {"total": 0, "holds": 0, "fails": 0, "holds_alone": 0, "fails_alone": 0} for name in CLAIMS}
    for _ in range(num):
        for verdict in analyse(simulate(scenario.of(family), generator).study).verdicts:
            _count(counts[claim_of(verdict)], verdict)
    return {
        "scenario": scenario.name,
        "num": num,
        "seed": seed,
        "seconds": time.perf_counter() - start,
        "claims": {name: count for name, count in counts.items() if count["total"]},
    }


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


def jobs(num_coverage: int, num_verdicts: int) -> list[dict[str, Any]]:
    """Return every simulation as plain values, which say how to repeat it."""
    found: list[dict[str, Any]] = [
        {"kind": "coverage", "family": dataclasses.asdict(family), "num": num_coverage, "seed": 100 + index}
        for index, family in enumerate(coverage_families())
    ]
    for index, ((resolution, special), family) in enumerate(verdict_families().items()):
        for scenario in SCENARIOS:
            labels = {"kind": "verdicts", "resolution": resolution, "special": special, "scenario": scenario.name}
            found.append({**labels, "family": dataclasses.asdict(family), "num": num_verdicts, "seed": 500 + index})
    return found


def done(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job with its results."""
    family = Family(**{**job["family"], **{k: _tuples(job["family"][k]) for k in ("momenta", "sizes", "plan")}})
    if job["kind"] == "coverage":
        return {**job, **coverage(family, num=job["num"], seed=job["seed"])}
    (scenario,) = [s for s in SCENARIOS if s.name == job["scenario"]]
    return {**job, **verdict_rates(scenario, family, num=job["num"], seed=job["seed"])}


def _tuples(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(tuple(v) if isinstance(v, list) else v for v in values)
