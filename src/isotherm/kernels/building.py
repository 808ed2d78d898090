"""Kernels built on all cores before they are needed, rather than one after another at their first launch.

Triton compiles a kernel when it is first launched, for the types and sizes of that launch, and waits for it: a new
network has about eighty of them. So a program is first called with every launch of a missing kernel skipped and noted
(`built_first`); a server (`build_server`) builds what was noted, all at once, and the program is called again. Missing
is what Triton's cache on disk does not hold either. Where only the operations matter and not their values, as in a
trace, kernels that this process has not launched yet are skipped and neither loaded nor built (`skipping`).

This relies on how Triton 3.6 and 3.7 launch. Other versions build their kernels one after another, as they always did.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import inspect
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from isotherm.core.machine import num_cores
from isotherm.kernels.availability import are_available
from isotherm.kernels.build_server import Build

logger = logging.getLogger("isotherm")

# The method of Triton's kernels that compiles one; a launch whose kernel it does not return is left out.
_METHOD = "_do_compile"
_PARAMETERS = ("self", "key", "signature", "device", "constexprs", "options", "attrs", "warmup")
# With fewer cores, building at the first launch takes about as long.
FEWEST_CORES = 4
# Imported once by the server, before it forks.
_MODULES = ("torch", "triton.compiler", "triton.experimental.gluon", "triton.backends.nvidia.driver")
_SECONDS_AT_MOST = 300.0
# Fewer kernels than these are built sooner than the server starts.
_FEWEST_KERNELS = 8


@functools.cache
def _kernel_type() -> type | None:
    """Return the type of Triton's kernels, or None where launches cannot be skipped."""
    try:
        from triton.runtime.jit import JITFunction
    except ImportError:
        return None
    method = getattr(JITFunction, _METHOD, None)
    if method is None or tuple(inspect.signature(method).parameters) != _PARAMETERS:
        logger.info("kernels are built one after another: this version of Triton launches them in another way")
        return None
    found: type = JITFunction
    return found


# What to do about a launch whose kernel this process has not launched before: called in place of Triton's method.
Rule = Callable[..., Any]


class _Launches:
    """What becomes of launches of kernels that this process has not launched: one state for all its threads.

    PyTorch's backward passes launch from a thread of their own.
    """

    def __init__(self) -> None:
        self._rule: Rule | None = None  # None: as Triton does
        self._original: Any = None

    @contextmanager
    def under(self, rule_of: Callable[[Any], Rule] | None, kernel_type: type) -> Iterator[None]:
        """Follow a rule, made from Triton's own method; None launches everything."""
        before = self._rule
        original = self._original or getattr(kernel_type, _METHOD)
        self._follow(None if rule_of is None else rule_of(original), kernel_type, original)
        try:
            yield
        finally:
            self._follow(before, kernel_type, original)

    def _follow(self, rule: Rule | None, kernel_type: type, original: Any) -> None:
        self._rule = rule
        self._original = None if rule is None else original
        setattr(kernel_type, _METHOD, original if rule is None else rule)


_LAUNCHES = _Launches()


def _skips(_original: Any) -> Rule:
    return lambda *_arguments, **_options: None


def _notes(noted: dict[Any, Build], original: Any) -> Rule:
    """Return a rule that skips and notes kernels that are not in Triton's cache on disk either."""
    lock = threading.Lock()

    def note(
        self: Any, key: Any, signature: Any, device: int, constexprs: Any, options: Any, attrs: Any, warmup: bool
    ) -> Any:
        _, _, target, backend, _ = self.device_caches[device]
        if _is_on_disk(self.ASTSource(self, signature, constexprs, attrs), backend, options):
            return original(self, key, signature, device, constexprs, options, attrs, warmup)
        found = Build(
            module=self.fn.__module__,
            name=self.fn.__name__,
            signature=dict(signature),
            constants=dict(constexprs),
            attributes=dict(attrs),
            options=dict(options.__dict__),
            target=(target.backend, target.arch, target.warp_size),
        )
        with lock:
            noted.setdefault((found.module, found.name, key), found)
        return None

    return note


def _is_on_disk(source: Any, backend: Any, options: Any) -> bool:
    """Tell whether an earlier process built a kernel; as Triton finds out when it is launched."""
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.runtime.cache import get_cache_key, get_cache_manager

    key = get_cache_key(source, backend, options, get_cache_invalidating_env_vars())
    manager = get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
    return bool(manager.get_group(f"{source.name[:150]}.json"))


@contextmanager
def skipping(device: torch.device) -> Iterator[None]:
    """Leave out launches of kernels that were not launched before: for traces and trials, which need no values."""
    kernel_type = _kernel_type() if are_available(device) else None
    if kernel_type is None:
        yield
        return
    with _LAUNCHES.under(_skips, kernel_type):
        yield


@contextmanager
def launching() -> Iterator[None]:
    """Launch all kernels within `skipping`: for what needs values there."""
    kernel_type = _kernel_type()
    if kernel_type is None:
        yield
        return
    with _LAUNCHES.under(None, kernel_type):
        yield


def built_first(function: Callable[[], object], device: torch.device) -> None:
    """Build the kernels that a function is going to launch, all at once.

    The function is called without them, so what it writes is worthless; it must not matter. It is not called where this
    would not be faster: on a CPU, with few cores, or without Triton.
    """
    kernel_type = _kernel_type() if are_available(device) and num_cores() >= FEWEST_CORES else None
    if kernel_type is None:
        return
    noted: dict[Any, Build] = {}
    with _LAUNCHES.under(functools.partial(_notes, noted), kernel_type):
        function()
    if torch.cuda.is_available():
        torch.cuda.synchronize(device)
    build_all(list(noted.values()))


def build_all(wanted: list[Build]) -> None:
    """Build kernels at once; if that is impossible, the log says why, and they are built when they are launched."""
    if not wanted or (_running is None and len(wanted) < _FEWEST_KERNELS):
        return
    start = time.perf_counter()
    server = _server()
    errors = None if server is None else server.build(wanted)
    if errors is None:
        return
    for build, error in zip(wanted, errors, strict=True):
        if error is not None:
            logger.info("%s was not built ahead: %s", build.name, error)
    num_built = errors.count(None)
    logger.info("%d kernels built at once in %.1f s", num_built, time.perf_counter() - start)


def start_early(device: torch.device) -> None:
    """Start the process that builds kernels, which takes seconds, where it will be needed."""
    if are_available(device) and num_cores() >= FEWEST_CORES and _kernel_type() is not None:
        _server()


class _Server:
    """The process that builds."""

    def __init__(self, num_processes: int) -> None:
        command = [sys.executable, "-m", "isotherm.kernels.build_server", str(num_processes), *_MODULES]
        # In a session of its own, so that Ctrl-C in a terminal reaches its caller alone.
        self._owner = os.getpid()
        self._process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=_environment(),
        )

    @property
    def is_ours(self) -> bool:
        return self._owner == os.getpid()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def build(self, wanted: list[Build]) -> list[str | None] | None:
        """Return the error of every build; None if there is no answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(_SECONDS_AT_MOST, self._process.kill)
        timer.daemon = True
        timer.start()
        try:
            pickle.dump(wanted, self._process.stdin)
            self._process.stdin.flush()
            errors: list[str | None] = pickle.load(self._process.stdout)  # noqa: S301 - of the process started above
        except (OSError, EOFError, pickle.PickleError, AttributeError, TypeError) as error:
            self.end()
            logger.warning("kernels are built one after another: the process that builds them failed (%r)", error)
            return None
        finally:
            timer.cancel()
        return errors

    def end(self) -> None:
        """End the process, if it has not ended and is this process's own, not one that a fork was handed."""
        if self._owner != os.getpid():
            return
        self._process.kill()
        self._process.wait()


_running: _Server | None = None
_has_failed = False


def _server() -> _Server | None:
    """Return the server of this process, started at its first use; None once it has failed."""
    global _running, _has_failed
    if _has_failed:
        return None
    if _running is not None and not _running.is_ours:
        _running = None  # this process was forked from the one that started it
    if _running is not None and not _running.is_alive:
        _running, _has_failed = None, True
        logger.warning("kernels are built one after another: the process that builds them has ended")
        return None
    if _running is None:
        _running = _Server(num_cores())
        atexit.register(_running.end)
    return _running


def _environment() -> dict[str, str]:
    """Return the environment of the server: this package is found where it was found here."""
    paths = [path for path in sys.path if path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": ""}
