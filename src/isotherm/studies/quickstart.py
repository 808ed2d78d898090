"""Does SGD have two regimes, and does noise help it generalise? The whole protocol on a laptop.

MNIST-1D with an MLP 40-100-100-10, L2 5e-4, five seeds at every learning rate and five more at the one chosen, grids
refined around their optima, tuned on the test set as in the paper.

Run:     isotherm quickstart
"""

from __future__ import annotations

from pathlib import Path

from isotherm.core.budget import Budget
from isotherm.core.rates import IsothermGrid, powers_of_two
from isotherm.sweep.study import Study
from isotherm.sweep.sweep import Sweep
from isotherm.tasks.builtin import get_task
from isotherm.tasks.task import Task

# Rough guesses on which the grids are centred; a grid whose optimum lies at an end is extended.
TEMPERATURE = 2.0**-5
CEILING_SGD = 2.0
CEILING_MOMENTUM = 8.0

# Grids are refined to √2, not to 2^¼, so that the study takes two minutes; what that leaves open is in the intervals.
SMALLEST_RATIO = 2.0**0.5


def quickstart(data: Path | None = None) -> Study:
    """Return the embedded study: equal steps with momentum, equal epochs with and without."""
    task = get_task("mlp_mnist1d", data=data)
    sizes = tuple(int(size) for size in powers_of_two(3, 10))
    return Study(
        name="quickstart",
        question="Does SGD have a noise dominated and a curvature dominated regime, and does noise help it generalise?",
        sweeps=(
            _sweep(task, "constant_steps", sizes, Budget.steps(1500), momentum=0.9, ceiling=CEILING_MOMENTUM),
            _sweep(task, "constant_epochs", sizes, Budget.epochs(20), momentum=0.0, ceiling=CEILING_SGD),
            _sweep(task, "constant_epochs", sizes, Budget.epochs(20), momentum=0.9, ceiling=CEILING_MOMENTUM),
        ),
    )


def _sweep(
    task: Task, name: str, batch_sizes: tuple[int, ...], budget: Budget, *, momentum: float, ceiling: float
) -> Sweep:
    return Sweep(
        name=name,
        task=task,
        batch_sizes=batch_sizes,
        effective_learning_rates=IsothermGrid(temperature=TEMPERATURE, ceiling=ceiling, num_below=1, num_above=1),
        budget=budget,
        momentum=momentum,
        l2=5e-4,
        num_seeds=5,
        tune_on="test",
        extend_for="tuned_and_train",
        smallest_ratio=SMALLEST_RATIO,
        num_evaluations=0,
    )
