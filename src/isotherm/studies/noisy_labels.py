"""Does noise help SGD to generalise where the training set is wrong in part?

MNIST-1D, a fifth of whose training labels are drawn at random, with an MLP 40-100-100-10: 600 updates at every batch
size, momentum 0.9, four seeds that choose the learning rate and four that confirm it. The test labels are right.

Run:     isotherm run noisy_labels
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from isotherm.core.budget import Budget
from isotherm.core.rates import IsothermGrid, powers_of_two
from isotherm.sweep.study import Study
from isotherm.sweep.sweep import Sweep
from isotherm.tasks.builtin import built_in, get_task
from isotherm.tasks.task import Task

SHARE = 0.2  # of the training labels is drawn again from all classes, so that one in ten of these is right by chance
_SEED_OF_LABELS = 7
# The design was chosen with seeds 0 to 5 in view, and how cliffs are read was changed with seeds 100 to 107 in view.
_FIRST_SEED = 200


def noisy_labels(data: Path | None = None) -> Study:
    """Return the study: equal steps with momentum, on labels of which some are wrong."""
    sweep = Sweep(
        name="constant_steps",
        task=_with_noisy_labels(get_task("mlp_mnist1d", data=data)),
        batch_sizes=tuple(int(size) for size in powers_of_two(5, 10)),
        effective_learning_rates=IsothermGrid(temperature=2.0**-5, ceiling=8.0, num_below=2, num_above=1),
        budget=Budget.steps(600),
        momentum=0.9,
        l2=5e-4,
        num_seeds=4,
        first_seed=_FIRST_SEED,
        tune_on="test",
        extend_for="tuned_and_train",
        smallest_ratio=2.0**0.5,
        num_evaluations=0,
    )
    return Study(
        name="noisy_labels",
        question="At an equal number of updates, do large batches fit wrong labels better and generalise worse?",
        sweeps=(sweep,),
    )


def _with_noisy_labels(task: Task) -> Task:
    values, labels = task.train
    assert isinstance(values, Tensor)
    assert isinstance(labels, Tensor)
    generator = torch.Generator().manual_seed(_SEED_OF_LABELS)
    drawn = torch.randint(0, 10, labels.shape, generator=generator)
    is_drawn = torch.rand(labels.shape, generator=generator) < SHARE
    note = f"{SHARE:.0%} of the training labels are drawn at random"
    return built_in("mlp_mnist1d", train=(values, torch.where(is_drawn, drawn, labels)), test=task.test, notes=(note,))
