"""Processes that read items of a data set side by side.

Processes, not threads: a data set that keeps a file open reads from its own position in it, and two threads would
move each other's.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch
from torch import Tensor

from isotherm.core.machine import can_fork, num_cores
from isotherm.errors import UserError
from isotherm.tasks.datasets.reading import Form, Items

_MOST_WORKERS = 4  # by default

# Of a worker: what it reads.
_of_worker: tuple[Items, Form] | None = None


def default_workers() -> int:
    """Return one process per core, at most four, where processes are forked; else none: what is read must be sent."""
    return min(_MOST_WORKERS, num_cores()) if can_fork() else 0


class Reader:
    """Reads blocks of items, with worker processes or in this process; one block at a time.

    Args:
        items: the data set.
        form: of its items.
        num_workers: processes; 0 for none. They start with the first block, and a worker process of another pool
            reads by itself.
    """

    def __init__(self, items: Items, form: Form, *, num_workers: int) -> None:
        self.items, self.form, self.num_workers = items, form, num_workers
        self._lock = threading.Lock()
        self._pool: ProcessPoolExecutor | None = None
        self._pool_process = 0

    def __getstate__(self) -> dict[str, object]:
        return {"items": self.items, "form": self.form, "num_workers": self.num_workers}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def read(self, indices: Sequence[int]) -> list[Tensor]:
        """Return some items: a tensor for each input, and their targets."""
        with self._lock:
            if not self.num_workers or multiprocessing.current_process().daemon:
                return self.items.block(indices, self.form)
            size = -(-len(indices) // self.num_workers)
            parts = [list(indices[start : start + size]) for start in range(0, len(indices), size)]
            read = list(self._workers().map(_read, parts))
        found = self.form.allocate(len(indices))
        for (start, part), blocks in zip(_starts(parts), read, strict=True):
            for values, block in zip(found, blocks, strict=True):
                values[start : start + len(part)] = _received(block, values, len(part))
        return found

    def close(self) -> None:
        """End the workers; a later block starts them again."""
        if self._pool is not None:
            _end(self._pool, self._pool_process)
        self._pool = None

    def _workers(self) -> ProcessPoolExecutor:
        if self._pool is None or self._pool_process != os.getpid():
            forks = can_fork()
            self._pool = ProcessPoolExecutor(
                self.num_workers,
                mp_context=multiprocessing.get_context("fork" if forks else "spawn"),
                initializer=_begin,
                initargs=((self.items, self.form) if forks else self._sent(),),
            )
            self._pool_process = os.getpid()
            weakref.finalize(self, _end, self._pool, self._pool_process)  # at the latest when Python ends
        return self._pool

    def _sent(self) -> bytes:
        """Return a copy of what is read.

        The way of `multiprocessing` itself would move the caller's tensors to shared memory, from under NumPy arrays
        that look at them.
        """
        try:
            return pickle.dumps((self.items, self.form))
        except Exception as error:
            raise UserError(
                f"{self.items.where}: the data set or its adapter cannot be sent to worker processes ({error}); "
                "define them in a module, without lambdas, or read with num_workers=0"
            ) from error


def _end(pool: ProcessPoolExecutor, process: int) -> None:
    """End a pool in the process that made it; a forked one has a copy that is not its own."""
    if os.getpid() == process:
        pool.shutdown()


def _starts(parts: Sequence[list[int]]) -> list[tuple[int, list[int]]]:
    starts = np.cumsum([0, *map(len, parts)])[:-1]
    return list(zip(starts.tolist(), parts, strict=True))


def _begin(given: tuple[Items, Form] | bytes) -> None:
    global _of_worker
    torch.set_num_threads(1)
    _of_worker = pickle.loads(given) if isinstance(given, bytes) else given  # noqa: S301 (written by the parent)


def _read(indices: list[int]) -> list[np.ndarray]:
    """Read a block in a worker; return its bytes, which any dtype has."""
    assert _of_worker is not None
    items, form = _of_worker
    return [block.view(-1).view(torch.uint8).numpy() for block in items.block(indices, form)]


def _received(block: np.ndarray, like: Tensor, num: int) -> Tensor:
    return torch.from_numpy(block).view(like.dtype).view(num, *like.shape[1:])
