"""A task with its tensors on a device: what both engines train, and how one batch is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isotherm.core.budget import updates_per_pass
from isotherm.core.records import Precision, RunSpec
from isotherm.data.augment import Transform
from isotherm.engine.dropout import WHOLE_BATCH, KeyedBits, KeyedDropout, RandomIndices
from isotherm.engine.graph.kept_traces import KeptTraces
from isotherm.engine.layers.fast_paths import without_fast_paths
from isotherm.engine.layers.many_runs import ExactWeightNorm
from isotherm.errors import UserError
from isotherm.kernels.ops import convolution as convolution_ops
from isotherm.kernels.ops import unfolded_convolution as unfolded_ops
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.tasks.inputs import Inputs, Split
from isotherm.tasks.losses import LOSSES, LossFunction
from isotherm.tasks.metrics import MetricFunction
from isotherm.tasks.seeding import DataOrder, StreamOrder, initial_model
from isotherm.tasks.task import Task

DTYPES: dict[Precision, torch.dtype] = {
    "float32": torch.float32,
    "float64": torch.float64,
    "mixed": torch.float32,  # of the state; matmuls are computed in bfloat16
    "tf32": torch.float32,
}

# Above this every run uses cuDNN on its own stream; our kernels were not timed there.
LARGEST_BATCH_TOGETHER = 8192
# Up to this many FLOP per update a run by itself cannot fill a GPU, and convolutions of all runs as matmuls are faster.
MOST_FLOP_UNFOLDED = 1e10


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class PlacedTask:
    """The data on the device and the functions of the task."""

    build: Callable[[], nn.Module]
    loss: LossFunction
    metric: MetricFunction
    splits: Mapping[str, Split]
    dtype: torch.dtype
    device: torch.device
    transform: Transform | None = None
    unroll: int | None = None
    is_mixed: bool = False
    rounds_to_tf32: bool = False
    metric_is_exponential: bool = False
    metric_is_over_split: bool = False
    reestimates: bool = True
    has_convolutions: bool = False
    convolutions_suit_kernels: bool = False
    most_flop_unfolded: float | None = None
    num_parameters: int = 0
    traces: KeptTraces = field(default_factory=KeptTraces)

    def computes_like(self, task: Task) -> bool:
        """Tell whether an update of a task is computed by the same functions as one of this task."""
        return self.build is task.model and self.loss is task.loss_function and self.transform is task.transform

    def convolves_together(self, batch_size: int) -> bool:
        """Tell whether kernels should compute the convolutions of all runs at once."""
        suit = self.has_convolutions and self.convolutions_suit_kernels and not self.is_lazy
        is_possible = suit and self.is_mixed and convolution_ops.are_usable(self.device)
        return is_possible and batch_size <= LARGEST_BATCH_TOGETHER

    def unfolds_together(self, batch_size: int) -> bool:
        """Tell whether batched matmuls should compute the convolutions of all runs at once."""
        most, is_on_gpu = self.most_flop_unfolded, self.device.type == "cuda"
        is_possible = is_on_gpu and self.has_convolutions and not self.is_mixed
        return is_possible and most is not None and batch_size * most <= MOST_FLOP_UNFOLDED

    @property
    def num_train(self) -> int:
        """Number of training examples; of a sequence, of tokens."""
        return len(self.splits["train"][0])

    @property
    def is_lazy(self) -> bool:
        """Tell whether the training inputs are read from disk batch by batch."""
        return not isinstance(self.splits["train"][0], Tensor)

    def order(self, *, seed: int, batch_size: int) -> DataOrder | StreamOrder:
        """Return the order in which updates read the examples or tokens."""
        if self.unroll is None:
            return DataOrder(seed=seed, num_train=self.num_train, batch_size=batch_size)
        return StreamOrder(num_tokens=self.num_train + 1, batch_size=batch_size, unroll=self.unroll)

    def model(self, *, seed: int, batch_size: int, micro_batch_size: int | None = None) -> nn.Module:
        """Return a seed's initial module on the device; a recurrent one carries its state as a buffer.

        Args:
            seed: of the run.
            batch_size: of the run.
            micro_batch_size: examples that it is called with, of which it carries the state; all by default.
        """
        module = initial_model(self.build, seed=seed)
        if self.unroll is not None:
            order = StreamOrder(num_tokens=self.num_train + 1, batch_size=batch_size, unroll=self.unroll)
            streams = micro_batch_size or batch_size
            module = Carried(module, batch_size=streams, updates_per_pass=order.updates_per_pass)
        return module.to(self.device, self.dtype)

    # -- a batch ------------------------------------------------------------------------------------------------

    def batch(self, index: NDArray[np.int64], *, seed: int, step: int) -> tuple[Tensor, Tensor]:
        """Return training inputs and targets, from memory or from disk, as runs with a seed see them at an update."""
        if self.is_lazy:
            return self.lazy_batch(index, seed=seed, step=step)
        return self.training_batch(torch.from_numpy(index).to(self.device))

    def training_batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return copies of stored training inputs and targets, which must be in memory."""
        inputs, targets = self.splits["train"]
        assert isinstance(inputs, Tensor)
        return inputs[index], targets[index]

    def lazy_batch(self, index: NDArray[np.int64], *, seed: int, step: int) -> tuple[Tensor, Tensor]:
        """Read training inputs from disk; return them with their targets, as runs with a seed see them at an update."""
        inputs, targets = self.splits["train"]
        assert not isinstance(inputs, Tensor)
        return self._moved(inputs.fetch(index, seed=seed, step=step)), targets[torch.from_numpy(index).to(self.device)]

    def evaluation_batch(self, split: str, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets start .. stop - 1 of a split: copies, which a model may write into."""
        inputs, targets = self.splits[split]
        y = targets[start:stop].clone()
        if isinstance(inputs, Tensor):
            return inputs[start:stop].clone(), y
        return self._moved(inputs.fetch(np.arange(start, stop))), y

    def training_targets(self, index: NDArray[np.int64]) -> Tensor:
        """Return the targets of training examples as the loss sees them."""
        y = self.splits["train"][1][torch.from_numpy(index).to(self.device)]
        return y if self.transform is None else self._transformed(y)

    def training_loss(
        self,
        call: Callable[..., Any],
        x: Tensor,
        y: Tensor,
        keys: Tensor,
        step: Tensor,
        *,
        channels_last: bool = False,
        indices: RandomIndices = WHOLE_BATCH,
    ) -> Tensor:
        """Return the mean loss of a batch of one run in training mode.

        Args:
            call: the module, or a function with the same arguments.
            x: inputs as they are stored.
            y: targets as they are stored.
            keys: of the run, `run_keys(seed)`.
            step: the update.
            channels_last: pass images to the module in that layout.
            indices: for random bits, where the examples are a part of the batch.
        """
        output, target = self.training_output(call, x, y, keys, step, channels_last=channels_last, indices=indices)
        return self.loss(output, target)

    def training_output(
        self,
        call: Callable[..., Any],
        x: Tensor,
        y: Tensor,
        keys: Tensor,
        step: Tensor,
        *,
        channels_last: bool = False,
        indices: RandomIndices = WHOLE_BATCH,
    ) -> tuple[Tensor, Tensor]:
        """Return the module's output in training mode, and the targets; arguments as for `training_loss`."""
        if self.transform is not None:
            x = self.transform.train(x, KeyedBits(keys[1], step, indices.augmentation)).to(self.dtype)
            y = self._transformed(y)
        if channels_last and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        with KeyedDropout(keys[0], step, indices.dropout), self._autocast(), self._all_digits():
            output = call(x) if self.unroll is None else call(x, step)
        return output.to(self.dtype), y

    def scale_of_objective(self) -> float:
        """Return the factor of the mean loss in the objective: for sequences the loss is summed over time."""
        return 1.0 if self.unroll is None else float(self.unroll)

    def evaluation_scores(self, call: Callable[..., Any], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean loss and metric of a batch of one run in evaluation mode.

        In place of a metric over the whole split, the outputs that it needs.
        """
        if self.transform is not None:
            x, y = self.transform.evaluate(x).to(self.dtype), self._transformed(y)
        with self._autocast(), self._all_digits(), without_fast_paths():
            output = call(x)
        return self._scores(output.to(self.dtype), y)

    def evaluation_targets(self, split: str) -> Tensor:
        """Return a copy of the targets of a split, as the metric sees them."""
        targets = self.splits[split][1].clone()
        return targets if self.transform is None else self._transformed(targets)

    def stream_scores(self, call: Callable[..., Any], x: Tensor, y: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        """Return mean loss, metric and state after a window of one run's sequence in evaluation mode."""
        with self._autocast(), self._all_digits(), without_fast_paths():
            output, state = call(x, state)
        return *self._scores(output.to(self.dtype), y), state

    def _scores(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return loss and metric; what a user's loss writes into output or targets, the metric does not see."""
        given = (output, y) if self.loss in LOSSES.values() else (output.clone(), y.clone())
        return self.loss(*given), output if self.metric_is_over_split else self.metric(output, y)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.is_mixed, cache_enabled=False)

    def _all_digits(self) -> AbstractContextManager[object]:
        is_rounded = self.dtype == torch.float64 and self.device.type == "cuda"
        return ExactWeightNorm() if is_rounded else nullcontext()

    def _transformed(self, y: Tensor) -> Tensor:
        assert self.transform is not None
        y = self.transform.targets(y)
        return y.to(self.dtype) if y.is_floating_point() else y

    def _moved(self, x: Tensor) -> Tensor:
        """Return what was read from disk on the device, never in the memory of whoever read it."""
        moved = x.to(self.device, self.dtype if x.is_floating_point() else x.dtype, non_blocking=True)
        return moved.clone() if moved is x else moved


class Carried(nn.Module):
    """A recurrent module whose state is a buffer, carried from update to update and reset with every pass.

    Args:
        module: has `initial_state(batch_size)` and `forward(x, state)`, which returns output and state.
        batch_size: streams.
        updates_per_pass: updates after which the sequence begins again.
    """

    state: Tensor
    first_state: Tensor

    def __init__(self, module: nn.Module, *, batch_size: int, updates_per_pass: int) -> None:
        super().__init__()
        self.module = module
        self.updates_per_pass = updates_per_pass
        self.register_buffer("state", module.initial_state(batch_size))  # type: ignore[operator]
        self.register_buffer("first_state", self.state.clone())

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        """Return the output at an update and keep the state."""
        is_first = step % self.updates_per_pass == 0
        output, state = self.module(x, torch.where(is_first, self.first_state, self.state))
        self.state.copy_(state.detach())
        return output  # type: ignore[no-any-return]


def place_task(
    task: Task, *, precision: Precision, device: torch.device | str = "cpu", beside: Iterable[PlacedTask] = ()
) -> PlacedTask:
    """Return the task's data on the device, floating-point values in the given precision.

    Args:
        task: what is trained.
        precision: of its arithmetic.
        device: "cpu" or "cuda".
        beside: placed before; one of the same model, loss and transform on other data shares its traces.
    """
    target, dtype = checked_device(device), DTYPES[precision]
    check_precision(precision, target)

    def moved(values: Inputs) -> Inputs:
        if not isinstance(values, Tensor):
            return values
        return values.to(target, dtype if values.is_floating_point() else values.dtype)

    module = initial_model(task.model, seed=0)
    return PlacedTask(
        build=task.model,
        loss=task.loss_function,
        metric=task.metric_definition.function,
        splits={name: (moved(x), moved(y)) for name, (x, y) in task.splits.items()},  # type: ignore[misc]
        dtype=dtype,
        device=target,
        transform=task.transform,
        unroll=task.unroll,
        is_mixed=precision == "mixed",
        rounds_to_tf32=precision == "tf32",
        metric_is_exponential=task.metric_definition.exponential,
        metric_is_over_split=task.metric_definition.over == "split",
        reestimates=task.norm_statistics == "reestimated",
        has_convolutions=any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules()),
        convolutions_suit_kernels=convolution_ops.suits(module, target),
        most_flop_unfolded=_most_flop_unfolded(module, task),
        num_parameters=sum(p.numel() for p in module.parameters()),
        traces=next((other.traces for other in beside if other.computes_like(task)), KeptTraces()),
    )


def _most_flop_unfolded(module: nn.Module, task: Task) -> float | None:
    """Return an upper bound of the FLOP of an update per example; None if matmuls cannot compute the convolutions."""
    inputs, _ = task.train
    if not isinstance(inputs, Tensor) or inputs.ndim != 4 or not unfolded_ops.suits(module):
        return None
    return unfolded_ops.most_flop(module, inputs.shape[-2] * inputs.shape[-1])


@contextmanager
def arithmetic(placed: PlacedTask, *, is_exact: bool = False, tries_convolutions: bool = False) -> Iterator[None]:
    """Within this context float32 means float32: by default cuDNN rounds the inputs of convolutions to TF32.

    Args:
        placed: the task on its device; nothing changes on a CPU. In TF32 convolutions and matmuls round their inputs.
        is_exact: do not let them.
        tries_convolutions: let cuDNN time its algorithms and choose the fastest.
    """
    if placed.device.type != "cuda":
        yield
        return
    rounds = placed.rounds_to_tf32 and not is_exact
    matmuls = matmuls_in_tf32(rounds) if placed.rounds_to_tf32 else nullcontext()
    convolutions = torch.backends.cudnn.flags(enabled=True, benchmark=tries_convolutions, allow_tf32=rounds)
    with matmuls, convolutions:
        yield


@contextmanager
def matmuls_in_tf32(rounds: bool) -> Iterator[None]:
    """Within this context matmuls of a GPU round their inputs, or do not."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = rounds
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def checked_device(device: torch.device | str) -> torch.device:
    """Return the device, or say why it cannot be used."""
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise UserError(f"device {device!r} is not known to PyTorch; use 'cpu' or 'cuda'") from error
    if found.type not in ("cpu", "cuda"):
        raise UserError(f"device {device!r} is not supported; use 'cpu' or 'cuda'")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise UserError(
            f"device {device!r} was asked for, but PyTorch sees no GPU here; use --device cpu, in Python device='cpu'"
        )
    return found


def check_precision(precision: Precision, device: torch.device | str) -> None:
    """Refuse a precision that a device does not have."""
    if precision == "tf32" and str(device).partition(":")[0] != "cuda":
        raise UserError(
            "precision='tf32' is a way in which GPUs multiply, and this is a CPU; use precision='float32', or --device "
            "cuda, in Python device='cuda'"
        )


def ghost_layers(module: nn.Module) -> dict[str, int]:
    """Return the ghost batch norm layers by name, with their ghost batch sizes."""
    return {name: part.ghost_size for name, part in module.named_modules() if isinstance(part, GhostBatchNorm2d)}


def running_window(spec: RunSpec, placed: PlacedTask) -> int:
    """Return the number of updates in the last epoch, at most all of them."""
    if placed.unroll is None:
        return min(spec.num_steps, -(-placed.num_train // spec.batch_size))
    sizes = {"num_tokens": placed.num_train + 1, "batch_size": spec.batch_size, "unroll": placed.unroll}
    return min(spec.num_steps, updates_per_pass(**sizes))


def evaluation_steps(spec: RunSpec) -> tuple[int, ...]:
    """Return the updates after which the test set is evaluated: evenly spaced, the last one at the end."""
    num = min(spec.num_evaluations, spec.num_steps)
    return tuple(spec.num_steps * (j + 1) // num for j in range(num))
