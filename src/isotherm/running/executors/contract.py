"""What every executor owes whoever runs a study; `tests/contracts/test_executors.py` holds each of them to it.

Of torchrun it has a single process; what two share, and the end of one of them, is in `test_torchrun.py`.

Who writes the store. Nobody here. An executor yields the results of one fleet after another to the one process that
called it, and that process alone writes the store. Workers write checkpoints, and nothing else.

What a fleet returns. One `StoredRun` for every run of it: the result, and how it came about. Every run that is asked
for is yielded exactly once, however many workers were lost on the way. The same runs give the same numbers with every
executor, since all of them train a fleet by `LocalExecutor.run_one_fleet`; only `torchrun`, whose processes share one
run after another, follows the definition that fleets agree with, and differs from them by rounding.

Divergence is a value. A run whose loss is no longer finite is a result like any other. So is a failure: a run whose
model raises, that does not fit into memory alone, or that takes its worker down with it, is FAILED with the reason, and
the sweep goes on. Only what a user has to mend before anything can go on is raised, as a `UserError`.

Lost workers. A worker that dies, or makes no progress for longer than `run_timeout`, is replaced, and its fleet is
handed out once more. If that is lost too, its runs are tried alone, to tell which of them it is; `FleetQueue` has the
rules. Progress that a lost worker has reported is taken back. An executor in this process cannot lose a worker: it
warns of a fleet without progress, and refuses a `run_timeout`. Processes that share a run cannot replace one that is
lost, and end with a `UserError`.

Deadlines. Nothing is started that would come to nothing. When `deadline` comes, or its flag is set, fleets in training
write a checkpoint and end, what is done is yielded, and `StoppedFleet` is raised with the rest.

Cancellation. Leaving the executor's context ends its workers at once, whatever they are doing; of a fleet in training
its last checkpoint is left. Workers end by themselves when the process that started them is gone.

Checkpoints. A fleet that can go on from one is formed again as it was. Whoever stores the results removes it.

Progress. `on_fleet`, `on_steps` and `on_evaluation` are called in the process that called `run`, and what they raise
passes through to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self

from isotherm.core.records import RunSpec
from isotherm.running.store import StoredRun


class Executor(Protocol):
    """Trains runs somewhere and hands back their results; a context manager, since its workers must end."""

    def run(self, specs: Sequence[RunSpec]) -> Iterator[list[StoredRun]]:
        """Yield the runs of every fleet as soon as it is done.

        Raises:
            StoppedFleet: the deadline stopped fleets; no other is in training any more.
            UserError: nothing can go on before somebody has mended something.
        """
        ...

    def close(self) -> None:
        """End the workers at once."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
