"""Results of earlier checks of how a task can be trained."""

from __future__ import annotations

import logging

import torch

from isotherm.engine.micro_batch_check import micro_batches_of
from isotherm.engine.micro_batches import MicroBatches
from isotherm.engine.placed_task import PlacedTask
from isotherm.engine.stack.plan import updates_worth_compiling
from isotherm.kernels.saved_checks import SavedChecks

logger = logging.getLogger("isotherm")


class FleetChecks:
    """Remembers the outcome of checks, so that later fleets of the same placed task need not repeat them.

    Args:
        saved: checks that passed in earlier processes; None for none.
        name: of the task among them, different for every model, data set and precision.
        is_built_in: the model is one of ours, so gradients that are right at one batch size are so at all of them; a
            user's model might tell batch sizes apart, and is checked at each.
        flop_per_example: of a forward and a backward pass; of a text, per window. None where it is not known.

    >>> checks = FleetChecks()
    >>> checks.add_passed(64, as_one=True)
    >>> checks.has_passed(64, as_one=True), checks.has_passed(64, as_one=False)
    (True, False)
    """

    def __init__(
        self,
        *,
        saved: SavedChecks | None = None,
        name: str = "",
        is_built_in: bool = False,
        flop_per_example: float | None = None,
    ) -> None:
        self._saved, self._name, self._is_built_in = saved or SavedChecks(folder=None), name, is_built_in
        self._flop_per_example = flop_per_example
        self._with_gradients: set[tuple[str | int, ...]] = set()
        self._passed: set[tuple[int, int | None, bool]] = set()
        self._without_kernels: set[int] = set()
        self._one_by_one: set[int] = set()
        self._said: set[str] = set()
        self._micro_batches: dict[tuple[int, int], MicroBatches] = {}

    @classmethod
    def on(
        cls, device: torch.device, *, name: str, is_built_in: bool, flop_per_example: float | None = None
    ) -> FleetChecks:
        """Return the checks of a task on a device; on a GPU they are remembered on disk."""
        saved = SavedChecks.on(device)
        return cls(saved=saved, name=name, is_built_in=is_built_in, flop_per_example=flop_per_example)

    def updates_worth_compiling(self, placed: PlacedTask, batch_size: int, *, num_runs: int) -> int | None:
        """Return how many updates of some runs are worth compiling a program for; None where that is not known."""
        if self._flop_per_example is None:
            return None
        flop = self._flop_per_example * batch_size * num_runs
        return updates_worth_compiling(flop=flop, num_parameters=placed.num_parameters * num_runs)

    def add_passed(self, batch_size: int, *, as_one: bool, micro_batch_size: int | None = None) -> None:
        """Note that the module was trained correctly at a batch size, several runs as one or a run by itself."""
        self._passed.add((batch_size, micro_batch_size, as_one))

    def has_passed(self, batch_size: int, *, as_one: bool, micro_batch_size: int | None = None) -> bool:
        """Tell whether it was."""
        return (batch_size, micro_batch_size, as_one) in self._passed

    def add_right_gradients(
        self, batch_size: int, *, as_one: bool, micro_batch_size: int | None = None, for_later: bool = True
    ) -> None:
        """Note that the gradients of several runs as one, or of a run by itself, are those of plain autograd.

        Args:
            batch_size: of the runs.
            as_one: several runs were one program.
            micro_batch_size: examples computed at once, where these were not all.
            for_later: save it for later processes too; not where the check has something to say to their users.
        """
        check = self._gradient_check(batch_size, micro_batch_size, as_one=as_one)
        self._with_gradients.add(check)
        if for_later:
            self._saved.add(*check)

    def has_right_gradients(self, batch_size: int, *, as_one: bool, micro_batch_size: int | None = None) -> bool:
        """Tell whether they are known to be, from this process or an earlier one."""
        check = self._gradient_check(batch_size, micro_batch_size, as_one=as_one)
        return check in self._with_gradients or self._saved.has_passed(*check)

    def _gradient_check(self, batch_size: int, micro_batch_size: int | None, *, as_one: bool) -> tuple[str | int, ...]:
        sizes: tuple[str | int, ...] = () if self._is_built_in else (batch_size,)
        if micro_batch_size is not None:  # a program of its own
            sizes = (*sizes, "in micro-batches") if self._is_built_in else (*sizes, micro_batch_size)
        return "gradients", self._name, "as one" if as_one else "alone", *sizes

    def micro_batches(self, placed: PlacedTask, batch_size: int, *, size: int | None) -> MicroBatches:
        """Return how batches are cut into micro-batches of a size, checked once; by default, they are not.

        Raises:
            NotSeparable: the model does not allow it.
        """
        size = batch_size if size is None else size
        if (batch_size, size) not in self._micro_batches:
            self._micro_batches[batch_size, size] = micro_batches_of(placed, batch_size=batch_size, size=size)
        return self._micro_batches[batch_size, size]

    def add_without_kernels(self, batch_size: int) -> None:
        """Note that the convolutions of many runs cannot be computed at once at a batch size."""
        self._without_kernels.add(batch_size)

    def say_once(self, kind: str, sentence: str) -> None:
        """Log a sentence, unless one of its kind was logged before."""
        if not self.has_said(kind):
            self._said.add(kind)
            logger.warning("%s", sentence, extra={"kind": kind})  # several workers may say it

    def has_said(self, kind: str) -> bool:
        """Tell whether a sentence of a kind was logged."""
        return kind in self._said

    def add_one_by_one(self, batch_size: int) -> None:
        """Note that runs were trained one at a time at a batch size, as no fleet can be."""
        self._one_by_one.add(batch_size)

    def are_one_by_one(self, batch_size: int) -> bool:
        """Tell whether they were."""
        return batch_size in self._one_by_one

    def convolves_together(self, placed: PlacedTask, batch_size: int) -> bool:
        """Tell whether kernels should compute the convolutions of all runs at once."""
        return batch_size not in self._without_kernels and placed.convolves_together(batch_size)

    def unfolds_together(self, placed: PlacedTask, batch_size: int) -> bool:
        """Tell whether batched matmuls should compute the convolutions of all runs at once."""
        return batch_size not in self._without_kernels and placed.unfolds_together(batch_size)

    def wants_own_streams(self, placed: PlacedTask, batch_size: int) -> bool:
        """Tell whether each run should be a program of its own: on a GPU, where convolutions are faster that way."""
        has_convolutions = placed.device.type == "cuda" and placed.has_convolutions
        if not has_convolutions or self.convolves_together(placed, batch_size):
            return False
        return not self.unfolds_together(placed, batch_size)
