"""Which learning rate and batch size suit my model? A sweep over one's own `nn.Module` and tensors.

Run:     python examples/own_model.py            (about ten seconds on two cores)
Or:      isotherm run examples.own_model:sweep   (from the repository's root; resumes, prints tables and verdicts)

Two interleaved spirals, a small network with dropout, the learning rate chosen on held-out training data.
"""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor, nn

import isotherm as it


class SpiralNet(nn.Module):
    """A plain module: it knows nothing of fleets, seeds or sweeps."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the two spirals."""
        return self.head(self.dropout(self.body(x)))


def spirals(num_examples: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return points on two interleaved spirals with noise, and which spiral each lies on."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 2, (num_examples,), generator=generator)
    radius = 0.2 + 2.0 * torch.rand(num_examples, generator=generator)
    angle = 2.5 * radius + math.pi * label
    points = radius[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)
    return points + 0.25 * torch.randn(num_examples, 2, generator=generator), label


def task() -> it.Task:
    """Return what is trained: builder, data, loss and metric."""
    return it.Task(
        name="spirals",
        model=SpiralNet,
        train=spirals(512, seed=0),
        test=spirals(1024, seed=1),
        loss="cross_entropy",
        metric="accuracy",
    )


def sweep() -> it.Sweep:
    """Return the protocol: four batch sizes, a grid of learning rates, five seeds each, equal epochs.

    Grids are refined around their optima, and five further seeds confirm each of them.
    """
    return it.Sweep(
        name="spirals",
        task=task(),
        batch_sizes=[8, 16, 32, 64],
        effective_learning_rates=it.powers_of_two(-3, 2),
        budget=it.Budget.epochs(20),
        momentum=0.9,
        num_seeds=5,
        num_evaluations=0,
    )


def main(store: str = "spirals.sqlite") -> it.Results:
    """Run what is missing, print the optima, the two regimes and a recommendation."""
    results = it.run(sweep(), store=store)
    for grid in results.optima():
        best = grid.optimum()
        test = grid.at_optimum("test_metric")
        assert best is not None
        assert test is not None
        print(
            f"B = {grid.axes.batch_size:3d}  ε_eff = {best.effective_learning_rate:<6g} "
            f"[{best.interval[0]:g}, {best.interval[1]:g}]  {best.edge:10s}  "
            f"test accuracy {100 * test.mean:.1f} ± {100 * test.standard_deviation:.1f} % "
            f"({test.num_kept} further seeds)"
        )
    analysis = it.analyse(results)
    for found in (*analysis.regimes, *analysis.recommendations):
        print(found)
    return results


if __name__ == "__main__":
    main(*sys.argv[1:])
