"""A task on a device in one precision: what both engines train on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isotherm.errors import UserError
from isotherm.records import L2Scope, Precision, RunSpec
from isotherm.tasks import LossFunction, Split, Task

DTYPES: dict[Precision, torch.dtype] = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Problem:
    """Tensors on the device, functions of the task."""

    build: Callable[[], nn.Module]
    loss: LossFunction
    metric: LossFunction
    splits: dict[str, Split]
    dtype: torch.dtype
    device: torch.device

    @property
    def num_train(self) -> int:
        """How many training examples there are."""
        return len(self.splits["train"][0])


def prepare(task: Task, *, precision: Precision, device: torch.device | str = "cpu") -> Problem:
    """Return the task's data on the device, floating-point values in the given precision."""
    place, dtype = checked_device(device), DTYPES[precision]

    def moved(tensor: Tensor) -> Tensor:
        return tensor.to(place, dtype if tensor.is_floating_point() else tensor.dtype)

    return Problem(
        build=task.model,
        loss=task.loss_function,
        metric=task.metric_definition.function,
        splits={name: (moved(x), moved(y)) for name, (x, y) in task.splits.items()},
        dtype=dtype,
        device=place,
    )


def checked_device(device: torch.device | str) -> torch.device:
    """Return the device, or say why it cannot be used."""
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise UserError(f"device {device!r} is not known to PyTorch; use 'cpu' or 'cuda'") from error
    if place.type not in ("cpu", "cuda"):
        raise UserError(f"device {device!r} is not one that Isotherm trains on; use 'cpu' or 'cuda'")
    if place.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {device!r} was asked for, but PyTorch sees no GPU here; use --device cpu")
    return place


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that memory ran out, on the CPU or on a GPU."""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and ("allocate memory" in str(error) or "out of memory" in str(error))


def is_penalised(parameter: Tensor, *, scope: L2Scope) -> bool:
    """Tell whether L2 covers a parameter: weights are what has at least two dimensions, not biases and scales."""
    return scope == "all" or parameter.ndim >= 2


def running_window(spec: RunSpec, *, num_train: int) -> int:
    """Return how many updates make up the last epoch's worth, at most all of them."""
    return min(spec.num_steps, -(-num_train // spec.batch_size))


def evaluation_steps(spec: RunSpec) -> tuple[int, ...]:
    """Return after which updates the test set is looked at: evenly spaced, the last one at the end."""
    num = min(spec.num_evaluations, spec.num_steps)
    return tuple(spec.num_steps * (j + 1) // num for j in range(num))
