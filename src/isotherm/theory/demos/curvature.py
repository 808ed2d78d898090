"""`isotherm theory curvature`: the edge of stability on a small network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from isotherm.tasks.losses import half_squared_error
from isotherm.tasks.seeding import derive, seeded
from isotherm.theory.curvature import SharpnessProbe, SharpnessRecord, Spectrum, spectrum
from isotherm.theory.demonstration import Curve, Demonstration, Panel, Table
from isotherm.theory.hessian import Hessian

_NUM_POINTS = 60
_WIDTHS = (2, 24, 24, 2)
_NUM_MEASUREMENTS = 40
_NUM_EIGENVALUES = 8
# Learning rate, momentum and updates; heavy ball repeats one of the learning rates, to show what momentum changes.
_RUNS = ((0.2, 0.0, 1500), (0.1, 0.0, 2000), (0.2, 0.3, 1500))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Descent:
    """A run of full-batch descent, and the spectrum at its end."""

    learning_rate: float
    momentum: float
    records: tuple[SharpnessRecord, ...]
    losses: tuple[float, ...]
    end: Spectrum

    @property
    def label(self) -> str:
        return f"ε = {self.learning_rate:g}" + (f", m = {self.momentum:g}" if self.momentum else "")

    @property
    def edge(self) -> float:
        """The sharpness above which this run is unstable, 2(1 + m)/ε."""
        return 2.0 * (1.0 + self.momentum) / self.learning_rate

    @property
    def late_sharpness(self) -> float:
        """The mean over the last quarter of the measurements."""
        return float(np.mean([record.sharpness for record in self.records[-(len(self.records) // 4) :]]))

    @property
    def num_rises(self) -> int:
        """The number of updates that raised the loss; below the edge there are none."""
        return int(np.sum(np.diff(self.losses) > 0))


def demonstrate(*, seed: int = 0) -> Demonstration:
    """Show that full-batch descent sharpens a small network up to the edge of stability.

    Args:
        seed: of the data and of the initialisation.
    """
    inputs, targets = _spirals(_NUM_POINTS, seed=seed)
    hessian = Hessian(_network(seed=seed), half_squared_error, inputs=inputs, targets=targets, mode="train")
    start = _ends(hessian, seed=seed)
    descents = [
        _descend(learning_rate=rate, momentum=momentum, num_steps=num_steps, seed=seed)
        for rate, momentum, num_steps in _RUNS
    ]
    sharpness = [
        curve
        for run in descents
        for curve in (
            Curve(label=run.label, x=[r.step for r in run.records], y=[r.sharpness for r in run.records]),
            Curve(
                label=f"2(1 + m)/ε for {run.label}",
                x=[0, run.records[-1].step],
                y=[run.edge, run.edge],
                style="dashed",
            ),
        )
    ]
    ranks = list(range(1, _NUM_EIGENVALUES + 1))
    tops = [Curve(label="start", x=ranks, y=start.largest.values.tolist(), style="points")]
    tops += [
        Curve(label=f"end, {run.label}", x=ranks, y=run.end.largest.values.tolist(), style="points") for run in descents
    ]
    return Demonstration(
        name="curvature",
        title="Full-batch descent sharpens a network up to the edge of stability",
        paragraph=_paragraph(start, descents),
        panels=[
            Panel(title="Sharpness of three runs", x_label="update", y_label="λ_max", curves=sharpness),
            Panel(
                title=f"The {_NUM_EIGENVALUES} largest eigenvalues",
                x_label="rank",
                y_label="eigenvalue",
                curves=tops,
                y_log=True,
            ),
        ],
        tables=[_table_of_runs(start, descents), _table_of_eigenvalues(start, descents)],
        settings={
            "seed": seed,
            "widths": list(_WIDTHS),
            "num_points": _NUM_POINTS,
            "runs": [{"learning_rate": e, "momentum": m, "num_steps": n} for e, m, n in _RUNS],
            "num_measurements": _NUM_MEASUREMENTS,
        },
    )


def _spirals(num: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return points (num, 2) on two noisy spirals, and the spiral of each as (1, 0) or (0, 1)."""
    generator = np.random.default_rng(derive(seed, "spirals"))
    label, radius = np.arange(num) % 2, np.linspace(0.2, 1.0, num)
    angle = np.pi * label + 9.0 * radius + 0.1 * generator.standard_normal(num)
    points = 3.0 * radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return torch.from_numpy(points), torch.from_numpy(np.eye(2)[label])


def _network(*, seed: int) -> nn.Sequential:
    with seeded(seed, "initialisation"):
        layers = [nn.Linear(*sizes) for sizes in pairwise(_WIDTHS)]
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2]).double()


def _descend(*, learning_rate: float, momentum: float, num_steps: int, seed: int) -> _Descent:
    inputs, targets = _spirals(_NUM_POINTS, seed=seed)
    module = _network(seed=seed)
    hessian = Hessian(module, half_squared_error, inputs=inputs, targets=targets, mode="train")
    probe = SharpnessProbe(hessian, every=num_steps // _NUM_MEASUREMENTS, seed=seed)
    optimizer = torch.optim.SGD(module.parameters(), lr=learning_rate, momentum=momentum)
    losses = []
    for step in range(num_steps):
        probe(step, module.named_parameters())
        optimizer.zero_grad()
        loss = half_squared_error(module(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return _Descent(
        learning_rate=learning_rate,
        momentum=momentum,
        records=tuple(probe.records),
        losses=tuple(losses),
        end=_ends(hessian.at(module.named_parameters()), seed=seed),
    )


def _ends(hessian: Hessian, *, seed: int) -> Spectrum:
    return spectrum(hessian, num_eigenvalues=_NUM_EIGENVALUES, tolerance=1e-4, seed=seed)


def _paragraph(start: Spectrum, descents: Sequence[_Descent]) -> str:
    found = "; ".join(
        f"{run.label}: {run.late_sharpness:.2f} over the last quarter, {run.late_sharpness / run.edge:.3f} of "
        f"2(1 + m)/ε = {run.edge:g}, while {run.num_rises} of {len(run.losses)} updates raised the loss, which fell "
        f"from {run.losses[0]:.3g} to {run.losses[-1]:.2g}"
        for run in descents
    )
    at_edge = [run.label for run in descents if abs(run.late_sharpness / run.edge - 1) < 0.05]
    verdict = f"{len(at_edge)} of {len(descents)} runs end within 5 % of their edge" + (
        f" ({'; '.join(at_edge)})." if at_edge else "."
    )
    return (
        f"A tanh network of {start.num_parameters} parameters learns to tell {_NUM_POINTS} points of two spirals apart "
        f"by full-batch gradient descent. Its Hessian's largest eigenvalue starts at {start.sharpness:.2f}; a "
        f"quadratic of this curvature would allow ε up to {start.critical_learning_rate():.2f}. But the curvature does "
        f"not stay constant. {found}. {verdict} There, the critical learning rate is not a property of the problem: "
        "training has moved to where the chosen learning rate is close to critical, and heavy ball at the same ε "
        "allows (1 + m) times the curvature. The smallest eigenvalue was "
        f"{start.most_negative:.3g} at the start and {descents[0].end.most_negative:.3g} after the first run."
    )


def _table_of_runs(start: Spectrum, descents: Sequence[_Descent]) -> Table:
    return Table(
        title="Sharpness against the edge of stability",
        columns=["ε", "m", "2(1 + m)/ε", "λ_max at start", "λ_max, last quarter", "ratio", "loss rose", "final loss"],
        rows=[
            (
                run.learning_rate,
                run.momentum,
                run.edge,
                start.sharpness,
                run.late_sharpness,
                run.late_sharpness / run.edge,
                f"{run.num_rises} of {len(run.losses)}",
                run.losses[-1],
            )
            for run in descents
        ],
    )


def _table_of_eigenvalues(start: Spectrum, descents: Sequence[_Descent]) -> Table:
    """Return the ends of the spectra, with the largest residual of each."""
    spectra = [("start", start), *((f"end, {run.label}", run.end) for run in descents)]
    return Table(
        title="The ends of the spectrum",
        columns=["when", *(f"λ_{rank}" for rank in range(1, _NUM_EIGENVALUES + 1)), "smallest", "largest residual"],
        rows=[
            (when, *found.largest.values.tolist(), found.most_negative, float(found.largest.residuals.max()))
            for when, found in spectra
        ],
    )
