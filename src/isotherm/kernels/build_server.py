"""A process that builds kernels on all cores and leaves them in Triton's cache, so that its caller finds them there.

    python -m isotherm.kernels.build_server

It imports PyTorch and Triton once, never touches a GPU, and forks itself for every batch of kernels that it is sent on
its standard input. It ends when that is closed, that is, with its caller. What it reads are pickles of its caller.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """One kernel for arguments of certain types and sizes.

    Args:
        module: where the kernel is written.
        name: of the kernel there.
        signature: types of its arguments.
        constants: values that are compiled in.
        attributes: what is known about other arguments, such as multiples of 16.
        options: of the compiler.
        target: backend, architecture and threads of a warp.
    """

    module: str
    name: str
    signature: dict[str, Any]
    constants: dict[Any, Any]
    attributes: dict[Any, Any]
    options: dict[str, Any]
    target: tuple[str, Any, int]


def build(wanted: Build) -> None:
    """Compile a kernel and, where Triton makes one, the function that launches it; both end up in Triton's cache."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia import driver
    from triton.compiler import ASTSource, compile

    kernel = getattr(importlib.import_module(wanted.module), wanted.name)
    source_of = ASTSource
    if kernel.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource

        source_of = GluonASTSource
    source = source_of(kernel, wanted.signature, wanted.constants, wanted.attributes)
    built = compile(source, target=GPUTarget(*wanted.target), options=wanted.options)
    if hasattr(driver, "make_launcher"):  # until Triton 3.6
        driver.CudaLauncher(source, built.metadata)


def error_of(function: Callable[[Any], object], wanted: Any) -> str | None:
    """Return what went wrong when a function was called, in a line; None if nothing did."""
    try:
        function(wanted)
    except Exception as error:  # whatever a compiler may raise: the caller builds the kernel itself, and then sees it
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return None


def serve(reading: BinaryIO, writing: BinaryIO, function: Callable[[Any], object], *, num_processes: int) -> None:
    """Call a function for all items of every list that is read, in several processes, and write the errors, a list."""
    while True:
        try:
            items: Sequence[Any] = pickle.load(reading)  # noqa: S301 - of the process that started this one
        except EOFError:
            return
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(min(num_processes, len(items)), mp_context=context) as pool:
            errors = list(pool.map(functools.partial(error_of, function), items))
        pickle.dump(errors, writing)
        writing.flush()


def _main() -> None:
    """Serve the process that started this one, on the file that was its standard output."""
    with os.fdopen(os.dup(1), "wb") as writing:
        os.dup2(2, 1)  # what compilers print is not an answer
        for name in sys.argv[2:]:
            with contextlib.suppress(ImportError):  # it is imported ahead of its use, where that would say so
                importlib.import_module(name)
        serve(sys.stdin.buffer, writing, build, num_processes=int(sys.argv[1]))


if __name__ == "__main__":
    _main()
