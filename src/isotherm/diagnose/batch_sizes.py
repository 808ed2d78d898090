"""The batch sizes of the short runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from isotherm.core.budget import Budget, BudgetUnit
from isotherm.errors import UserError
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.tasks.model_check import check_model
from isotherm.tasks.seeding import initial_model
from isotherm.tasks.task import Task

# The fewest updates of an intended training with which short runs of half its length can be made.
FEWEST_UPDATES = 40


def three_batch_sizes(
    task: Task, wanted: Sequence[int] | None, *, centre: int | None, budget: Budget
) -> tuple[int, ...]:
    """Return the batch sizes of the short grids, by default three a factor of four apart.

    Each is at most an eighth of the training set, and leaves the intended training enough updates.

    Raises:
        UserError: the model supports none of them, or the training set is too small for two.
    """
    most = max(1, min(task.num_train // (8 * (task.unroll or 1)), _most_by_steps(task, budget)))
    if wanted is not None:
        bad = [size for size in wanted if isinstance(size, bool) or not isinstance(size, int) or size < 1]
        if bad:
            raise UserError(f"batch_sizes={list(wanted)}: use whole numbers of at least 1, not {bad[0]!r}")
        sizes = tuple(sorted(set(wanted)))
        check_model(task, sizes)
        if len(sizes) < 2:
            raise UserError(f"batch_sizes={list(wanted)}: give two or more; the isotherm is a line through them")
        if sizes[-1] > most:
            raise UserError(
                f"batch size {sizes[-1]} is more than an eighth of the training set, or leaves fewer than "
                f"{FEWEST_UPDATES} updates in {budget}; use at most {most}"
            )
        return sizes
    check_model(task)
    # A quarter of the batch size in use, but a power of two small enough for two larger ones to fit.
    room = 1 << max(0, (most // 16).bit_length() - 1)
    first = min(8 if centre is None else max(2, centre // 4), room)
    ghost = _ghost_size(task)
    unit = ghost if 4 * ghost <= most else 1  # a batch smaller than a ghost batch is normalised more noisily
    first = max(first // unit, 1) * unit
    fitting = [size for size in (first * 2**k for k in range(12)) if size <= most and _is_taken(task, size)]
    chosen = fitting[:1]
    for size in fitting:
        if size >= 4 * chosen[-1] and len(chosen) < 3:
            chosen.append(size)
    if len(chosen) < 2:
        raise UserError(
            f"task {task.name!r}: {task.num_train} training examples are too few for two batch sizes a factor of four "
            f"apart, each at most an eighth of them and with at least {FEWEST_UPDATES} updates in {budget}; give more "
            "examples, a longer training, or batch_sizes"
        )
    return tuple(chosen)


def _most_by_steps(task: Task, budget: Budget) -> int:
    """Return the largest batch size that leaves the intended training enough updates."""
    if budget.unit is BudgetUnit.STEPS:
        return task.num_train if budget.amount >= FEWEST_UPDATES else 0
    return int(budget.amount * task.num_train / (task.unroll or 1) / FEWEST_UPDATES)


def intended_steps(task: Task, budget: Budget, batch_size: int) -> int:
    """Return the updates of the intended training; at least one."""
    try:
        return budget.num_steps(num_train=task.num_train, batch_size=batch_size, unroll=task.unroll)
    except UserError:  # less than one update
        return 1


def large_batch_size(task: Task, sizes: Sequence[int], budget: Budget) -> int:
    """Return the batch size of the stability search: twice the largest if it fits, as noise limits it less.

    A short training allows less: the search should not cost many trainings of the intended length.
    """
    double = 2 * sizes[-1]
    most = min(task.num_train // (8 * (task.unroll or 1)), _most_by_steps(task, budget) // 2)
    fitting = [size for size in (*sizes, double) if size <= most and (size < double or _is_taken(task, size))]
    return fitting[-1] if fitting else sizes[0]


def _ghost_size(task: Task) -> int:
    """Return the number that batch sizes must be a multiple of: the ghost size with ghost batch norm, else 1."""
    modules = initial_model(task.model, seed=0).modules()
    return math.lcm(*(part.ghost_size for part in modules if isinstance(part, GhostBatchNorm2d)))


def _is_taken(task: Task, size: int) -> bool:
    try:
        check_model(task, [size])
    except UserError:
        return False
    return True
