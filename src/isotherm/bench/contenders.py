"""The contenders: ours and its peers, each in processes of its own that wait while another is timed."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import shutil
import signal
import warnings
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from isotherm.bench.fleet import ours
from isotherm.bench.jax_vmap import jax_vmap, why_no_jax
from isotherm.bench.library import why_no_library_layers
from isotherm.bench.plain import plain_loop
from isotherm.bench.tasks import timed_task
from isotherm.bench.workloads import Workload
from isotherm.core.machine import num_cores
from isotherm.errors import UserError, nearest
from isotherm.running.timing import Turn
from isotherm.tasks.seeding import initial_model

OURS, PLAIN, PROCESSES = "ours", "plain loop", "one process per core"
COMPILED, LIBRARY, JAX = "compiled plain loop", "plain loop, library layers", "jax vmap"
PEERS = {
    PLAIN: "torch.optim.SGD, one run at a time; on a CPU with all threads or one, whichever is faster",
    COMPILED: "the same with forward pass and loss compiled by torch.compile",
    LIBRARY: "the same, not compiled, with nn.LSTM or nn.BatchNorm2d in place of our layers",
    PROCESSES: "plain loops at the same time, one thread each; on a GPU a few that share it",
    JAX: "all runs at once in JAX: vmap, scan and jit",
}
# On one GPU, more plain loops than this only wait for each other.
PROCESSES_ON_A_GPU = 4
# Grace period of a process that is told to end.
SECONDS_TO_END = 2.0


class ContenderError(Exception):
    """A contender cannot be timed; the message says why."""


def chosen_peers(names: list[str]) -> list[str]:
    """Return the named peers, or all of them; '-' and '_' stand for spaces.

    >>> chosen_peers(["jax-vmap", "plain loop"])
    ['plain loop', 'jax vmap']
    """
    meant = {_bare(name): name for name in PEERS}
    for name in names:
        if _bare(name) not in meant:
            raise UserError(f"unknown contender {name!r}; {nearest(name, PEERS)}")
    wanted = {meant[_bare(name)] for name in names}
    return [name for name in PEERS if not names or name in wanted]


def _bare(name: str) -> str:
    return " ".join(name.replace("-", " ").replace("_", " ").replace(",", " ").lower().split())


def why_not(peer: str, workload: Workload) -> str | None:
    """Return why a peer cannot be timed on a workload on this machine, or None."""
    if peer == COMPILED and workload.device == "cpu" and compiler() is None:
        return "torch.compile needs a C++ compiler, and none is found (CXX, g++, clang++)"
    if peer == LIBRARY:
        return why_no_library_layers(
            initial_model(timed_task(workload.task).model, seed=0), batch_size=workload.batch_size
        )
    if peer == PROCESSES and workload.num_runs == 1:
        return "there is one run only"
    return why_no_jax(workload) if peer == JAX else None


def compiler() -> str | None:
    """Return the path of a C++ compiler, if there is one."""
    names = (os.environ.get("CXX"), "g++", "clang++")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def mps_is_running() -> bool:
    """Tell whether NVIDIA's Multi-Process Service is running, without which processes take turns on a GPU."""
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().startswith("nvidia-cuda-mps"):
                return True
        except OSError:  # it has ended
            continue
    return False


class Contender:
    """A contender in processes of its own, started at the first workload and kept for the next; a context manager.

    Args:
        name: "ours", or one of `PEERS`.
        num_processes: processes that train at the same time; their speeds are added.
        num_threads: PyTorch threads in each.
    """

    def __init__(self, name: str, *, num_processes: int = 1, num_threads: int = 1) -> None:
        self.name = name
        self._num_processes, self._num_threads = num_processes, num_threads
        self._processes: dict[Connection, BaseProcess] = {}
        self._used: list[Connection] = []  # by the workload

    @classmethod
    def on(cls, name: str, device: str) -> Self:
        """Return a contender set up for a device."""
        cores = num_cores()
        if name == PROCESSES:
            return cls(name, num_processes=cores if device == "cpu" else PROCESSES_ON_A_GPU)
        return cls(name, num_threads=cores)

    def start(self) -> None:
        """Start the processes unless they are running; those of several contenders may start at the same time."""
        if self._processes:
            return
        # Fresh processes: a forked one may use neither CUDA nor several threads if its parent has.
        context = multiprocessing.get_context("spawn")
        for _ in range(self._num_processes):
            near, far = context.Pipe()
            process = context.Process(target=_serve, args=(far, self.name, self._num_threads))
            process.start()
            far.close()
            self._processes[near] = process

    def open(self, workload: Workload) -> None:
        """Begin a workload; return once it is prepared and warmed up.

        Raises:
            ContenderError: it cannot be timed.
        """
        self.start()
        self._used = list(self._processes)[: workload.num_runs]
        self._answers([("workload", (workload, seed)) for seed in range(len(self._used))])

    def window(self, seconds: float) -> float:
        """Return the run-steps per second of a window; raises as `open` does."""
        return sum(self._answers([("window", seconds)] * len(self._used)))

    def finish(self) -> None:
        """End the workload; the processes wait for the next."""
        for connection in self._used:
            self._send(connection, ("done", None))
        self._used = []

    def close(self) -> None:
        """End the processes."""
        self._used = []
        for connection in self._processes:
            connection.close()
        for process in self._processes.values():
            process.join(timeout=SECONDS_TO_END)
            if process.is_alive():
                process.terminate()
                process.join()
        self._processes.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answers(self, messages: list[tuple[str, Any]]) -> list[float]:
        for connection, message in zip(self._used, messages, strict=True):
            self._send(connection, message)
        try:
            return [self._receive(connection) for connection in self._used]
        except ContenderError:
            if len(self._used) > 1:  # the others would go on
                self.close()
            raise

    def _send(self, connection: Connection, message: tuple[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it has ended, which the next answer will show
            connection.send(message)

    def _receive(self, connection: Connection) -> float:
        try:
            kind, content = connection.recv()
        except (EOFError, OSError) as error:
            process = self._processes[connection]
            process.join(timeout=SECONDS_TO_END)
            exit_code = process.exitcode
            self.close()  # the next workload starts anew
            raise ContenderError(f"its process ended with exit code {exit_code}") from error
        if kind == "failed":
            raise ContenderError(content)
        return float(content)


_Run = Callable[[Workload, Turn, int], None]
_RUNS: Mapping[str, _Run] = {
    OURS: lambda workload, turn, _: ours(workload, turn),
    PLAIN: lambda workload, turn, seed: plain_loop(workload, turn, seed=seed),
    COMPILED: lambda workload, turn, seed: plain_loop(workload, turn, seed=seed, compiled=True),
    LIBRARY: lambda workload, turn, seed: plain_loop(workload, turn, seed=seed, library=True),
    PROCESSES: lambda workload, turn, seed: plain_loop(workload, turn, seed=seed),
    JAX: lambda workload, turn, _: jax_vmap(workload, turn),
}


def _serve(connection: Connection, name: str, num_threads: int) -> None:
    """Serve workloads until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides
    warnings.simplefilter("ignore")
    torch.set_num_threads(num_threads)

    def turn(speed: float | None) -> float | None:
        connection.send(("speed", speed or 0.0))
        kind, content = connection.recv()
        return float(content) if kind == "window" else None

    try:
        while True:
            kind, content = connection.recv()
            if kind != "workload":  # the end of one that failed
                continue
            try:
                _RUNS[name](content[0], turn, content[1])
            except (EOFError, BrokenPipeError, ConnectionResetError):
                return
            except Exception as error:  # whatever a library raises concerns this contender alone
                first = str(error).strip().partition("\n")[0]
                connection.send(("failed", f"{type(error).__name__}: {first}"[:500]))
            gc.collect()
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.empty_cache()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
