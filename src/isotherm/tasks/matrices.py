"""Which parameters of a network Muon trains: matrices, but for embeddings."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from isotherm.core.optimizers import Muon, Optimizer
from isotherm.errors import UserError
from isotherm.tasks.seeding import initial_model
from isotherm.tasks.task import Task


def muon_matrices(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the trainable parameters with two dimensions that are no embedding's.

    >>> muon_matrices(nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2)))
    ('1.weight',)
    """
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    named = model.named_parameters()
    return tuple(name for name, p in named if p.requires_grad and p.ndim == 2 and id(p) not in tables)


def check_matrices(task: Task, optimizers: Collection[Optimizer]) -> None:
    """Refuse Muon for a network without matrices."""
    if not any(isinstance(optimizer, Muon) for optimizer in optimizers):
        return
    if not muon_matrices(initial_model(task.model, seed=0)):
        raise UserError(
            f"Muon trains matrices, and the model of task {task.name!r} has none besides embeddings: no parameter of "
            "two dimensions; use AdamW, or SGD"
        )
