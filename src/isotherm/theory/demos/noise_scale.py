"""`isotherm theory noise-scale`: the gradient noise scale of a regression whose exact value is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from isotherm.core.statistics import Floats, Interval
from isotherm.tasks.seeding import derive
from isotherm.tasks.task import Task
from isotherm.theory.demonstration import Curve, Demonstration, Panel, Table
from isotherm.theory.noise_measurement import Measurement, noise_scale_along_training
from isotherm.theory.noise_scale import NoiseScale, optimal_learning_rate

_NUM_EXAMPLES, _NUM_FEATURES = 16_384, 20
_LEARNING_RATE, _BATCH_SIZE = 0.1, 64
_STEPS = (0, 4, 8, 16, 32, 64, 128, 256)
_SHOWN_STEP = 16
_BATCH_SIZES = tuple(2**k for k in range(13))
_NUM_OBSERVED = 2**18  # examples in all random batches of each size


def demonstrate(*, seed: int = 0) -> Demonstration:
    """Return the noise scale of a linear regression along its training, measured and exact, and ε_opt(B)."""
    task, checkpoints = _regression(seed)
    measurement = Measurement(small_batch_size=8, large_batch_size=1024, num_draws=64, seed=seed)
    measured = noise_scale_along_training(task, checkpoints, measurement=measurement, precision="float64")
    known = {step: _Known.at(task, parameters["weight"]) for step, parameters in checkpoints}
    scales = {step: exact.noise_trace / exact.gradient_norm_squared for step, exact in known.items()}
    num_inside = sum(scale.gradient_noise_scale.contains(scales[step]) for step, scale in measured)
    open_ended = [step for step, scale in measured if not scale.has_upper_limit]
    shown = known[_SHOWN_STEP]
    observed = [shown.observed_optimum(size, seed=seed) for size in _BATCH_SIZES]
    predicted = [shown.optimum(size, shown.curved_noise_scale) for size in _BATCH_SIZES]
    largest_error = max(abs(o / p - 1) for o, p in zip(observed, predicted, strict=True))
    start, end = known[_STEPS[0]], known[_STEPS[-1]]
    first, last = (scale.gradient_noise_scale.estimate for scale in (measured[0][1], measured[-1][1]))
    paragraph = (
        f"Linear regression on {_NUM_EXAMPLES:,} examples, trained by SGD with batches of {_BATCH_SIZE}; the "
        f"gradients of all examples give the exact values. In {_STEPS[-1]} steps ‖G‖² goes from "
        f"{start.gradient_norm_squared:.3g} to {end.gradient_norm_squared:.2g} and tr Σ from {start.noise_trace:.3g} "
        f"to {end.noise_trace:.3g}: the noise scale B_simple = tr Σ / ‖G‖² goes from {scales[_STEPS[0]]:.3g} to "
        f"{scales[_STEPS[-1]]:,.4g}. Measured with "
        f"{measurement.num_draws} draws of {measurement.small_batch_size} and {measurement.large_batch_size} examples "
        f"it is {first:.3g} at the start and {last:,.4g} at the end, and the 95 % interval contains the exact value at "
        f"{num_inside} of {len(measured)} steps. {_open_ended(open_ended)} After {_SHOWN_STEP} steps the learning rate "
        f"that lowers the loss most in one step is ε_max / (1 + B_noise / B), with ε_max = "
        f"{shown.largest_learning_rate:.3g} and B_noise = tr(HΣ) / (GᵀHG) = {shown.curved_noise_scale:.3g}; "
        f"B_simple = {scales[_SHOWN_STEP]:.3g} ignores the curvature. The best learning rate on random "
        f"batches differs from this formula by at most {100 * largest_error:.1f} %. It is proportional to B far below "
        "the noise scale and constant far above it."
    )
    return Demonstration(
        name="noise-scale",
        title="The gradient noise scale rises as the gradient falls",
        paragraph=paragraph,
        panels=[
            _panel_of_parts(measured, known),
            _panel_of_scales(measured, scales),
            Panel(
                title=f"Best learning rate for the next step, after {_SHOWN_STEP} steps",
                x_label="batch size B",
                y_label="ε_opt",
                x_log=True,
                y_log=True,
                curves=[
                    Curve(label="ε_max / (1 + B_noise / B)", x=_BATCH_SIZES, y=predicted),
                    Curve(
                        label="the same with B_simple",
                        x=_BATCH_SIZES,
                        y=[shown.optimum(size, scales[_SHOWN_STEP]) for size in _BATCH_SIZES],
                        style="dashed",
                    ),
                    Curve(label="best on random batches", x=_BATCH_SIZES, y=observed, style="points"),
                ],
            ),
        ],
        tables=[_table(measured, scales)],
        settings={
            "seed": seed,
            "num_examples": _NUM_EXAMPLES,
            "num_features": _NUM_FEATURES,
            "learning_rate": _LEARNING_RATE,
            "batch_size": _BATCH_SIZE,
            "measurement": asdict(measurement),
        },
    )


def _regression(seed: int) -> tuple[Task, list[tuple[int, dict[str, Tensor]]]]:
    """Return a linear regression and its parameters along training by SGD."""
    generator = torch.Generator().manual_seed(derive(seed, "noise scale of a regression") % 2**63)
    scales = torch.arange(1, _NUM_FEATURES + 1, dtype=torch.float64) ** -0.5
    x = torch.randn(_NUM_EXAMPLES, _NUM_FEATURES, generator=generator, dtype=torch.float64) * scales
    y = x.sum(dim=1, keepdim=True) + torch.randn(_NUM_EXAMPLES, 1, generator=generator, dtype=torch.float64)
    task = Task(
        name="regression",
        model=partial(nn.Linear, _NUM_FEATURES, 1, bias=False),
        train=(x, y),
        test=(x[:1], y[:1]),
        loss="half_squared_error",
    )
    weight = torch.zeros(1, _NUM_FEATURES, dtype=torch.float64)
    checkpoints = []
    for step in range(_STEPS[-1] + 1):
        if step in _STEPS:
            checkpoints.append((step, {"weight": weight}))
        index = torch.randint(_NUM_EXAMPLES, (_BATCH_SIZE,), generator=generator)
        weight = weight - _LEARNING_RATE / _BATCH_SIZE * (x[index] @ weight.T - y[index]).T @ x[index]
    return task, checkpoints


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class _Known:
    """Exact quantities of the regression at one point, from the gradients of all examples.

    Args:
        gradients: of every example, shape (N, features).
        hessian: of the loss, shape (features, features).
    """

    gradients: Floats
    hessian: Floats

    @classmethod
    def at(cls, task: Task, weight: Tensor) -> _Known:
        inputs, targets = task.train
        assert isinstance(inputs, Tensor)
        x = inputs.numpy()
        return cls(gradients=x * (inputs @ weight.T - targets).numpy(), hessian=x.T @ x / len(x))

    @property
    def gradient(self) -> Floats:
        return np.asarray(self.gradients.mean(axis=0))

    @property
    def gradient_norm_squared(self) -> float:
        return float(self.gradient @ self.gradient)

    @property
    def noise_trace(self) -> float:
        return float(self.gradients.var(axis=0).sum())

    @property
    def curvature_along_gradient(self) -> float:
        return float(self.gradient @ self.hessian @ self.gradient)

    @property
    def largest_learning_rate(self) -> float:
        """ε_max = ‖G‖² / (GᵀHG)."""
        return self.gradient_norm_squared / self.curvature_along_gradient

    @property
    def curved_noise_scale(self) -> float:
        """B_noise = tr(HΣ) / (GᵀHG)."""
        offsets = self.gradients - self.gradient
        return float(np.mean((offsets @ self.hessian * offsets).sum(axis=1))) / self.curvature_along_gradient

    def optimum(self, batch_size: int, noise_scale: float) -> float:
        return optimal_learning_rate(
            batch_size, largest_learning_rate=self.largest_learning_rate, gradient_noise_scale=noise_scale
        )

    def observed_optimum(self, batch_size: int, *, seed: int) -> float:
        """Return the learning rate at which one step on random batches lowers the loss of all examples most."""
        generator = np.random.default_rng([derive(seed, "observed optimum"), batch_size])
        index = generator.integers(len(self.gradients), size=(_NUM_OBSERVED // batch_size, batch_size))
        g = self.gradients[index].mean(axis=1)
        return float(np.sum(g @ self.gradient) / np.sum(g @ self.hessian * g))  # of -ε gᵀG + ½ ε² gᵀHg


def _open_ended(steps: list[int]) -> str:
    if not steps:
        return "Everywhere ‖G‖² is distinguishable from zero."
    named = ", ".join(map(str, steps))
    return f"At step {named} ‖G‖² is not distinguishable from zero, and the noise scale has no upper limit."


def _panel_of_parts(measured: list[tuple[int, NoiseScale]], known: Mapping[int, _Known]) -> Panel:
    """Return the panel of tr Σ and ‖G‖²; the logarithmic axis shows positive values only."""
    curves = []
    for name, symbol in (("noise_trace", "tr Σ"), ("gradient_norm_squared", "‖G‖²")):
        curves.append(Curve(label=f"{symbol}, known", x=list(known), y=[getattr(at, name) for at in known.values()]))
        found = [(step, getattr(scale, name)) for step, scale in measured if getattr(scale, name).low > 0]
        curves.append(_points(f"{symbol}, measured", found))
    return Panel(title="Noise and gradient", x_label="step", y_label="squared norm", y_log=True, curves=curves)


def _panel_of_scales(measured: list[tuple[int, NoiseScale]], known: Mapping[int, float]) -> Panel:
    limited = [(step, scale.gradient_noise_scale) for step, scale in measured if scale.has_upper_limit]
    others = [(step, scale.gradient_noise_scale) for step, scale in measured if not scale.has_upper_limit]
    curves = [
        Curve(label="known", x=list(known), y=list(known.values())),
        _points("measured, 95 % interval", limited),
    ]
    if others:
        steps, limits = [step for step, _ in others], [interval.low for _, interval in others]
        curves.append(Curve(label="measured, lower limit", x=steps, y=limits, style="points"))
    return Panel(
        title="Noise scale along training", x_label="step", y_label="B_simple = tr Σ / ‖G‖²", y_log=True, curves=curves
    )


def _points(label: str, found: list[tuple[int, Interval]]) -> Curve:
    return Curve(
        label=label,
        x=[step for step, _ in found],
        y=[interval.estimate for _, interval in found],
        low=[interval.low for _, interval in found],
        high=[interval.high for _, interval in found],
        style="points",
    )


def _table(measured: list[tuple[int, NoiseScale]], known: Mapping[int, float]) -> Table:
    rows = []
    for step, scale in measured:
        found = scale.gradient_noise_scale
        high = f"{found.high:.4g}" if scale.has_upper_limit else "none"
        rows.append((step, f"{known[step]:.4g}", f"{found.estimate:.4g}", f"{found.low:.4g}", high))
    return Table(
        title="B_simple along training", columns=("step", "known", "measured", "lower limit", "upper limit"), rows=rows
    )
