"""`isotherm theory noisy-quadratic`: the two regimes of the noisy quadratic model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from isotherm.core.statistics import Interval, t_interval
from isotherm.theory.closed_forms import critical_effective_learning_rate
from isotherm.theory.demonstration import Curve, Demonstration, Panel, Table
from isotherm.theory.noisy_quadratic import SINGLE_PRECISION_GROWTH, NoisyQuadratic, simulate_final_losses
from isotherm.theory.quadratic_tuning import (
    Optimum,
    constant_examples,
    find_optimum,
    fitted_kink,
    optima_at_constant_examples,
    predicted_kink,
)

_NUM_SIMULATED = 32
_MOST_SIMULATED_STEPS = 512


def demonstrate(*, seed: int = 0) -> Demonstration:
    """Return the two regimes of the harmonic model at 2^17 examples, with simulated runs to check the recursion.

    Args:
        seed: of the simulated runs; nothing else is random.
    """
    model, num_examples = NoisyQuadratic.harmonic(), 2**17
    sgd = _series(model, "SGD", momentum=0.0, num_examples=num_examples, seed=seed)
    heavy = _series(model, "momentum 0.9", momentum=0.9, num_examples=num_examples, seed=seed)
    budgets = [constant_examples(2**exponent, batch_size=16) for exponent in range(14, 23, 2)]
    grown = [find_optimum(model, setting) for setting in budgets]
    return Demonstration(
        name="noisy-quadratic",
        title="The noisy quadratic model: two regimes, computed exactly",
        paragraph=_paragraph(model, sgd, heavy, grown),
        panels=_panels(sgd, heavy),
        tables=_tables(sgd, heavy, grown),
        settings={
            "num_dimensions": len(model.curvature),
            "num_examples": num_examples,
            "batch_sizes": sgd.sizes,
            "growth_limit": SINGLE_PRECISION_GROWTH,
            "num_simulated_runs": _NUM_SIMULATED,
            "seed": seed,
        },
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Series:
    """The optima of one momentum over batch sizes, its limits, and simulated runs where they are short enough."""

    label: str
    optima: list[Optimum]
    critical: float
    predicted_kink: float
    fitted_kink: float | None
    simulated: list[tuple[Optimum, Interval]]

    @property
    def sizes(self) -> list[int]:
        return [optimum.setting.batch_size for optimum in self.optima]

    @property
    def found(self) -> str:
        return "no kink" if self.fitted_kink is None else f"B ≈ {self.fitted_kink:.0f}"


def _series(model: NoisyQuadratic, label: str, *, momentum: float, num_examples: int, seed: int) -> _Series:
    sizes = [4**exponent for exponent in range(8)]
    optima = optima_at_constant_examples(model, sizes, num_examples=num_examples, momentum=momentum)
    simulated = []
    for optimum in optima:
        if optimum.setting.num_steps <= _MOST_SIMULATED_STEPS:
            rate = optimum.effective_learning_rate
            losses = simulate_final_losses(
                model, optimum.setting, effective_learning_rate=rate, num_runs=_NUM_SIMULATED, seed=seed
            )
            simulated.append((optimum, t_interval(losses.tolist())))
    return _Series(
        label=label,
        optima=optima,
        critical=critical_effective_learning_rate(model.largest_curvature, momentum=momentum),
        predicted_kink=predicted_kink(model, num_examples=num_examples, momentum=momentum),
        fitted_kink=fitted_kink(optima),
        simulated=simulated,
    )


def _paragraph(model: NoisyQuadratic, sgd: _Series, heavy: _Series, grown: Sequence[Optimum]) -> str:
    pairs = list(zip(sgd.optima, heavy.optima, strict=True))
    below = max(abs(b.loss / a.loss - 1) for a, b in pairs if a.setting.batch_size < sgd.predicted_kink)
    slow, fast = max(pairs, key=lambda pair: pair[0].loss / pair[1].loss)
    checks = sgd.simulated + heavy.simulated
    hits = sum(interval.contains(optimum.loss) for optimum, interval in checks)
    limited = [optimum for optimum in sgd.optima if optimum.setting.batch_size > sgd.predicted_kink]
    unlimited = [find_optimum(model, optimum.setting, growth_limit=math.inf) for optimum in limited]
    others = [exact for exact, optimum in zip(unlimited, limited, strict=True) if exact != optimum]
    return (
        f"The loss is ½ Σ h_i θ_i² with h_i = 1/i in {len(model.curvature)} dimensions, and the gradient of one "
        f"example has variance h_i there. Training is linear, so the expected loss after a run is known exactly. "
        f"While batches are small the best ε_eff grows with B, at the temperature T* = "
        f"{sgd.critical / sgd.predicted_kink:.3g}, and the loss stays at {sgd.optima[0].loss:.4f}. The line meets "
        f"SGD's critical learning rate {sgd.critical:.3g} at B ≈ {sgd.predicted_kink:.0f}; the optima "
        f"bend at {sgd.found}. Momentum raises the limit {heavy.critical / sgd.critical:.0f}-fold to "
        f"{heavy.critical:.3g}: predicted "
        f"B ≈ {heavy.predicted_kink:.0f}, found {heavy.found}. Below SGD's kink momentum changes the loss by at most "
        f"{100 * below:.1f} %; at B = {fast.setting.batch_size} it makes it {slow.loss / fast.loss:.0f} times smaller. "
        f"At B = {grown[0].setting.batch_size} a budget {grown[-1].setting.num_steps / grown[0].setting.num_steps:.0f} "
        f"times as large takes SGD's best ε_eff from {grown[0].effective_learning_rate:.3g} to "
        f"{grown[-1].effective_learning_rate:.3g}: the longer the training, the less noise suits the training loss. "
        f"The model has no test set that might favour more. Of {len(checks)} settings simulated with "
        f"{_NUM_SIMULATED} runs each, {hits} have the exact loss within their 95 % interval. One artefact: "
        f"since h_1 = 1 and the rates are powers of √2, a halved rate may hit ε h_1 = 1 exactly and reset a "
        f"dimension that had exploded. In exact arithmetic this would be SGD's best at B = "
        f"{_listed(each.setting.batch_size for each in others)}, with ε_eff = "
        f"{_listed(each.effective_learning_rate for each in others)}. Growth beyond 2^24, where single precision "
        f"has lost the initial value, counts as divergence; the {sgd.optima[-1].setting.num_steps} updates at "
        f"B = {sgd.sizes[-1]} are too few to grow that far, which is why SGD's last optimum stands out."
    )


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _tables(sgd: _Series, heavy: _Series, grown: Sequence[Optimum]) -> list[Table]:
    optima = Table(
        title="Best effective learning rate and expected final loss at an equal number of examples",
        columns=["B", "updates", *(f"{each.label}, {what}" for each in (sgd, heavy) for what in ("ε_eff*", "loss"))],
        rows=[
            [*_size(a), a.effective_learning_rate, a.loss, b.effective_learning_rate, b.loss]
            for a, b in zip(sgd.optima, heavy.optima, strict=True)
        ],
    )
    kinks = Table(
        title="Where ε_eff ∝ B ends",
        columns=["", "critical ε_eff", "predicted kink, B", "kink of the optima, B"],
        rows=[[each.label, each.critical, each.predicted_kink, each.fitted_kink or "none"] for each in (sgd, heavy)],
    )
    budgets = Table(
        title="SGD with a growing budget at one batch size",
        columns=["B", "updates", "ε_eff*", "loss"],
        rows=[[*_size(each), each.effective_learning_rate, each.loss] for each in grown],
    )
    return [optima, kinks, budgets]


def _size(optimum: Optimum) -> tuple[int, int]:
    return optimum.setting.batch_size, optimum.setting.num_steps


def _panels(*series: _Series) -> list[Panel]:
    rates, losses, limits, points = [], [], [], []
    for each in series:
        rates.append(Curve(label=each.label, x=each.sizes, y=[o.effective_learning_rate for o in each.optima]))
        losses.append(Curve(label=each.label, x=each.sizes, y=[o.loss for o in each.optima]))
        level = [each.critical] * len(each.sizes)
        limits.append(Curve(label=f"critical, {each.label}", x=each.sizes, y=level, style="dashed"))
        simulated, intervals = zip(*each.simulated, strict=True)
        points.append(
            Curve(
                label=f"simulated, {each.label}",
                x=[optimum.setting.batch_size for optimum in simulated],
                y=[interval.estimate for interval in intervals],
                low=[interval.low for interval in intervals],
                high=[interval.high for interval in intervals],
                style="points",
            )
        )
    note = f"points: mean of {_NUM_SIMULATED} simulated runs with its 95 % interval"
    return [
        Panel(
            title="Optimal effective learning rate",
            x_label="batch size B",
            y_label="ε_eff",
            curves=[*rates, *limits],
            x_log=True,
            y_log=True,
        ),
        Panel(
            title="Expected final loss at the optimum",
            x_label="batch size B",
            y_label="loss",
            curves=[*losses, *points],
            x_log=True,
            y_log=True,
            note=note,
        ),
    ]
