"""What a stack trains and how, settled before its first update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from isotherm.core.optimizers import Optimizer, heavy_ball_momentum
from isotherm.core.records import RunSpec
from isotherm.engine.micro_batches import MicroBatches
from isotherm.engine.placed_task import PlacedTask, evaluation_steps, running_window
from isotherm.kernels import availability

# Updates between two checks of the losses; a diverged run wastes at most this many.
UPDATES_PER_WINDOW = 64
# On a GPU a program that will run this often is compiled first, which takes a minute; for work that is not known.
UPDATES_WORTH_COMPILING = 5_000
# Training that is worth that minute. Seconds of an update are estimated from the speeds that compiled programs reach on
# an H200 (docs/performance.md): of matmuls and convolutions, or of the memory that the update of all parameters reads
# and writes, whichever is slower.
SECONDS_WORTH_COMPILING = 55.0
_FLOP_PER_SECOND = 3.3e14
_BYTES_PER_SECOND = 3e12
_BYTES_PER_PARAMETER = 24  # value, velocity and gradient, once read and once written


def updates_worth_compiling(*, flop: float, num_parameters: int) -> int:
    """Return how many updates a program has to run for before it is worth compiling.

    Args:
        flop: of an update of all runs.
        num_parameters: of all runs.

    >>> updates_worth_compiling(flop=24 * 64 * 2.36e9, num_parameters=24 * 2_750_000)  # 24 runs of WRN-16-4, B = 64
    5007
    """
    seconds = max(flop / _FLOP_PER_SECOND, num_parameters * _BYTES_PER_PARAMETER / _BYTES_PER_SECOND)
    return math.ceil(SECONDS_WORTH_COMPILING / seconds)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class StackPlan:
    """The runs of a stack and the kind of program that trains them.

    Args:
        placed: the task on its device.
        specs: the runs; they share batch size, number of updates, precision, evaluations, whether they clip, and the
            kind of optimiser.
        micro_batches: the parts of a batch that an update computes one after another; often one.
        first_index: index of the first run in the fleet.
        updates_per_window: updates between two checks of the losses; results do not depend on it.
        convolves: kernels compute the convolutions of all runs at once; they read channels-last filters.
        unfolds: batched matmuls do, and read the same.
        is_single: one run, trained without `vmap`.
        channels_last: images and filters of a single run are channels-last.
        reads_bfloat16: matmuls read bfloat16 copies of the matrices, which every update renews.
        binds_batch: the program reads its batch from tensors of its own; else it is handed every batch.
        returns_factors: weight gradients may stay factored until the update.
        compiles_from: updates that are worth compiling for; None for never.
    """

    placed: PlacedTask
    specs: tuple[RunSpec, ...]
    micro_batches: MicroBatches
    first_index: int
    updates_per_window: int
    convolves: bool
    unfolds: bool
    is_single: bool
    channels_last: bool
    reads_bfloat16: bool
    binds_batch: bool
    returns_factors: bool
    compiles_from: int | None

    @classmethod
    def of(
        cls,
        placed: PlacedTask,
        specs: Sequence[RunSpec],
        *,
        convolves: bool,
        unfolds: bool = False,
        micro_batches: MicroBatches | None = None,
        updates_per_window: int = UPDATES_PER_WINDOW,
        first_index: int = 0,
        compiles_from: int | None = None,
    ) -> StackPlan:
        """Return the plan that suits the task's device and precision."""
        is_on_gpu = placed.device.type == "cuda"
        is_single = len(specs) == 1 and not convolves
        micro_batches = micro_batches or MicroBatches.whole(specs[0].batch_size)
        return cls(
            placed=placed,
            specs=tuple(specs),
            micro_batches=micro_batches,
            first_index=first_index,
            updates_per_window=updates_per_window,
            convolves=convolves,
            unfolds=unfolds and not is_single,
            is_single=is_single,
            channels_last=is_single and is_on_gpu,
            reads_bfloat16=not is_single and placed.is_mixed and is_on_gpu,
            binds_batch=not is_on_gpu,
            returns_factors=availability.are_available(placed.device)
            and micro_batches.is_whole
            and specs[0].clip_norm is None
            and heavy_ball_momentum(specs[0].method) is not None,
            compiles_from=(compiles_from or UPDATES_WORTH_COMPILING) if is_on_gpu else None,
        )

    @property
    def batch_size(self) -> int:
        """Examples of an update."""
        return self.specs[0].batch_size

    @property
    def num_steps(self) -> int:
        """Updates of every run."""
        return self.specs[0].num_steps

    @property
    def method(self) -> Optimizer:
        """The optimiser of the first run; that of the others may differ in hyperparameters."""
        return self.specs[0].method

    @property
    def clips(self) -> bool:
        """Tell whether gradients are clipped."""
        return self.specs[0].clip_norm is not None

    @property
    def evaluation_steps(self) -> tuple[int, ...]:
        """After which updates the test set is evaluated."""
        return evaluation_steps(self.specs[0])

    @property
    def running_window(self) -> int:
        """Updates of the last epoch, over which the running training loss is averaged."""
        return running_window(self.specs[0], self.placed)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, each once, in rising order."""
        return tuple(sorted({spec.seed for spec in self.specs}))

    def seed_positions(self) -> torch.Tensor:
        """Return the position of every run's seed among `seeds`, shape (M,)."""
        seeds = self.seeds
        return torch.tensor([seeds.index(spec.seed) for spec in self.specs], device=self.placed.device)
