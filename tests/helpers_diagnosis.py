"""Made-up diagnoses around the embedded task: T = 1/32, limits 3 without and 12 with momentum, so B* = 48 and 192."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from isotherm.core.statistics import Interval
from isotherm.diagnose.boundary import USED_PART
from isotherm.diagnose.diagnosis import (
    Boundary,
    Choice,
    Cost,
    Current,
    Diagnosis,
    Isotherm,
    Probe,
    Regime,
    ShortGrid,
    Stability,
)

TEMPERATURE = 1 / 32
LIMITS = {0.0: 3.0, 0.9: 12.0}
CEILINGS = {momentum: USED_PART * limit for momentum, limit in LIMITS.items()}
NUM_TRAIN = 4000
CURRENT = Current(
    batch_size=256,
    learning_rate=0.1,
    momentum=0.9,
    effective_learning_rate=1.0,
    temperature=1 / 256,
    regime="curvature dominated",
    words="6 times too low for this batch size; use about 0.6 (effective 6), or a batch 6 times smaller.",
    num_steps=468,
    factor=1 / 6,
    lost=0.0234,
    is_stable=True,
    extra_epochs=1.33,
    speed=256_000.0,
    epoch_seconds=NUM_TRAIN / 256_000,
)


def around(estimate: float, factor: float = 1.25) -> Interval:
    return Interval(estimate=estimate, low=estimate / factor, high=estimate * factor)


def make_stability(momentum: float, limit: Interval | None) -> Stability:
    rates = tuple(LIMITS[momentum] * 2.0**k for k in (-3, -2, -1, 0, 1, 2))
    return Stability(
        momentum=momentum,
        batch_size=128,
        num_steps=120,
        rates=rates,
        num_runs=(4,) * len(rates),
        num_failed=(0, 0, 0, 2, 4, 4) if limit is not None else (0,) * len(rates),
        initial_loss=2.31,
        best_loss=1.2,
        limit=limit,
    )


def make_grid(batch_size: int, *, has_optimum: bool = True) -> ShortGrid:
    best = TEMPERATURE * batch_size
    octaves = (-2, -1, 0, 1, 2)
    return ShortGrid(
        batch_size=batch_size,
        momentum=0.9,
        num_steps=NUM_TRAIN * 4 // batch_size,
        rates=tuple(best * 2.0**k for k in octaves),
        means=tuple(1.0 + 0.05 * k**2 + 0.001 * batch_size if k < 2 else math.inf for k in octaves),
        standard_deviations=(0.02,) * 4 + (math.nan,),
        num_seeds=4,
        optimum=around(best, 1.4) if has_optimum else None,
    )


def make_choice(batch_size: int) -> Choice:
    rate = TEMPERATURE * batch_size
    regimes: dict[bool, Regime] = {True: "noise dominated", False: "curvature dominated"}
    return Choice(
        batch_size=batch_size,
        regime="near the boundary" if batch_size in (32, 64) else regimes[batch_size < 48],
        rates={momentum: around(min(rate, top)) for momentum, top in CEILINGS.items()},
        num_steps=30 * NUM_TRAIN // batch_size,
        has_enough_steps=batch_size < 512,
        speed=1000.0 * batch_size,
        epoch_seconds=NUM_TRAIN / (1000.0 * batch_size),
        extra_epochs={momentum: max(1.0, rate / top) for momentum, top in CEILINGS.items()},
    )


def make_diagnosis(**changes: Any) -> Diagnosis:
    """Everything known, unless changed."""
    content: dict[str, Any] = {
        "task": "mlp_mnist1d",
        "momentum": 0.9,
        "num_train": NUM_TRAIN,
        "budget": "30 epochs",
        "metric": "accuracy",
        "stability": tuple(make_stability(m, around(limit)) for m, limit in LIMITS.items()),
        "grids": tuple(make_grid(b) for b in (8, 32, 128)),
        "isotherm": Isotherm(
            temperature=around(TEMPERATURE, 1.2),
            slope=Interval(estimate=0.97, low=0.82, high=1.11),
            batch_sizes=(8, 32, 128),
            exponent=Interval(estimate=-0.5, low=-0.8, high=-0.2),
            at_batch_size=32.0,
            longest_part=0.5,
        ),
        "probes": (
            Probe(step=0, sharpness=around(0.5, 1.1), noise_scale=around(20.0, 1.3), num_examples=2000, mode="train"),
            Probe(step=120, sharpness=around(0.8, 1.1), noise_scale=around(90.0, 1.5), num_examples=2000, mode="train"),
        ),
        "boundaries": (
            Boundary(
                source="sweep", momentum=0.0, batch_size=around(48.0, 1.4), how="half of the limit over the temperature"
            ),
            Boundary(
                source="sweep",
                momentum=0.9,
                batch_size=around(192.0, 1.4),
                how="half of the limit over the temperature",
            ),
            Boundary(
                source="curvature",
                momentum=0.0,
                batch_size=around(40.0, 1.3),
                how="half of 2/λ_max over the temperature",
            ),
            Boundary(
                source="curvature",
                momentum=0.9,
                batch_size=around(760.0, 1.3),
                how="half of 38/λ_max over the temperature",
            ),
            Boundary(source="noise scale", momentum=0.0, batch_size=around(90.0, 1.5), how="B_simple = tr Σ / ‖G‖²"),
        ),
        "agreement": "For SGD the three estimates agree within a factor of two.",
        "current": CURRENT,
        "choices": tuple(make_choice(b) for b in (8, 16, 32, 64, 128, 256, 512)),
        "recommended": {0.0: 32, 0.9: 128},
        "expectations": (
            "Doubling the batch from 128 needs twice the learning rate with momentum.",
            "Doubling the epochs leaves the best learning rate about where it is.",
        ),
        "missing": ("The speed at B = 512 and above; give more minutes.",),
        "cost": Cost(seconds=187.4, num_runs=108, num_examples=1_234_567),
        "settings": {"seed": 0, "minutes": 5.0, "device": "cpu", "batch_sizes": [8, 32, 128]},
    }
    return Diagnosis(**(content | changes))


def nothing_recommended() -> Diagnosis:
    """No run failed, no optimum inside its grid: nothing follows."""
    return make_diagnosis(
        stability=tuple(make_stability(m, None) for m in LIMITS),
        grids=tuple(make_grid(b, has_optimum=False) for b in (8, 32)),
        isotherm=Isotherm(temperature=None, slope=None, batch_sizes=()),
        probes=(Probe(step=0, sharpness=None, noise_scale=None, num_examples=0, mode="evaluate"),),
        boundaries=tuple(
            Boundary(source=source, momentum=m, batch_size=None, how="needs the temperature")
            for source in ("sweep", "curvature", "noise scale")
            for m in LIMITS
        ),
        agreement="There is nothing to compare.",
        current=dataclasses.replace(
            CURRENT,
            regime="unknown",
            words="The short runs do not determine what the learning rate should be.",
            factor=None,
            lost=None,
            is_stable=None,
            extra_epochs=None,
        ),
        choices=(),
        recommended={},
        expectations=(),
        missing=(
            "The limit of stability: no run failed; allow more --minutes.",
            "The temperature: every optimum lies at an end of its grid [0.1, 2].",
        ),
    )


def momentum_unknown() -> Diagnosis:
    """No run with momentum failed: its limit is unknown, that of SGD is not; and no setting was told."""
    full = make_diagnosis()
    return make_diagnosis(
        stability=(full.stability[0], make_stability(0.9, None)),
        boundaries=tuple(
            dataclasses.replace(b, batch_size=None) if (b.source, b.momentum) == ("sweep", 0.9) else b
            for b in full.boundaries
        ),
        choices=tuple(dataclasses.replace(c, rates={0.0: c.rates[0.0]}, extra_epochs={0.0: 1.0}) for c in full.choices),
        recommended={0.0: 32},
        current=None,
        missing=("The largest stable learning rate of momentum 0.9: no run failed; give more minutes.",),
    )


def unbounded() -> Diagnosis:
    """Upper ends that the data leave open, an optimum without error, speeds that were not measured."""
    full = make_diagnosis()
    endless = Interval(estimate=12.0, low=8.0, high=math.inf)
    return make_diagnosis(
        stability=(full.stability[0], dataclasses.replace(full.stability[1], limit=endless)),
        grids=(
            dataclasses.replace(full.grids[0], optimum=Interval(estimate=0.25, low=0.25, high=0.25)),
            dataclasses.replace(full.grids[1], optimum=Interval(estimate=1.0, low=0.5, high=math.inf)),
        ),
        isotherm=Isotherm(temperature=Interval(estimate=TEMPERATURE, low=0.0, high=0.1), slope=None, batch_sizes=(8,)),
        boundaries=(
            Boundary(
                source="sweep",
                momentum=0.0,
                batch_size=Interval(estimate=math.inf, low=96.0, high=math.inf),
                how="no run failed",
            ),
            Boundary(
                source="noise scale",
                momentum=0.0,
                batch_size=Interval(estimate=1e6, low=0.0, high=math.inf),
                how="B_simple",
            ),
        ),
        probes=(
            Probe(
                step=0,
                sharpness=Interval(estimate=-0.1, low=-0.3, high=0.2),
                noise_scale=Interval(estimate=50.0, low=10.0, high=math.inf),
                num_examples=500,
                mode="train",
            ),
        ),
        choices=tuple(
            dataclasses.replace(choice, rates={0.0: choice.rates[0.0], 0.9: endless}, speed=None, epoch_seconds=None)
            for choice in full.choices
        ),
    )
