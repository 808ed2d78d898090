"""How many examples of a batch are computed at once: as many as were asked for, or as memory holds."""

from __future__ import annotations

from isotherm.core.optimizers import num_moments
from isotherm.core.records import RunSpec
from isotherm.engine.fleet_checks import FleetChecks
from isotherm.engine.memory import bytes_per_run, memory_of_one_run
from isotherm.engine.micro_batch_check import NotSeparable
from isotherm.engine.micro_batches import largest_size, sizes_of
from isotherm.engine.placed_task import PlacedTask


class MicroBatchSizes:
    """The sizes of micro-batches, one for every task and batch size, so that equal runs are trained in equal ways.

    Args:
        asked: most examples at once; None for an automatic choice.
        shared_by: processes that share the memory.
    """

    def __init__(self, asked: int | None, *, shared_by: int = 1) -> None:
        self._asked, self._shared_by = asked, shared_by
        self._found: dict[tuple[object, ...], int] = {}

    def size(self, spec: RunSpec, placed: PlacedTask) -> int:
        """Return how many examples of an update runs like this one compute at once."""
        shape = _shape(spec)
        if shape not in self._found:
            self._found[shape] = self._chosen(placed, spec.batch_size, num_moments(spec.method))
        return self._found[shape]

    def _chosen(self, placed: PlacedTask, batch_size: int, kept: int) -> int:
        if self._asked is not None:
            return largest_size(placed, batch_size, at_most=self._asked)
        room = memory_of_one_run(placed.device) // self._shared_by

        def fits(size: int) -> bool:
            return bytes_per_run(placed, batch_size, micro_batch_size=size, num_moments=kept) <= room

        if fits(batch_size):
            return batch_size
        sizes = sizes_of(placed, batch_size)
        return next((size for size in sizes[1:] if fits(size)), sizes[-1])

    def settle(self, spec: RunSpec, placed: PlacedTask, checks: FleetChecks) -> int:
        """Return the size once the model is known to allow it, and say it; the whole batch where it does not.

        Raises:
            NotSeparable: the size was asked for, and the model does not allow it.
        """
        size, where = self.size(spec, placed), f"task {spec.task!r}, batch size {spec.batch_size}"
        if size == spec.batch_size:
            return size
        try:
            checks.micro_batches(placed, spec.batch_size, size=size)
        except NotSeparable as reason:
            if self._asked is not None:
                raise NotSeparable(f"{where}: {reason}") from reason
            self._found[_shape(spec)] = spec.batch_size
            checks.say_once(
                f"whole batch, {where}",
                f"{where}: an update may not fit into memory, and is tried all the same: {reason}",
            )
            return spec.batch_size
        checks.say_once(f"micro-batches of {size}, {where}", f"{where}: {_sentence(spec.batch_size, size)}")
        return size

    def shrink(self, spec: RunSpec, placed: PlacedTask, checks: FleetChecks) -> bool:
        """Halve the size after one run did not fit into memory; tell whether that was possible.

        Raises:
            NotSeparable: the model does not allow it.
        """
        before = self.size(spec, placed)
        smaller = largest_size(placed, spec.batch_size, at_most=before // 2)
        if smaller >= before:
            return False
        checks.micro_batches(placed, spec.batch_size, size=smaller)
        self._found[_shape(spec)] = smaller
        return True


def _shape(spec: RunSpec) -> tuple[object, ...]:
    return spec.data_id, spec.model_id, spec.precision, spec.batch_size, num_moments(spec.method)


def _sentence(batch_size: int, size: int) -> str:
    """Return what the log says.

    >>> _sentence(16_384, 4_096)
    'an update is computed in 4 micro-batches of 4,096 examples, with the same numbers up to rounding'
    """
    examples = "1 example" if size == 1 else f"{size:,} examples"
    cut = f"{batch_size // size} micro-batches of {examples}"
    return f"an update is computed in {cut}, with the same numbers up to rounding"
