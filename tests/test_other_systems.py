"""Every module can be imported, and a store written, where Python lacks what only Linux and macOS have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# What Windows does not have, taken away once the libraries are loaded, which look for it themselves.
_LIKE_WINDOWS = """
import importlib, os, pkgutil, signal, sys, types
import isotherm

LEFT_OUT = ("isotherm.kernels.triton", "isotherm.kernels.gluon", "isotherm.bench.jax_vmap", "isotherm.__main__")
NAMES = [m.name for m in pkgutil.walk_packages(isotherm.__path__, "isotherm.") if not m.name.startswith(LEFT_OUT)]
for name in NAMES:
    importlib.import_module(name)  # and every library
KEPT = ("isotherm.kernels", "isotherm.models")  # PyTorch takes an operation only once
for name in [name for name in sys.modules if name.startswith("isotherm") and not name.startswith(KEPT)]:
    del sys.modules[name]

locked = []
def locking(number, mode, size):
    if locked and mode == 2:
        raise OSError("locked")
    locked.append(number)

for module, names in {
    os: "register_at_fork fork forkpty sched_getaffinity sysconf getuid geteuid killpg setsid nice mkfifo",
    signal: "SIGHUP SIGUSR1 SIGUSR2 SIGALRM SIGKILL SIGQUIT pthread_sigmask setitimer alarm",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in ("fcntl", "resource", "termios", "pwd", "grp", "pty", "tty"):
    sys.modules[name] = None
sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
sys.platform = "win32"

import isotherm
for name in NAMES:
    importlib.import_module(name)
print(len(NAMES))

from isotherm.core.machine import can_fork, physical_memory
from isotherm.errors import StoreError
from isotherm.running.executors.choice import default_workers
print(can_fork(), physical_memory() > 0, default_workers("cpu"))
with isotherm.Store.write("runs.sqlite") as store:
    print(store, len(locked))
    try:
        isotherm.Store.write("runs.sqlite")
    except StoreError as error:
        print("being written by another process" in str(error))
"""


def test_every_module_can_be_imported_and_a_store_locked_on_windows(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LIKE_WINDOWS], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    num, machine, store, is_refused = done.stdout.splitlines()
    assert int(num) > 300
    assert machine.startswith("False True ")
    assert store == f"Store({os.path.realpath(tmp_path / 'runs.sqlite')!r}: 0 runs) 1"
    assert is_refused == "True"
