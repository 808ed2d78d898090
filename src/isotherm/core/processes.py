"""Independent pieces of work, shared out among forked processes."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TypeVar

from isotherm.core.machine import can_fork, num_cores

logger = logging.getLogger("isotherm")

T = TypeVar("T")

# Bytes of an index in a pipe, and how many indices fit into the smallest.
_WIDTH = 4
_MOST_AT_ONCE = 1024


def call_all(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Return what every call returns, in order, as a list comprehension would.

    On a machine with several cores the calls are shared out between this process and forks of it, each of which takes
    the next call that is left: put the longest first. Calls must not depend on each other, nor change anything that is
    needed here, and what they return is pickled. Calls that a fork has not finished, because it failed or was killed,
    are made here, so that errors are raised as they would be without forks.
    """
    made: dict[int, T] = {}
    for start in range(0, len(calls), _MOST_AT_ONCE):
        indices = range(start, min(start + _MOST_AT_ONCE, len(calls)))
        num_forks = min(_num_processes(), len(indices)) - 1
        if num_forks > 0:
            made |= _shared_out(calls, indices, num_forks)
    return [made[index] if index in made else call() for index, call in enumerate(calls)]


def _num_processes() -> int:
    """Return how many processes may work at once, this one among them.

    One where a fork would not be safe: on other systems than Linux, next to other threads, whose locks it would copy,
    and in workers that may have no processes of their own.
    """
    is_alone = threading.active_count() == 1 and not multiprocessing.current_process().daemon
    return num_cores() if can_fork() and is_alone else 1


def _shared_out(calls: Sequence[Callable[[], T]], indices: range, num_forks: int) -> dict[int, T]:
    """Return what the calls return that were finished, by index."""
    queue = _filled_pipe(indices)
    context = multiprocessing.get_context("fork")
    forks: list[BaseProcess] = []
    receivers: list[Connection] = []
    try:
        for _ in range(num_forks):
            receiver, sender = context.Pipe(duplex=False)
            started = context.Process(target=_work, args=(calls, queue, sender, [*receivers, receiver]), daemon=True)
            try:
                with sender:
                    started.start()
            except OSError:  # no more processes are allowed; those that there are do the work
                receiver.close()
                break
            forks.append(started)
            receivers.append(receiver)
        made = _made(calls, queue)
        num_lost = 0
        for fork, receiver in zip(forks, receivers, strict=True):
            try:
                made |= receiver.recv()
            except (EOFError, OSError):
                num_lost += 1
            fork.join()
        if num_lost:
            logger.warning(
                "%d of %d processes ended before their work was done, perhaps because memory ran out; it is done in "
                "this process instead",
                num_lost,
                num_forks + 1,
            )
        return made
    finally:
        os.close(queue)
        for receiver in receivers:
            receiver.close()
        for fork in forks:
            if fork.is_alive():  # this process was interrupted, or one of its own calls failed
                fork.terminate()
                fork.join()


def _filled_pipe(indices: range) -> int:
    """Return the end of a pipe from which processes read indices, until there are no more."""
    reader, writer = os.pipe()
    os.write(writer, b"".join(index.to_bytes(_WIDTH) for index in indices))
    os.close(writer)
    return reader


def _work(calls: Sequence[Callable[[], T]], queue: int, sender: Connection, receivers: Sequence[Connection]) -> None:
    """Make calls in a fork, and send what they return once none is left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the whole group; the parent decides
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # not the parent's handler; files half written are removed
    for receiver in receivers:  # while they are open here, the death of the parent would go unnoticed
        receiver.close()
    made = _made(calls, queue, stops=True)
    with contextlib.suppress(BrokenPipeError):  # the parent has ended
        sender.send(made)


def _made(calls: Sequence[Callable[[], T]], queue: int, *, stops: bool = False) -> dict[int, T]:
    """Take indices and make their calls until none is left; with `stops`, also at the first error."""
    made: dict[int, T] = {}
    while taken := os.read(queue, _WIDTH):
        index = int.from_bytes(taken)
        try:
            made[index] = calls[index]()
        except Exception:
            if not stops:
                raise
            break  # made again by the parent, where the error is raised
    return made
