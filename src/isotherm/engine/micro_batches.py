"""Micro-batches: the parts of a batch that an update computes one after another, where memory does not hold it whole.

Gradients are accumulated over them and applied once, so an update is the same, up to the order of its sums. That takes
three things besides the mean: random bits depend on an example's position in the batch, not in the micro-batch; buffers
with a value for every stream of a text are read and written part by part; and buffers that follow the batch, as the
running statistics of ghost batch norm do, move once, by the mean of what every micro-batch alone would move them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call

from isotherm.core.batch_split import part_sizes, split_batch, unit_of
from isotherm.engine.data_parallel import Processes
from isotherm.engine.dropout import IndexOf, RandomIndices, index_in_whole_batch
from isotherm.engine.placed_task import PlacedTask, ghost_layers
from isotherm.errors import UserError
from isotherm.tasks.seeding import initial_model

# Dimension of a result that counts examples; None where none does, as for weights.
Dim = int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatches:
    """How the batch of an update is cut, and where examples are found in what a forward pass draws and keeps.

    Args:
        batch_size: examples of an update; of a text, streams.
        size: examples of a micro-batch.
        dropout_dims: of the result of every call of dropout.
        augmentation_dims: of the bits of every draw of the transform.
        buffer_dims: of the buffers that hold something for every example, by name.
        among: the processes that share the micro-batches; by default, this one computes all.
    """

    batch_size: int
    size: int
    dropout_dims: Sequence[Dim] = ()
    augmentation_dims: Sequence[Dim] = ()
    buffer_dims: Mapping[str, int] = field(default_factory=dict)
    among: Processes | None = None

    @classmethod
    def whole(cls, batch_size: int) -> MicroBatches:
        """Return the batch as one."""
        return cls(batch_size=batch_size, size=batch_size)

    @property
    def is_whole(self) -> bool:
        """Tell whether the batch is not cut."""
        return self.size == self.batch_size

    @property
    def parts(self) -> tuple[range, ...]:
        """Positions in the batch of every micro-batch that this process computes."""
        parts = split_batch(self.batch_size, self.batch_size // self.size)
        return parts if self.among is None else self.among.own(parts)

    def indices(self, start: Tensor | int) -> RandomIndices:
        """Return where random bits are found in the batch for the micro-batch that begins at a position."""
        if self.is_whole:
            return RandomIndices()
        return RandomIndices(
            dropout=self._index_of(self.dropout_dims, start),
            augmentation=self._index_of(self.augmentation_dims, start),
        )

    def _index_of(self, dims: Sequence[Dim], start: Tensor | int) -> IndexOf:
        def index_of(call: int, shape: torch.Size, device: torch.device) -> Tensor:
            if call >= len(dims):
                raise UserError(
                    "the model draws random numbers more often in some updates than in others, so its examples cannot "
                    "be computed in several micro-batches; use a batch size that fits into memory"
                )
            dim = dims[call]
            if dim is None:
                return index_in_whole_batch(call, shape, device)
            of_each = shape[dim] // self.size  # rows of an example
            inner = math.prod(shape[dim + 1 :])
            rows = torch.arange(shape[dim], device=device) + start * of_each
            before = torch.arange(math.prod(shape[:dim]), device=device) * (of_each * self.batch_size * inner)
            index = before[:, None, None] + (rows * inner)[:, None] + torch.arange(inner, device=device)
            return index.reshape(shape)

        return index_of


class BufferMoves:
    """Buffers before an update, and where its micro-batches move them.

    Args:
        buffers: changed in place once all micro-batches are done; those that hold something for every example before.
        micro_batches: how the batch is cut.
        num_leading: dimensions in front of a run's own.
    """

    def __init__(self, buffers: Mapping[str, Tensor], micro_batches: MicroBatches, *, num_leading: int = 0) -> None:
        self._micro_batches = micro_batches
        self._dims = {name: dim + num_leading for name, dim in micro_batches.buffer_dims.items()}
        self._whole = dict(buffers)
        # What a forward pass reads: always the same tensors.
        self.read = {
            name: buffer.narrow(self._dims[name], 0, micro_batches.size).clone() if name in self._dims else buffer
            for name, buffer in buffers.items()
        }
        self._moves = {
            name: torch.zeros_like(buffer)
            for name, buffer in buffers.items()
            if name not in self._dims and buffer.is_floating_point()
        }
        self._last: dict[str, Tensor] = {}  # of other types, as of a count of updates

    @torch.no_grad()
    def begin(self) -> None:
        """Forget the moves of the update before."""
        for move in self._moves.values():
            move.zero_()

    @torch.no_grad()
    def load(self, part: range) -> None:
        """Let the buffers that are read be those of a micro-batch."""
        for name in self._dims:
            self.read[name].copy_(self._of(part, name))

    @torch.no_grad()
    def add(self, part: range, after: Mapping[str, Tensor]) -> None:
        """Note the buffers after the forward pass of a micro-batch."""
        for name, value in after.items():
            if name in self._dims:
                self._of(part, name).copy_(value)
            elif name in self._moves:
                before = self._whole[name]
                # Nothing is added where nothing changed: a mask may hold infinities.
                move = torch.where(value == before, 0.0, value - before)
                self._moves[name].add_(move, alpha=len(part) / self._micro_batches.batch_size)
            else:
                self._last.setdefault(name, torch.empty_like(value)).copy_(value)

    @torch.no_grad()
    def finish(self) -> None:
        """Move the buffers, by what the micro-batches of all processes moved them."""
        if (among := self._micro_batches.among) is not None and self._whole:
            among.sum(list(self._moves.values()))
            for name, dim in self._dims.items():
                among.gather(self._whole[name], dim, self._micro_batches.parts)
        for name, move in self._moves.items():
            self._whole[name].add_(move)
        for name, value in self._last.items():
            self._whole[name].copy_(value)

    def _of(self, part: range, name: str) -> Tensor:
        return self._whole[name].narrow(self._dims[name], part.start, len(part))


def accumulate(
    placed: PlacedTask,
    model: nn.Module,
    micro_batches: MicroBatches,
    batch: tuple[Tensor, Tensor],
    keys: Tensor,
    step: Tensor,
) -> Tensor:
    """Add the gradient of a batch to those of a model's parameters, and move its buffers; return the mean loss.

    The definition of an update in micro-batches, of several processes too; arguments as for `outputs`.
    """
    total = torch.zeros((), dtype=placed.dtype, device=placed.device)
    for part, output, target in outputs(placed, model, micro_batches, batch, keys, step):
        loss, weight = placed.loss(output, target), len(part) / micro_batches.batch_size
        (loss * (weight * placed.scale_of_objective())).backward()  # type: ignore[no-untyped-call]
        total = total + loss.detach() * weight
    return total if micro_batches.among is None else micro_batches.among.sum_update(model, total)


def outputs(
    placed: PlacedTask,
    model: nn.Module,
    micro_batches: MicroBatches,
    batch: tuple[Tensor, Tensor],
    keys: Tensor,
    step: Tensor,
) -> Iterator[tuple[range, Tensor, Tensor]]:
    """Yield the positions, outputs and targets of one micro-batch after another.

    Args:
        placed: the task on its device.
        model: in training mode; its buffers are changed.
        micro_batches: how the batch is cut.
        batch: inputs and targets as they are stored.
        keys: of the run.
        step: the update.
    """
    if micro_batches.is_whole:
        yield range(micro_batches.batch_size), *placed.training_output(model, *batch, keys, step)
        return
    moves = BufferMoves(dict(model.named_buffers()), micro_batches)
    for part in micro_batches.parts:
        moves.load(part)
        after = {name: buffer.clone() for name, buffer in moves.read.items()}
        x, y = (values[part.start : part.stop].clone() for values in batch)
        call, indices = _with_buffers(model, after), micro_batches.indices(part.start)
        yield part, *placed.training_output(call, x, y, keys, step, indices=indices)
        moves.add(part, after)
    moves.finish()


def _with_buffers(model: nn.Module, buffers: dict[str, Tensor]) -> Callable[..., Tensor]:
    """Return a model with these buffers, which a call may change in place."""

    def call(*arguments: Tensor) -> Tensor:
        output: Tensor = functional_call(model, buffers, arguments)
        return output

    return call


def sizes_of(placed: PlacedTask, batch_size: int) -> list[int]:
    """Return the sizes that micro-batches of a batch can have, the largest first: of whole ghost batches."""
    unit = example_unit(placed, batch_size)
    return [batch_size] if batch_size % unit else part_sizes(batch_size, unit=unit)  # its own layers will refuse it


def example_unit(placed: PlacedTask, batch_size: int) -> int:
    """Return the number of consecutive examples that have to be computed together."""
    return unit_of(batch_size, ghost_layers(initial_model(placed.build, seed=0)).values())


def largest_size(placed: PlacedTask, batch_size: int, *, at_most: int) -> int:
    """Return the largest size of micro-batches that does not exceed `at_most`, or the smallest there is."""
    sizes = sizes_of(placed, batch_size)
    return next((size for size in sizes if size <= at_most), sizes[-1])
