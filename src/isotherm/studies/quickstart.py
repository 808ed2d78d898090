"""Does SGD have two regimes, and does noise help it generalise? The whole protocol on a laptop.

MNIST-1D with an MLP 40-100-100-10, L2 5e-4, four seeds at every learning rate and four more at the one chosen (three
and three at equal epochs), grids refined around their optima, tuned on the test set as in the paper.

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

# What keeps the study below 150 s on two cores; docs/quickstart.md says what it costs. Grids are refined to √2, not to
# 2^¼. There are few seeds, the fewest at equal epochs, where differences are large, and no B = 16 there: small batches
# take the most updates.
SMALLEST_RATIO = 2.0**0.5
NUM_SEEDS_AT_EQUAL_STEPS = 4
NUM_SEEDS_AT_EQUAL_EPOCHS = 3
BATCH_SIZES_AT_EQUAL_EPOCHS = (8, 32, 64, 128, 256, 512, 1024)


def quickstart(data: Path | None = None) -> Study:
    """Return the embedded study: equal steps with momentum, equal epochs with and without."""
    task = get_task("mlp_mnist1d", data=data)
    return Study(
        name="quickstart",
        question="Does SGD have a noise dominated and a curvature dominated regime, and does noise help it generalise?",
        sweeps=(
            _equal_steps(task),
            _equal_epochs(task, momentum=0.0, ceiling=CEILING_SGD),
            _equal_epochs(task, momentum=0.9, ceiling=CEILING_MOMENTUM),
        ),
    )


def _equal_steps(task: Task) -> Sweep:
    """Return the sweep that asks for the training optimum too, which lies below that on the test set."""
    grid = IsothermGrid(temperature=TEMPERATURE, ceiling=CEILING_MOMENTUM, num_below=2, num_above=1)
    return Sweep(
        name="constant_steps",
        task=task,
        batch_sizes=tuple(int(size) for size in powers_of_two(3, 10)),
        effective_learning_rates=grid,
        budget=Budget.steps(1500),
        momentum=0.9,
        l2=5e-4,
        num_seeds=NUM_SEEDS_AT_EQUAL_STEPS,
        tune_on="test",
        extend_for="tuned_and_train",
        smallest_ratio=SMALLEST_RATIO,
        num_evaluations=0,
    )


def _equal_epochs(task: Task, *, momentum: float, ceiling: float) -> Sweep:
    return Sweep(
        name="constant_epochs",
        task=task,
        batch_sizes=BATCH_SIZES_AT_EQUAL_EPOCHS,
        effective_learning_rates=IsothermGrid(temperature=TEMPERATURE, ceiling=ceiling, num_below=1, num_above=1),
        budget=Budget.epochs(20),
        momentum=momentum,
        l2=5e-4,
        num_seeds=NUM_SEEDS_AT_EQUAL_EPOCHS,
        tune_on="test",
        extend_for="tuned",
        smallest_ratio=SMALLEST_RATIO,
        num_evaluations=0,
    )
