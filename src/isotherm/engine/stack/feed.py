"""What an update reads besides the state: its batch, its learning rates and the random keys of its runs.

Shape suffixes: M runs, S seeds, K updates of a window, B batch.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from isotherm.core.multipliers import multipliers
from isotherm.engine.dropout import run_keys
from isotherm.engine.stack.lazy_reader import LazyReader
from isotherm.engine.stack.plan import StackPlan
from isotherm.engine.stack.windows import Windows

Batch = tuple[Tensor, Tensor]


class Feed:
    """Batches of all runs of a stack; equal seeds see the same examples in the same order.

    Where an update is recorded, the tensors it reads must stay where they are in memory, so a window's indices and
    learning rates are copied into them.

    Args:
        plan: what is trained.
        stream: on which updates are recorded; None on a CPU.
    """

    def __init__(self, plan: StackPlan, *, stream: torch.cuda.Stream | None = None) -> None:
        placed = plan.placed
        self._plan, self._placed, self._stream = plan, placed, stream
        self._orders = [placed.order(seed=seed, batch_size=plan.batch_size) for seed in plan.seeds]
        self._windows = Windows(
            self._orders,
            size=plan.updates_per_window,
            num_steps=plan.num_steps,
            stops=plan.evaluation_steps,
            device=placed.device,
        )
        self._reader = LazyReader(placed, self._orders, plan.seeds) if placed.is_lazy else None
        self._specs = list(plan.specs)  # of the runs that are left
        self.seed_M = plan.seed_positions()
        self.key_M = torch.stack([run_keys(seed) for seed in plan.seeds]).to(placed.device)[self.seed_M]
        self._allocate()

    def _allocate(self) -> None:
        device, num = self._placed.device, len(self._specs)
        shape = self._orders[0].block(0, 1).shape[1:]
        self._batches_KMB = torch.zeros(self.num_rows, num, *shape, dtype=torch.int64, device=device)
        self._rates_KM1 = torch.zeros(self.num_rows, num, 1, dtype=self._placed.dtype, device=device)
        self._read: Batch | None = None  # inputs (S, B, ...) and targets (S, B) from disk
        # Where the program of a CPU finds its batch, or a micro-batch: inputs and targets (M, B, ...).
        self.bound_batch: Batch | None = None
        if self._plan.binds_batch and not self._placed.is_lazy:
            inputs, targets = self._placed.splits["train"]
            of_call = self._plan.micro_batches.size, *shape[1:]
            x_MB, y_MB = (
                torch.empty(num, *of_call, *values.shape[1:], dtype=values.dtype) for values in (inputs, targets)
            )
            self.bound_batch = x_MB, y_MB

    @property
    def num_rows(self) -> int:
        """Rows of a window's tensors; before an update is recorded it is tried twice."""
        return max(self._plan.updates_per_window, 3)

    @property
    def reads_ahead(self) -> bool:
        """Tell whether every update has to wait for its batch from disk."""
        return self._reader is not None

    def select(self, keep: Tensor) -> None:
        """Keep only the runs at these positions."""
        self._specs = [self._specs[position] for position in keep.tolist()]
        self.seed_M, self.key_M = self.seed_M[keep], self.key_M[keep]
        self._allocate()

    # -- a window of updates ----------------------------------------------------------------------------------------

    def window_size(self, first: int) -> int:
        """Return the number of updates in the window that begins with this update."""
        return self._windows.size_from(first)

    def fill(self, first: int, size: int) -> None:
        """Put the learning rates and the indices of a window where its updates read them."""
        rows = slice(0, size)
        self._rates_KM1[rows].copy_(self._learning_rates(first, size))
        if self._reader is None:
            torch.index_select(self._windows.examples(first), 1, self.seed_M, out=self._batches_KMB[rows])
        elif self._read is None:
            self._take(self._reader.batch(first, last=first))  # nothing is read ahead yet

    def draw_ahead(self, first: int) -> None:
        """Draw the examples of the window that begins there while another one is trained."""
        if self._reader is None:
            self._windows.draw_ahead(first)

    def read(self, step: int) -> None:
        """Wait for the batch of an update, where inputs come from disk."""
        if self._reader is not None:
            self._take(self._reader.batch(step, last=self._plan.num_steps - 1))

    def _take(self, batch: Batch) -> None:
        """Put a batch from disk where the update reads it."""
        if self._read is None:
            self._read = batch
            return
        if self._stream is not None:  # what was read ahead came to the GPU on the default stream
            self._stream.wait_stream(torch.cuda.default_stream())
        for old, new in zip(self._read, batch, strict=True):
            old.copy_(new)
            if self._stream is not None:
                new.record_stream(self._stream)

    def row(self, offset: int) -> tuple[Tensor, Tensor]:
        """Return the indices (M, B) and learning rates (M, 1) of one update of the window."""
        return self._batches_KMB[offset], self._rates_KM1[offset]

    def row_at(self, offset: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same for an offset on the device, shape (1,), which changes while a recording is replayed."""
        index_MB, rate_M1 = (rows.index_select(0, offset)[0] for rows in (self._batches_KMB, self._rates_KM1))
        return index_MB, rate_M1

    def _learning_rates(self, first: int, size: int) -> Tensor:
        """Return every run's learning rate in a window, shape (K, M, 1)."""
        num_steps = self._plan.num_steps
        tables = {
            (gamma, schedule): multipliers(num_steps, gamma=gamma, schedule=schedule, start=first, stop=first + size)
            for gamma, schedule in {(spec.gamma, spec.schedule) for spec in self._specs}
        }
        columns = [spec.learning_rate * tables[spec.gamma, spec.schedule] for spec in self._specs]
        return torch.from_numpy(np.stack(columns, axis=1)).to(self._placed.dtype).unsqueeze(2)

    # -- batches ----------------------------------------------------------------------------------------------------

    def batch(self, index_MB: Tensor, part: range | None = None) -> tuple[Batch, Tensor | None]:
        """Return a batch, or a micro-batch, and None; or all data and its index in them."""
        if part is not None:
            index_MB = index_MB[:, part.start : part.stop]
        if self._read is not None:
            inputs, targets = self._read if part is None else _cut(self._read, part)
            index_MB = self.seed_M
        else:
            inputs, targets = self._placed.splits["train"]  # type: ignore[assignment]
            if self.bound_batch is None:
                return (inputs, targets), index_MB
        if self.bound_batch is None:
            return (inputs[index_MB], targets[index_MB]), None
        for values, own in zip((inputs, targets), self.bound_batch, strict=True):
            index = index_MB.reshape(-1)
            torch.index_select(values, 0, index, out=own.view(len(index), *values.shape[1:]))
        return self.bound_batch, None

    def bind(self, x_MB: Tensor, y_MB: Tensor) -> None:
        """Make the tensors that the program of a CPU reads, if they are not there yet."""
        if self._plan.binds_batch and self.bound_batch is None:
            self.bound_batch = x_MB.clone(), y_MB.clone()

    def first_batch(self) -> Batch:
        """Return inputs and targets of the first update, or its first micro-batch, of one run with the first seed."""
        index = self._orders[0].block(0, 1)[0][: self._plan.micro_batches.size]
        return self._placed.batch(index, seed=self._plan.seeds[0], step=0)

    def batch_of(self, step: int) -> Batch:
        """Return inputs and targets (M, B, ...) of an update, or its first micro-batch, apart from any window."""
        size = self._plan.micro_batches.size
        if self._reader is not None:
            x_SB, y_SB = _cut(self._reader.batch(step, last=step), range(size))
            return x_SB[self.seed_M], y_SB[self.seed_M]
        index_SB = np.stack([order.block(step, 1)[0][:size] for order in self._orders])
        return self._placed.training_batch(torch.from_numpy(index_SB).to(self._placed.device)[self.seed_M])

    def examples(self, index: Tensor, *, step: int) -> Batch:
        """Return some training examples: (B, ...) for all runs, or (M, B, ...) where they come from disk."""
        if not self._placed.is_lazy:
            return self._placed.training_batch(index)
        read = [self._placed.lazy_batch(index.cpu().numpy(), seed=seed, step=step) for seed in self._plan.seeds]
        x_MB, y_MB = (torch.stack(values)[self.seed_M] for values in zip(*read, strict=True))
        return x_MB, y_MB


def _cut(batch: Batch, part: range) -> Batch:
    """Return some of the examples of inputs and targets (S, B, ...)."""
    inputs, targets = batch
    return inputs[:, part.start : part.stop], targets[:, part.start : part.stop]
